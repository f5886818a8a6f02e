"""FedFOMO in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def loss(theta, x, y):
    logit = x @ theta[:-1] + theta[-1]
    return np.logaddexp(0, np.where(y > 0, -logit, logit)).mean()


def combine(previous, models, x, y):
    """The new model (None where nothing helps), the weights as they are, and as shares."""
    before = loss(previous, x, y)
    weights = {}
    for n, theta in models.items():
        distance = np.linalg.norm(theta - previous)
        weights[n] = (before - loss(theta, x, y)) / distance if distance > 0 else 0.0
    total = sum(max(w, 0.0) for w in weights.values())
    if not total:
        return None, weights, dict.fromkeys(models, 0.0)
    shares = {n: max(w, 0.0) / total for n, w in weights.items()}
    return previous + sum(share * (models[n] - previous) for n, share in shares.items()), weights, shares


def fedfomo_round(left, uploaded, affinity, data, held, batches, present, coins, ties, *, num, epsilon, keep, solver):
    """One round, in place: `left` are the clients' models, `uploaded` the server's, both [T, d + 1].

    `held` lists each client's held-out samples; without any the training samples judge the models.
    """
    for i in present:
        x, y = data[i]
        own = [[row for row in batch if row not in held[i]] for batch in batches[i]]
        uploaded[i] = sgd(left[i], x, y, own, **solver)
    offered, before = uploaded.copy(), affinity.copy()
    for i in present:
        rank = np.zeros(len(left)) if coins[i] < epsilon else -before[i]
        others = sorted((n for n in range(len(left)) if n != i), key=lambda n: (rank[n], ties[i][n]))[:num]
        x, y = (part[held[i]] if held[i] else part for part in data[i])
        new, weights, _ = combine(left[i], {n: offered[n] for n in [i, *others]}, x, y)
        left[i] = new if new is not None else {"previous": left[i], "trained": offered[i]}[keep]
        for n, w in weights.items():
            affinity[i, n] += w
