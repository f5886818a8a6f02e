"""Per-FedAvg's round and its adaptation in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient, with_bias


def hessian(theta, x):
    features = with_bias(x)
    positive = 1 / (1 + np.exp(-features @ theta))
    return (features * (positive * (1 - positive))[:, None]).T @ features / len(x)


def meta_gradient(theta, x, y, step, variant, inner_lr, difference):
    """The gradient of f(w − α∇f(w)) from the batches D, D′ and (but for FO) D″ of a step."""
    tuned = theta - inner_lr * gradient(theta, x[step[0]], y[step[0]])
    u = gradient(tuned, x[step[1]], y[step[1]])
    if variant == "first_order":
        return u
    third = x[step[2]], y[step[2]]
    if variant == "exact":
        return u - inner_lr * hessian(theta, third[0]) @ u
    ahead, behind = gradient(theta + difference * u, *third), gradient(theta - difference * u, *third)
    return u - inner_lr * (ahead - behind) / (2 * difference)


def per_fedavg_round(
    theta, clients, batches, *, variant, inner_lr, difference, lr, momentum=0.0, weight_decay=0.0, present=None
):
    """One round; `batches` are, for each client, arrays [K, B] of positions, and absent clients take no part."""
    models = []
    for i in range(len(clients)) if present is None else present:
        (x, y), w, velocity = clients[i], theta, 0.0
        for step in batches[i]:
            slope = meta_gradient(w, x, y, step, variant, inner_lr, difference) + weight_decay * w
            velocity = momentum * velocity + slope
            w = w - lr * velocity
        models.append(w)
    return np.mean(models, axis=0)


def adapt(theta, x, y, inner_lr, steps=1):
    """Gradient steps on all samples."""
    for _ in range(steps):
        theta = theta - inner_lr * gradient(theta, x, y)
    return theta
