"""Decentralised SGD in NumPy: gradients at the clients' models, and a matrix written from the list of edges."""

import numpy as np


def lazy(edges, present):
    """Weights 1/(1 + max degree) of the edges between clients that take part; the diagonal takes the rest."""
    degrees = np.bincount(np.array(edges).ravel(), minlength=len(present))
    matrix = np.zeros((len(present), len(present)))
    for a, b in edges:
        if present[a] and present[b]:
            matrix[a, b] = matrix[b, a] = 1 / (1 + max(degrees[a], degrees[b]))
    return matrix + np.diag(1 - matrix.sum(1))


def rounds(models, gradient, edges, cohorts, rate, order):
    """The models [T, d] after each round; absent clients take no step.

    Args:
        models: x_i, [T, d].
        gradient: (i, x_i) -> its gradient [d].
        edges: pairs of clients.
        cohorts: ids of the clients of each round.
        rate: γ.
        order: `parallel` or `after`.
    """
    found = []
    for cohort in cohorts:
        present = np.isin(np.arange(len(models)), cohort)
        steps = np.array([-rate * gradient(i, x) if present[i] else 0 * x for i, x in enumerate(models)])
        matrix = lazy(edges, present)
        models = matrix @ models + steps if order == "parallel" else matrix @ (models + steps)
        found.append(models)
    return found
