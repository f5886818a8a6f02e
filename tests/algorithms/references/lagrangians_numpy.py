"""Augmented Lagrangians as papers print them, in NumPy: sums over all clients, of which every update is a derivative.

Models are vectors; `fits` are the clients' losses, functions of one model.
"""

from itertools import pairwise

import numpy as np
from references.objectives_numpy import half_square, slope


# ---------------------------------------------------------------------- a weak consensus
def sharing(fits, x, z, y, *, lam, rho):
    """Σ_i (f_i(x_i) + λ/2·‖x_i‖²) − λN/2·‖z‖² + ⟨y, Nz − Σ_i x_i⟩ + ρ/2·‖Nz − Σ_i x_i‖²."""
    gap = len(x) * z - sum(x)
    own = sum(fit(one) + lam * half_square(one) for fit, one in zip(fits, x, strict=True))
    return own - lam * len(x) * half_square(z) + y @ gap + rho * half_square(gap)


def sharing_by_copies(fits, x, copies, z, y, ties, *, lam, rho, rho_i):
    """The same for copies x'_i in the constraint, plus Σ_i (⟨y_i, x'_i − x_i⟩ + ρ_i/2·‖x'_i − x_i‖²)."""
    gaps = [copy - one for copy, one in zip(copies, x, strict=True)]
    tied = sum(tie @ gap + rho_i * half_square(gap) for tie, gap in zip(ties, gaps, strict=True))
    own = sum(fit(one) + lam * half_square(one) for fit, one in zip(fits, x, strict=True))
    gap = len(x) * z - sum(copies)
    return own - lam * len(x) * half_square(z) + tied + y @ gap + rho * half_square(gap)


# ---------------------------------------------------------------------- a chain
def path(places):
    """Client 0, then always the client nearest to the last one that is not in the path yet."""
    found = [0]
    while len(found) < len(places):
        left = [one for one in range(len(places)) if one not in found]
        found.append(min(left, key=lambda one: np.linalg.norm(places[one] - places[found[-1]])))
    return found


def stretch(x, order):
    """½·Σ ‖x_a − x_b‖² over the links of a chain."""
    return sum(half_square(x[a] - x[b]) for a, b in pairwise(order))


def chained(fits, x, terms, order, *, rho):
    """Σ_i (f_i(x_i) + ⟨a_i, x_i⟩) + ρ/2·Σ ‖x_a − x_b‖² over the links; a_i is λ_i − λ_{i−1} of client i."""
    own = sum(fit(one) + term @ one for fit, one, term in zip(fits, x, terms, strict=True))
    return own + rho * stretch(x, order)


def replaced(values, i, value):
    """The list with another value at one place."""
    return [*values[:i], value, *values[i + 1 :]]


def ascended(terms, x, order, rho):
    """The terms after λ_i <- λ_i + ρ(x_i − x_{i+1}) on every link: a_i + ρ·∂/∂x_i of the stretch."""
    pulls = (slope(lambda one, i=i: stretch(replaced(x, i, one), order), x[i]) for i in range(len(x)))
    return [term + rho * pull for term, pull in zip(terms, pulls, strict=True)]
