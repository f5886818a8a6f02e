"""FedAvg's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sigmoid, with_bias


def local_sgd(theta, x, y, batches, *, lr, momentum=0.0, weight_decay=0.0, velocity=None):
    """SGD over the batches, arrays of positions; returns the model and its velocity."""
    theta, velocity = theta.copy(), np.zeros_like(theta) if velocity is None else velocity.copy()
    for batch in batches:
        features, labels = with_bias(x[batch]), y[batch]
        gradient = features.T @ (sigmoid(features @ theta) - labels) / len(batch) + weight_decay * theta
        velocity = momentum * velocity + gradient
        theta = theta - lr * velocity
    return theta, velocity


def fedavg_round(theta, clients, batches, *, present=None, uniform=False, stale_fill=False, velocities=None, **solver):
    """One round.

    Args:
        theta: the global model, [d + 1].
        clients: (x, y) of every client.
        batches: the batches of every client.
        present: clients that take part; None: all.
        uniform: equal weights instead of numbers of samples.
        stale_fill: the absent count with the global model.
        velocities: of every client, from the last round; None: fresh ones.

    Returns:
        The new global model and the velocities.
    """
    weights = np.array([1.0 if uniform else len(y) for _, y in clients])
    present = range(len(clients)) if present is None else present
    kept = dict(enumerate(velocities or [None] * len(clients)))
    total = np.zeros_like(theta)
    for i in present:
        model, kept[i] = local_sgd(theta, *clients[i], batches[i], velocity=kept[i], **solver)
        total += weights[i] * model
    share = weights[list(present)].sum()
    if stale_fill:
        return (total + (weights.sum() - share) * theta) / weights.sum(), list(kept.values())
    return total / share, list(kept.values())
