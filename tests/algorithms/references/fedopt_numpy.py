"""The server optimizers of FedOpt in NumPy, over FedAvg's clients: logistic regression, written from the papers alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def averaged_change(x, clients, batches, present, lr, momentum=0.0, all_samples=None):
    """The average of x_i − x by samples; with `all_samples` the absent count with 0."""
    total, count = np.zeros_like(x), 0
    for one in present:
        features, labels = clients[one]
        total = total + len(labels) * (sgd(x, features, labels, batches[one], lr, momentum) - x)
        count += len(labels)
    return total / (all_samples or count)


def adaptive(state, change, method, *, server_lr, tau, beta1, beta2=None):
    """One step of Adagrad, Yogi or Adam from (x, m, v)."""
    x, m, v = state
    m = beta1 * m + (1 - beta1) * change
    squared = change**2
    if method == "adagrad":
        v = v + squared
    elif method == "yogi":
        v = v - (1 - beta2) * squared * np.sign(v - squared)
    else:
        v = beta2 * v + (1 - beta2) * squared
    return x + server_lr * m / (np.sqrt(v) + tau), m, v
