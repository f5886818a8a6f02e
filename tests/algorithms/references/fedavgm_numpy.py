"""FedAvgM's rounds in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def server_round(w, v, clients, batches, present, *, server_lr, server_momentum, lr, momentum=0.0, everyone=False):
    """The next w and v; with `everyone` the clients that are not present count with w itself."""
    sizes = np.array([len(labels) for _, labels in clients])
    models = np.tile(w, (len(clients), 1))
    for one in present:
        models[one] = sgd(w, *clients[one], batches[one], lr, momentum)
    counted = list(range(len(clients))) if everyone else present
    v = server_momentum * v + np.average(models[counted], axis=0, weights=sizes[counted]) - w
    return w + server_lr * v, v
