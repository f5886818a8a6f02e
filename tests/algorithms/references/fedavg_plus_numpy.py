"""FedAvg and its fine-tuning before serving in NumPy: logistic regression, written from the papers alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import probability, sgd


def fedavg_plus_round(theta, clients, batches, lr, **solver):
    """One round of FedAvg with all clients."""
    models = [sgd(theta, x, y, own, lr, **solver) for (x, y), own in zip(clients, batches, strict=True)]
    return np.average(models, axis=0, weights=[len(y) for _, y in clients])


def serve(theta, x_train, y_train, batches, x, lr, **solver):
    """Probabilities [n, 2] of a copy of the global model that is tuned with a fresh optimizer."""
    positive = probability(sgd(theta, x_train, y_train, batches, lr, **solver), x)
    return np.stack([1 - positive, positive], axis=1)
