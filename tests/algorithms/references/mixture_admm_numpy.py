"""Three forms of MixtureADMM's round in NumPy: logistic regression, written from the update rules alone.

A model is a vector [d + 1] whose last entry is the bias. Sums over clients are taken anew, over whole models.
"""

import numpy as np
from references.logistic import exact, inexact, with_bias


class Solver:
    """Minimises share·f(θ) + Σ_k weight_k/2·‖θ − anchor_k‖² − ⟨dual, θ⟩, exactly or by SGD on it over its share."""

    def __init__(self, clients, batches, samples=False, sgd=None):
        self.clients, self.batches, self.sgd = clients, batches, sgd
        total = sum(len(y) for _, y in clients)
        self.shares = [len(clients) * len(y) / total if samples else 1.0 for _, y in clients]

    def __call__(self, i, theta, terms, dual=0.0):
        (x, y), share = self.clients[i], self.shares[i]

        def added(theta):
            return sum(w * (theta - anchor) for w, anchor in terms) - dual

        if self.sgd is not None:
            return inexact(theta, x, y, share, added, self.batches[i], **self.sgd)
        return exact(theta, x, y, share, added, sum(w for w, _ in terms))


def start(theta, N):
    """The state before the first round."""
    return {"x": [theta] * N, "z": theta, "y": np.zeros_like(theta)}


def mixture_admm_round(state, solve, *, form, lam, rho=0.0, beta=0.0, present=None):
    """One round of one form; absent clients keep everything."""
    x = list(state["x"])
    z, y, N, zero = state["z"], state["y"], len(state["x"]), np.zeros_like(state["z"])
    present = range(N) if present is None else present
    if form == "alternating_prox":
        for i in present:
            x[i] = solve(i, x[i], [(lam, z)])
        return state | {"x": x, "z": np.mean(x, axis=0)}
    for i in present:
        seen = state["x"] if form == "jacobi" else x
        others = sum(seen[j] for j in range(N) if j != i)
        x[i] = solve(i, x[i], [(lam, zero), (rho, N * z - others)], y)
    total = sum(x)
    z = (rho * total - y) / (rho * N - lam)
    return {"x": x, "z": z, "y": y + beta * (N * z - total)}


def mixture_solution(clients, lam, *, bias=True):
    """Where all forms lead for least squares: x_i = (H_i + λI)^-1 (H_i c_i + λz), z their mean; rows [N, d], and z."""
    pulls, targets = [], []
    for x, y in clients:
        features = with_bias(x) if bias else x
        pulls.append(np.linalg.inv(features.T @ features / len(y) + lam * np.eye(features.shape[1])))
        targets.append(features.T @ y / len(y))
    offset = np.mean([pull @ target for pull, target in zip(pulls, targets, strict=True)], axis=0)
    z = np.linalg.solve(np.eye(len(offset)) - lam * np.mean(pulls, axis=0), offset)
    return np.stack([pull @ (target + lam * z) for pull, target in zip(pulls, targets, strict=True)]), z
