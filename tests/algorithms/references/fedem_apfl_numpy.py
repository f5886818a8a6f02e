"""A global and a local logistic regression side by side, in NumPy; their probabilities are mixed.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import probability, sgd


def ensemble_round(w, vs, clients, batches, **solver):
    """One round with all clients: the averaged global model and all local models."""
    received = [sgd(w, x, y, own, **solver) for (x, y), own in zip(clients, batches, strict=True)]
    vs = [sgd(v, x, y, own, **solver) for v, (x, y), own in zip(vs, clients, batches, strict=True)]
    return np.average(received, axis=0, weights=[len(y) for _, y in clients]), vs


def predict(w, v, x, local_share):
    """Probabilities of both classes, [n, 2]."""
    positive = (1 - local_share) * probability(w, x) + local_share * probability(v, x)
    return np.stack([1 - positive, positive], axis=1)
