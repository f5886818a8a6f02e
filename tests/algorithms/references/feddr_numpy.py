"""FedDR in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias; `solver` are settings of SGD, or None for exact solves.
"""

import numpy as np
from references.logistic import exact, sgd


def near(start, client, centre, rho, batches, solver, linear=0.0):
    """argmin f(x) + ⟨linear, x⟩ + ρ/2·‖x − centre‖², or SGD on it."""
    x, y = client
    added = lambda theta: linear + rho * (theta - centre)  # noqa: E731
    return exact(start, x, y, 1.0, added, rho) if solver is None else sgd(start, x, y, batches, added=added, **solver)


def feddr_round(common, xs, ys, reflected, clients, batches, *, rho, alpha, l1=0.0, weights=None, present, solver=None):
    """One round; the server averages the last reflections of all users.

    Returns:
        The common model, and the x_i, y_i and 2x_i − y_i of all users.
    """
    xs, ys, reflected = list(xs), list(ys), list(reflected)
    for i in present:
        ys[i] = ys[i] + alpha * (common - xs[i])
        xs[i] = near(xs[i], clients[i], ys[i], rho, batches[i], solver)
        reflected[i] = 2 * xs[i] - ys[i]
    mean = np.average(reflected, axis=0, weights=weights)
    return np.sign(mean) * np.maximum(np.abs(mean) - l1 / rho, 0), xs, ys, reflected
