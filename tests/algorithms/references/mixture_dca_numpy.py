"""Accelerated DCA in NumPy for logistic regression, on the product space of all clients' models.

The objective is F = G − H with G(x) = Σ_i (share_i·f_i(x_i) + λ/2·‖x_i‖²) and H(x) = λN/2·‖x̄‖²; a point is [N, d + 1].
"""

import numpy as np
from references.logistic import exact, inexact, probability


def objective(x, clients, shares, lam):
    """F(x) by its definition, over whole models."""
    total = lam / 2 * np.square(x - x.mean(0)).sum()
    for own, (features, y), share in zip(x, clients, shares, strict=True):
        p = probability(own, features)
        total -= share * np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    return total


def dca_rounds(start, clients, lam, rounds, *, shares=None, q=None, sgd=None, batches=None):
    """The points x^1, x^2, …, and which extrapolated ones were taken; q=None: without acceleration.

    `batches` gives the batches of each client in a round, for SGD from the last x_i with the options `sgd`.
    """
    N = len(clients)
    shares = shares or [1.0] * N
    x = v = np.stack([start] * N)
    t, points, values, taken = 1.0, [], [], []
    for k in range(1, rounds + 1):
        slope, new = lam * v.mean(0), []  # ∇H(v)_i
        for i, (features, y) in enumerate(clients):
            added = lambda theta, slope=slope: lam * theta - slope  # noqa: E731
            if sgd is None:
                new.append(exact(x[i], features, y, shares[i], added, lam))
            else:
                new.append(inexact(x[i], features, y, shares[i], added, batches(k)[i], **sgd))
        new = np.stack(new)
        following = (1 + np.sqrt(1 + 4 * t**2)) / 2
        z = new + (t - 1) / following * (new - x)
        values.append(objective(new, clients, shares, lam))
        fits = q is not None and objective(z, clients, shares, lam) <= max(values[-(q + 1) :])
        x, v, t = new, z if fits else new, following
        points.append(x)
        taken.append(fits)
    return points, v, taken
