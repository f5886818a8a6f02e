"""Fine-tuned serving in NumPy: a mixture of logistic regressions, written from FedEM's equations alone.

Components are rows [M, d + 1] whose last entry is the bias.
"""

import numpy as np
from references.fedem_numpy import expectation, likelihoods
from references.logistic import probability


def tuned(thetas, pi, x, y, batches, *, lr, momentum=0.0, moving=None):
    """Components of a client after local steps, and their weights after ten E-steps.

    Args:
        thetas: the components that serve it, [M, d + 1].
        pi: their weights, [M].
        x: training inputs.
        y: training labels.
        batches: positions of the samples of each step.
        lr: learning rate.
        momentum: momentum, from 0.
        moving: columns that are tuned; None: all.
    """
    q, _ = expectation(thetas, pi, x, y)
    found = []
    for m, start in enumerate(thetas):
        theta, velocity = start.copy(), np.zeros_like(start)
        for batch in batches:
            error = q[batch, m] * (probability(theta, x[batch]) - y[batch]) / len(batch)
            gradient = np.append(x[batch].T @ error, error.sum())
            velocity = momentum * velocity + gradient
            step = lr * velocity
            theta = theta - (step if moving is None else np.isin(np.arange(len(theta)), moving) * step)
        found.append(theta)
    for _ in range(10):
        pi = expectation(np.stack(found), pi, x, y)[1]
    return np.stack(found), pi


def predict(thetas, pi, x):
    """Probabilities [n, 2] of the mixture."""
    positive = likelihoods(thetas, x, np.ones(len(x))) @ pi
    return np.stack([1 - positive, positive], axis=1)
