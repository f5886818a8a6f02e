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


def sgd(theta, x, y, batches, lr, momentum=0.0, weight_decay=0.0, added=None):
    """The model after a step on each batch, an array of positions; empty ones are passed over.

    `added`(θ) is the gradient of terms beside the mean loss.
    """
    velocity = 0.0
    for batch in filter(len, batches):
        slope = gradient(theta, x[batch], y[batch]) + weight_decay * theta
        velocity = momentum * velocity + slope + (added(theta) if added else 0.0)
        theta = theta - lr * velocity
    return theta


def exact(theta, x, y, share, added, curvature):
    """argmin share·f(θ) + terms with the gradient `added`(θ) and a constant curvature, by damped Newton steps."""
    features = with_bias(x)
    for _ in range(100):
        slope = share * gradient(theta, x, y) + added(theta)
        p = sigmoid(features @ theta)
        hessian = share * features.T @ (features * (p * (1 - p))[:, None]) / len(y) + curvature * np.eye(len(theta))
        step, size = np.linalg.solve(hessian, slope), 1.0
        while size > 1e-6:
            new = theta - size * step
            if np.linalg.norm(share * gradient(new, x, y) + added(new)) <= np.linalg.norm(slope):
                break
            size /= 2
        theta = theta - size * step
    return theta


def inexact(theta, x, y, share, added, batches, **solver):
    """SGD on the same objective divided by the share."""
    return sgd(theta, x, y, batches, added=lambda theta: added(theta) / share, **solver)
