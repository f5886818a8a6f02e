"""FedADMM in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias; `solver` are settings of SGD, or None for exact solves.
"""

import numpy as np
from references.logistic import exact, sgd


def near(start, client, centre, rho, batches, solver, linear=0.0):
    """argmin f(x) + ⟨linear, x⟩ + ρ/2·‖x − centre‖², or SGD on it."""
    x, y = client
    added = lambda theta: linear + rho * (theta - centre)  # noqa: E731
    return exact(start, x, y, 1.0, added, rho) if solver is None else sgd(start, x, y, batches, added=added, **solver)


def fedadmm_round(theta, ws, ys, clients, batches, *, rho, lr, present, from_server=False, weights=None, solver=None):
    """One round; returns θ, and the w_i and y_i of all clients."""
    ws, ys, changes = list(ws), list(ys), []
    for i in present:
        old = ws[i] + ys[i] / rho
        ws[i] = near(theta if from_server else ws[i], clients[i], theta, rho, batches[i], solver, ys[i])
        ys[i] = ys[i] + rho * (ws[i] - theta)
        changes.append(ws[i] + ys[i] / rho - old)
    share = None if weights is None else [weights[i] for i in present]
    return theta + lr * np.average(changes, axis=0, weights=share), ws, ys
