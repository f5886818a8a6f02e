"""Algorithm 3 in NumPy with the surrogates of FedEM and of pFedMe, for logistic regression; from the paper alone.

Models are rows [M, d + 1] whose last entry is the bias. An instance is a pair of functions: `build(u, v, x, y)` gives a
client's new v and a function `gradient(u, rows)` of its surrogate on a batch.
"""

import numpy as np
from references.logistic import sigmoid, with_bias


def federated_round(u, vs, clients, batches, build, weights, *, lr, momentum=0.0, weight_decay=0.0):
    """One round with all clients.

    Args:
        u: shared models, [M, d + 1].
        vs: the local variable of every client.
        clients: (x, y) of every client.
        batches: of every client, the rows of each of its batches.
        build: the instance.
        weights: ω of every client, summing to 1.
        lr: learning rate.
        momentum: momentum, fresh in every round.
        weight_decay: weight decay.

    Returns:
        The new u and the new local variables.
    """
    new_u, new_vs = np.zeros_like(u), []
    for v, (x, y), own, weight in zip(vs, clients, batches, weights, strict=True):
        v, gradient = build(u, v, x, y)
        new_vs.append(v)
        moved, velocity = u.copy(), np.zeros_like(u)
        for rows in own:
            velocity = momentum * velocity + gradient(moved, rows) + weight_decay * moved
            moved = moved - lr * velocity
        new_u += weight * moved
    return new_u, new_vs


def mixture(u, v, x, y):
    """FedEM: v are mixture weights, the surrogate is the evidence bound at the posterior of (u, v)."""
    x = with_bias(x)
    positive = sigmoid(x @ u.T)
    joint = v * np.where(y[:, None] == 1, positive, 1 - positive)
    q = joint / joint.sum(axis=1, keepdims=True)

    def gradient(u, rows):
        error = q[rows] * (sigmoid(x[rows] @ u.T) - y[rows][:, None])
        return error.T @ x[rows] / len(rows)

    return q.mean(axis=0), gradient


def moreau(prox_weight):
    """pFedMe: v is the proximal point, which the surrogate takes as fixed."""

    def build(u, v, x, y):
        x, theta = with_bias(x), u[0].copy()
        for _ in range(50):
            p = sigmoid(x @ theta)
            slope = x.T @ (p - y) / len(y) + prox_weight * (theta - u[0])
            curvature = (x * (p * (1 - p))[:, None]).T @ x / len(y) + prox_weight * np.eye(len(theta))
            theta = theta - np.linalg.solve(curvature, slope)
        return theta, lambda u, rows: prox_weight * (u - theta)

    return build
