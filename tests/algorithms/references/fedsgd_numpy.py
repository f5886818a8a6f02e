"""FedSGD's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient


def fedsgd_round(theta, velocity, clients, *, lr, momentum=0.0, weight_decay=0.0, uniform=False):
    """One round with these clients, whose server takes a step with momentum; returns the model and the velocity."""
    weights = [1.0 if uniform else len(y) for _, y in clients]
    slope = np.average([gradient(theta, x, y) for x, y in clients], axis=0, weights=weights)
    velocity = momentum * velocity + slope + weight_decay * theta
    return theta - lr * velocity, velocity
