"""FedSplit in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias; `solver` are settings of SGD, or None for exact solves.
"""

import numpy as np
from references.logistic import exact, sgd


def near(start, client, centre, rho, batches, solver, linear=0.0):
    """argmin f(x) + ⟨linear, x⟩ + ρ/2·‖x − centre‖², or SGD on it."""
    x, y = client
    added = lambda theta: linear + rho * (theta - centre)  # noqa: E731
    return exact(start, x, y, 1.0, added, rho) if solver is None else sgd(start, x, y, batches, added=added, **solver)


def fedsplit_round(x, zs, clients, batches, *, rho, weights=None, solver=None):
    """The new common model and the new z_j."""
    halves = [
        near(x, *one, rho, own, solver)
        for one, own in zip(((client, 2 * x - z) for client, z in zip(clients, zs, strict=True)), batches, strict=True)
    ]
    zs = [z + 2 * (half - x) for z, half in zip(zs, halves, strict=True)]
    return np.average(zs, axis=0, weights=weights), zs
