"""Logistic regression in NumPy, which most references train; θ holds the weights and the bias, [d + 1]."""

import numpy as np


def with_bias(x):
    """Features with a constant last, [n, d + 1]."""
    return np.column_stack([x, np.ones(len(x))])


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def probability(theta, x):
    """Of the label 1, [n]."""
    return sigmoid(x @ theta[:-1] + theta[-1])


def predict(theta, x):
    """Probabilities of both classes, [n, 2]."""
    positive = probability(theta, x)
    return np.stack([1 - positive, positive], axis=1)


def gradient(theta, x, y):
    """Of the mean loss, [d + 1]."""
    error = probability(theta, x) - y
    return np.append(error @ x, error.sum()) / len(y)


def sgd(theta, x, y, batches, lr, momentum=0.0, weight_decay=0.0):
    """The model after a step on each batch, an array of positions; empty ones are passed over."""
    velocity = 0.0
    for batch in filter(len, batches):
        velocity = momentum * velocity + gradient(theta, x[batch], y[batch]) + weight_decay * theta
        theta = theta - lr * velocity
    return theta
