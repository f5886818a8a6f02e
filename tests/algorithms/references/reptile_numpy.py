"""Reptile in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def reptile_round(phi, clients, batches, *, outer_lr, present, **solver):
    """The new start."""
    ways = [sgd(phi, *clients[i], batches[i], **solver) - phi for i in present]
    return phi + outer_lr * np.mean(ways, axis=0)
