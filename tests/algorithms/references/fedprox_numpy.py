"""FedProx's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient


def inexact_solve(anchor, x, y, batches, *, lr, prox_weight, inexactness=None, momentum=0.0, weight_decay=0.0):
    """SGD on h(w) = F(w) + μ/2‖w − anchor‖² until ‖∇h(w)‖ <= γ‖∇h(anchor)‖; returns w and the steps taken."""
    w, velocity, steps = anchor.copy(), np.zeros_like(anchor), 0
    for batch in batches:
        slope = np.linalg.norm(gradient(w, x, y) + prox_weight * (w - anchor))
        if inexactness is not None and slope <= inexactness * np.linalg.norm(gradient(anchor, x, y)):
            break
        step = gradient(w, x[batch], y[batch]) + prox_weight * (w - anchor) + weight_decay * w
        velocity = momentum * velocity + step
        w, steps = w - lr * velocity, steps + 1
    return w, steps


def exact_solve(anchor, x, y, prox_weight):
    """The minimiser of h by Newton's method."""
    w, features = anchor.copy(), np.hstack([x, np.ones((len(x), 1))])
    for _ in range(30):
        p = 1 / (1 + np.exp(-features @ w))
        hessian = features.T @ (features * (p * (1 - p))[:, None]) / len(y) + prox_weight * np.eye(len(w))
        w = w - np.linalg.solve(hessian, gradient(w, x, y) + prox_weight * (w - anchor))
    return w


def fedprox_round(theta, clients, batches, *, cohort=None, uniform=False, **options):
    """One round; a client that stands twice in the cohort counts twice. Returns the model and the steps of each."""
    cohort = list(range(len(clients))) if cohort is None else cohort
    solved = [inexact_solve(theta, *clients[one], batches[one], **options) for one in cohort]
    weights = [1.0 if uniform else len(clients[one][1]) for one in cohort]
    return np.average([w for w, _ in solved], axis=0, weights=weights), [steps for _, steps in solved]
