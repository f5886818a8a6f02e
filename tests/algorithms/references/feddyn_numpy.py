"""FedDyn's round in NumPy: logistic regression, written from the paper alone.

A model, h and a linear term are vectors [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.objectives_numpy import descend, half_square, loss


def feddyn_round(theta, h, gradients, clients, batches, *, alpha, present, by_samples, fills_in, **options):
    """One round; the new θ, h and linear terms.

    Args:
        theta: the server's model.
        h: of the server.
        gradients: ∇L_k of every client.
        clients: (x, y) of every client.
        batches: the batches of every client.
        alpha: α.
        present: clients that take part.
        by_samples: weights n_k/n in the place of 1/m.
        fills_in: whether the absent count with the server's model.
        **options: of SGD.
    """
    shares = np.array([len(y) if by_samples else 1.0 for _, y in clients])
    shares = shares / shares.sum()
    after, moved = list(gradients), np.zeros_like(theta)
    for k in present:
        x, y = clients[k]

        def objective(point, rows, x=x, y=y, k=k):
            pull = alpha * half_square(point - theta)
            return loss(point, x[rows], y[rows]) - gradients[k] @ point + pull

        local = descend(objective, theta, batches[k], **options)
        after[k] = gradients[k] - alpha * (local - theta)
        moved = moved + shares[k] * (local - theta)
    h = h - alpha * moved
    mean = theta + (moved if fills_in else moved / shares[list(present)].sum())
    return mean - h / alpha, h, after
