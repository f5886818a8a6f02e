"""Ditto's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient


def train(w, v, x, y, batches, *, lr, personal_lr, prox_weight, personal_steps=1, momentum=0.0, weight_decay=0.0):
    """A client's part of a round: its copy of the global model, and its own model held to the received one."""
    local, own, velocities = w, v, [0.0, 0.0]
    for batch in batches:
        velocities[0] = momentum * velocities[0] + gradient(local, x[batch], y[batch]) + weight_decay * local
        local = local - lr * velocities[0]
        for _ in range(personal_steps):
            pull = prox_weight * (own - w) + weight_decay * own
            velocities[1] = momentum * velocities[1] + gradient(own, x[batch], y[batch]) + pull
            own = own - personal_lr * velocities[1]
    return local, own


def ditto_round(w, owns, clients, batches, *, present=None, uniform=False, **settings):
    """One round; returns the global model and all personal ones."""
    present = range(len(clients)) if present is None else present
    owns, deltas, weights = list(owns), [], []
    for i in present:
        local, owns[i] = train(w, owns[i], *clients[i], batches[i], **settings)
        deltas.append(local - w)
        weights.append(1 if uniform else len(clients[i][1]))
    return w + np.average(deltas, axis=0, weights=weights), owns
