"""APPLE in NumPy: logistic regressions, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias; `p` holds one row for each client.
"""

import numpy as np
from references.logistic import gradient


def train(i, cores, p, prior, x, y, batches, *, lr, relation_lr, pull, momentum=0.0, learns_core=True):
    """A client's part of a round: its core model, its relations and its personalised model afterwards."""
    cores, p, velocity = np.array(cores), p.copy(), 0.0
    for batch in batches:
        slope = gradient(p @ cores, x[batch], y[batch])
        of_p = cores @ slope + pull * (p - prior)
        if learns_core:
            velocity = momentum * velocity + p[i] * slope
            cores[i] = cores[i] - lr * velocity
        p = p - relation_lr * of_p
    return cores[i] if learns_core else None, p, p @ cores


def apple_round(cores, ps, personal, prior, clients, batches, *, present, **options):
    """The core models, relations and personalised models of all clients after a round."""
    new, ps, personal = list(cores), list(ps), list(personal)
    for i in present:
        new[i], ps[i], personal[i] = train(i, cores, ps[i], prior, *clients[i], batches[i], **options)
    return new, ps, personal
