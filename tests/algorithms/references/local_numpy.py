"""Training alone in NumPy: logistic regression, written from the papers alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

from references.logistic import sgd


def local_round(thetas, clients, batches, **solver):
    """One round of every client's own model, with a fresh optimizer."""
    return [sgd(theta, x, y, own, **solver) for theta, (x, y), own in zip(thetas, clients, batches, strict=True)]
