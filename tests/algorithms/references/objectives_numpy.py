"""Objectives of logistic regressions as papers print them, as plain sums in NumPy; no derivative is written by hand.

A model is a vector [d + 1] whose last entry is the bias. Slopes are taken by complex steps: Im f(θ + ih·e_k) / h has no
difference in it that could cancel, so with a tiny h it is ∂f/∂θ_k up to rounding.
"""

import numpy as np

STEP = 1e-40


def scores(theta, x):
    return x @ theta[:-1] + theta[-1]


def losses(theta, x, y):
    """−log p(y | x, θ) of each sample."""
    s = scores(theta, x)
    return np.log(1 + np.exp(s)) - y * s


def loss(theta, x, y):
    return losses(theta, x, y).mean()


def half_square(vector):
    """½‖·‖², without the absolute values that a complex step must not meet."""
    return (vector * vector).sum() / 2


def slope(objective, point):
    """∇objective at a point of any shape."""
    found = np.empty(np.shape(point))
    for place in np.ndindex(*found.shape):
        moved = np.array(point, dtype=complex)
        moved[place] += 1j * STEP
        found[place] = objective(moved).imag / STEP
    return found


def argmin(objective, point):
    """The minimiser [d] of a convex objective: Newton's steps, with differences of slopes for the curvature."""
    for _ in range(100):
        down = slope(objective, point)
        moved = [slope(objective, point + 1e-5 * axis) for axis in np.eye(len(point))]
        step = np.linalg.solve((np.stack(moved) - down) / 1e-5, down)
        point = point - step / max(1.0, np.linalg.norm(step))
        if np.linalg.norm(step) < 1e-12:
            break
    return point


def descend(objective, point, batches, *, lr, momentum=0.0, weight_decay=0.0):
    """SGD on an objective of a point and the rows of a batch."""
    velocity = np.zeros_like(point)
    for rows in batches:
        velocity = momentum * velocity + slope(lambda moved, rows=rows: objective(moved, rows), point)
        velocity = velocity + weight_decay * point
        point = point - lr * velocity
    return point
