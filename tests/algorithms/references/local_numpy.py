"""Training alone in NumPy: logistic regression, written from the papers alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np


def logits(theta, x):
    return x @ theta[:-1] + theta[-1]


def local_round(thetas, clients, batches, *, lr, momentum=0.0, weight_decay=0.0):
    """One round of every client's own model, with a fresh optimizer."""
    after = []
    for theta, (x, y), own in zip(thetas, clients, batches, strict=True):
        velocity = 0.0
        for batch in own:
            slope = 1 / (1 + np.exp(-logits(theta, x[batch]))) - y[batch]
            gradient = np.append(slope @ x[batch], slope.sum()) / len(batch)
            velocity = momentum * velocity + gradient + weight_decay * theta
            theta = theta - lr * velocity
        after.append(theta)
    return after


def predict(theta, x):
    """Probabilities of both classes, [n, 2]."""
    positive = 1 / (1 + np.exp(-logits(theta, x)))
    return np.stack([1 - positive, positive], axis=1)
