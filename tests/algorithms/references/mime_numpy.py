"""Mime and MimeLite in NumPy: logistic regression, written from the paper with PyTorch's rules of its optimizers.

A model is a vector [d + 1] whose last entry is the bias; statistics are (number of steps, first, second moment).
"""

import numpy as np
from references.logistic import gradient


class Momentum:
    """SGD with momentum and weight decay."""

    def __init__(self, beta, decay=0.0):
        self.beta, self.decay = beta, decay

    def start(self, theta):
        return np.zeros_like(theta)

    def step(self, theta, slope, velocity):
        """The direction of a step, and the statistics after it."""
        velocity = self.beta * velocity + slope + self.decay * theta
        return velocity, velocity


class Adam:
    def __init__(self, betas, eps):
        self.betas, self.eps = betas, eps

    def start(self, theta):
        return 0, np.zeros_like(theta), np.zeros_like(theta)

    def step(self, theta, slope, statistics):
        t, m, v = statistics
        b1, b2 = self.betas
        t, m, v = t + 1, b1 * m + (1 - b1) * slope, b2 * v + (1 - b2) * slope**2
        return m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + self.eps), (t, m, v)


def mime_round(theta, statistics, clients, batches, base, *, lr, corrected, present, sizes=None):
    """One round: the new model and the new statistics; `sizes` weigh the clients."""
    weights = None if sizes is None else [sizes[i] for i in present]
    at_server = np.average([gradient(theta, *clients[i]) for i in present], axis=0, weights=weights)
    locals_ = []
    for i in present:
        y = theta.copy()
        for batch in batches[i]:
            x, labels = clients[i][0][batch], clients[i][1][batch]
            slope = gradient(y, x, labels)
            if corrected:
                slope = slope - gradient(theta, x, labels) + at_server
            y = y - lr * base.step(y, slope, statistics)[0]
        locals_.append(y)
    return np.average(locals_, axis=0, weights=weights), base.step(theta, at_server, statistics)[1]
