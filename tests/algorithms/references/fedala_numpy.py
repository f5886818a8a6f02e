"""FedALA in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias; its one layer is the top one, or lies below it.
"""

import numpy as np
from references.logistic import gradient, sgd


def adapt(model, own, weights, x, y, batches, drawn, lr):
    """The weights after a step on each batch, of which only the `drawn` samples [n] count."""
    for batch in batches:
        kept = batch[drawn[batch]]
        start = own + (model - own) * weights
        if len(kept):
            weights = np.clip(weights - lr * gradient(start, x[kept], y[kept]) * (model - own), 0, 1)
    return weights


def fedala_round(model, owns, weights, clients, ala_batches, batches, drawn, *, eta, present, **solver):
    """One round; returns the global model, and the models and weights of all clients."""
    owns, weights = list(owns), list(weights)
    for i in present:
        x, y = clients[i]
        weights[i] = adapt(model, owns[i], weights[i], x, y, ala_batches[i], drawn[i], eta)
        start = owns[i] + (model - owns[i]) * weights[i]
        owns[i] = sgd(start, x, y, batches[i], **solver)
    sizes = [len(clients[i][1]) for i in present]
    return np.average([owns[i] for i in present], axis=0, weights=sizes), owns, weights
