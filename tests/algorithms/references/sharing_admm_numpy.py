"""Sharing ADMM's round in NumPy: ridge penalties, squared or logistic losses, written from the paper alone.

Party i has a matrix A_i [n, d_i]; the last column of the first party's is the constant, which has no penalty.
"""

import numpy as np


def sharing_round(xs, z, u, A, b, *, rho, mu, logistic=False):
    """One round.

    Args:
        xs: weights of each party.
        z: what the mean of all A_i·x_i should be, [n].
        u: scaled dual variable, [n].
        A: features of each party.
        b: labels; with logistic losses -1 and 1.
        rho: ρ.
        mu: weight of ½·‖x_i‖².
        logistic: whether the loss is logistic.

    Returns:
        The new xs, z and u.
    """
    N, fits = len(A), [own @ x for own, x in zip(A, xs, strict=True)]
    mean, new = sum(fits) / N, []
    for i, own in enumerate(A):
        penalty = mu * np.eye(own.shape[1])
        if i == 0:
            penalty[-1, -1] = 0
        wanted = fits[i] + z - mean - u
        new.append(np.linalg.solve(penalty + rho * own.T @ own, rho * own.T @ wanted))
    mean = sum(own @ x for own, x in zip(A, new, strict=True)) / N
    if logistic:
        z = np.array([bisect(lambda s, j=j: z_slope(s, mean[j] + u[j], b[j], N, rho)) for j in range(len(b))])
    else:
        z = (b + rho * (u + mean)) / (N + rho)
    return new, z, u + mean - z


def z_slope(z, point, label, N, rho):
    """Derivative of log(1 + exp(−label·N·z)) + N·ρ/2·(z − point)²."""
    return -label * N / (1 + np.exp(label * N * z)) + N * rho * (z - point)


def bisect(function, lo=-100.0, hi=100.0):
    for _ in range(200):
        middle = (lo + hi) / 2
        lo, hi = (lo, middle) if function(middle) > 0 else (middle, hi)
    return (lo + hi) / 2
