"""A round of agnostic federated learning in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np


def project(v):
    """The nearest point of the simplex, by bisection for the threshold."""
    low, high = v.min() - 1.0, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - (low + high) / 2, 0)


def loss_and_gradient(theta, x, y):
    """Mean log-loss and its gradient."""
    features = np.column_stack([x, np.ones(len(x))])
    positive = 1 / (1 + np.exp(-features @ theta))
    loss = -np.mean(y * np.log(positive) + (1 - y) * np.log(1 - positive))
    return loss, features.T @ (positive - y) / len(y)


def afl_round(theta, weights, clients, *, model_lr, weight_lr):
    """New model [d + 1] and new client weights [T]."""
    losses, gradients = zip(*(loss_and_gradient(theta, x, y) for x, y in clients), strict=True)
    return theta - model_lr * weights @ np.stack(gradients), project(weights + weight_lr * np.array(losses))
