"""FedPD in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias; `solver` are settings of SGD, or None for exact solves.
"""

import numpy as np
from references.logistic import exact, sgd


def near(start, client, centre, rho, batches, solver, linear=0.0):
    """argmin f(x) + ⟨linear, x⟩ + ρ/2·‖x − centre‖², or SGD on it."""
    x, y = client
    added = lambda theta: linear + rho * (theta - centre)  # noqa: E731
    return exact(start, x, y, 1.0, added, rho) if solver is None else sgd(start, x, y, batches, added=added, **solver)


def fedpd_round(xs, duals, centres, clients, batches, *, eta, communicates, weights=None, solver=None):
    """One iteration; returns the x_i, λ_i and x_0,i of all clients."""
    xs = [
        near(x, client, centre, 1 / eta, own, solver, dual)
        for x, client, centre, own, dual in zip(xs, clients, centres, batches, duals, strict=True)
    ]
    duals = [dual + (x - centre) / eta for dual, x, centre in zip(duals, xs, centres, strict=True)]
    centres = [x + eta * dual for x, dual in zip(xs, duals, strict=True)]
    if communicates:
        centres = [np.average(centres, axis=0, weights=weights)] * len(xs)
    return xs, duals, centres
