"""IFCA's round in NumPy: logistic regressions, written from the paper alone.

Models are rows [k, d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def score(theta, x):
    return x @ theta[:-1] + theta[-1]


def mean_loss(theta, x, y):
    z = score(theta, x)
    return np.mean(np.log1p(np.exp(-np.where(y == 1, z, -z))))


def estimate(thetas, x, y):
    """Cluster identity: the first model of the lowest mean loss."""
    return int(np.argmin([mean_loss(theta, x, y) for theta in thetas]))


def gradient(theta, x, y, weight_decay=0.0):
    slope = 1 / (1 + np.exp(-score(theta, x))) - y
    return np.append(slope @ x, slope.sum()) / len(y) + weight_decay * theta


def ifca_round(thetas, clients, batches, *, by_samples=False, gradients=False, lr, **solver):
    """One round with all clients.

    Args:
        thetas: models, [k, d + 1].
        clients: (x, y) of every client.
        batches: of every client.
        by_samples: weight clients by their samples (HypCluster) instead of equally.
        gradients: option I, averages of gradients, instead of option II, averages of models.
        lr: step size of clients (II) or of the server (I).
        solver: momentum and weight decay of the local solver.

    Returns:
        The new models and the clusters of all clients.
    """
    chosen = [estimate(thetas, x, y) for x, y in clients]
    weights = np.array([len(y) if by_samples else 1.0 for _, y in clients])
    new = thetas.copy()
    for j, theta in enumerate(thetas):
        members = [i for i, one in enumerate(chosen) if one == j]
        if gradients:
            for i in members:
                new[j] -= lr * weights[i] / weights.sum() * gradient(theta, *clients[i], **solver)
        elif members:
            models = [sgd(theta, *clients[i], batches[i], lr=lr, **solver) for i in members]
            new[j] = np.average(models, axis=0, weights=weights[members])
    return new, chosen
