"""MOCHA's rounds in NumPy, hinge loss, written from the paper's primal and dual problem alone.

The model of a task is a vector [d + 1] whose last entry is the bias; W has one column per task. Classes are ±1.
"""

import numpy as np
from references.logistic import with_bias


def combined(alphas, clients, costs):
    """B: the column of task t is costs_t·Σ_s α_s·x_s."""
    return np.stack([c * with_bias(x).T @ a for a, (x, _), c in zip(alphas, clients, costs, strict=True)], axis=1)


def overlap(sigma):
    return max(np.abs(row).sum() / row[t] for t, row in enumerate(sigma))


def relations(W, epsilon):
    """(WᵀW)^½ over its trace, with a share of I/N."""
    values, vectors = np.linalg.eigh(W.T @ W)
    root = vectors @ np.diag(np.sqrt(np.clip(values, 0, None))) @ vectors.T
    N = len(root)
    return (root / np.trace(root) + epsilon * np.eye(N) / N) / (1 + epsilon)


def local_steps(w, alpha, x, y, order, reach, cost):
    """Coordinate ascent: each step solves for the α of one sample, with y·α kept in [0, 1].

    Args:
        w: the task's model.
        alpha: its dual variables.
        x: inputs with the constant.
        y: ±1.
        order: samples in the order of the steps.
        reach: ρ·Σ_tt/λ.
        cost: weight of a sample's loss.

    Returns:
        The new dual variables.
    """
    alpha, v = alpha.copy(), w.copy()
    for s in order:
        u = (1 - y[s] * x[s] @ v) / (reach * cost * x[s] @ x[s]) + alpha[s] * y[s]
        new = y[s] * min(max(u, 0), 1)
        v = v + reach * cost * (new - alpha[s]) * x[s]
        alpha[s] = new
    return alpha


def mocha_round(alphas, sigma, clients, orders, *, lam, costs, epsilon=None, present=None):
    """One round.

    Args:
        alphas: dual variables of each task.
        sigma: [N, N].
        clients: (x, y) with classes 0 and 1.
        orders: of each task, the samples of its steps.
        lam: λ.
        costs: of each task, the weight of one sample's loss.
        epsilon: of a new Σ after the round; None leaves it.
        present: tasks that take part.

    Returns:
        The new dual variables and Σ, and W for them.
    """
    rho, W = overlap(sigma), combined(alphas, clients, costs) @ sigma / lam
    alphas = list(alphas)
    for t in range(len(clients)) if present is None else present:
        x, y = clients[t]
        reach = rho * sigma[t, t] / lam
        alphas[t] = local_steps(W[:, t], alphas[t], with_bias(x), 2 * y - 1, orders[t], reach, costs[t])
    B = combined(alphas, clients, costs)
    if epsilon is not None:
        sigma = relations(B @ sigma / lam, epsilon)
    return alphas, sigma, B @ sigma / lam


def objectives(alphas, sigma, clients, *, lam, costs):
    """The primal and the dual objective for hinge losses."""
    B = combined(alphas, clients, costs)
    W = B @ sigma / lam
    penalty = np.sum(B * (B @ sigma)) / (2 * lam)
    primal = dual = 0.0
    for t, (x, y) in enumerate(clients):
        margins = (2 * y - 1) * (with_bias(x) @ W[:, t])
        primal += costs[t] * np.maximum(0, 1 - margins).sum()
        dual += costs[t] * (alphas[t] * (2 * y - 1)).sum()
    return primal + penalty, dual - penalty
