"""CQ-GGADMM's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias. The random numbers of the quantiser come from the caller.
"""

import math

import numpy as np
from references.logistic import exact, inexact


def quantise(delta, R, b, random):
    """The difference on 2^b points from −R to R."""
    if R == 0:
        return np.zeros_like(delta)
    spacing = 2 * R / (2**b - 1)
    q = []
    for value, chance in zip(delta, random, strict=True):
        c = (value + R) / spacing
        q.append(min(math.floor(c) + (chance < c - math.floor(c)), 2**b - 1))
    return spacing * np.array(q) - R


def cqggadmm_round(
    thetas, hats, alphas, grids, clients, batches, random, *, edges, heads, rho, k,
    bits=0, omega=1.0, tau=0.0, xi=0.5, samples=False, solver=None,
):  # fmt: skip
    """One round.

    Args:
        thetas: every client's model.
        hats: what every client has sent last.
        alphas: the signed sum of the multipliers of every client's links.
        grids: (R, b) of what every client has sent last; R = 0 before that.
        clients: (x, y) of every client.
        batches: of every client, by the name of its group.
        random: numbers in [0, 1) of every client, [d + 1].
        edges: adjacency, [T, T].
        heads: whether each client is one.
        rho: the penalty.
        k: number of the round, from 1.
        bits: of the first difference; 0 sends in full.
        omega: decay of the spacing.
        tau: threshold of censoring.
        xi: its decay.
        samples: weigh the losses by numbers of samples.
        solver: settings of SGD; None: exact solves.

    Returns:
        The new thetas, hats, alphas and grids, and who has sent.
    """
    thetas, hats, grids = list(thetas), list(hats), list(grids)
    total, sent = sum(len(y) for _, y in clients), [False] * len(clients)
    for group in ("heads", "tails"):
        told = {}
        for i in [one for one in range(len(clients)) if heads[one] == (group == "heads")]:
            x, y = clients[i]
            share = len(clients) * len(y) / total if samples else 1.0
            near = [j for j in range(len(clients)) if edges[i, j]]
            linear, curvature = alphas[i] - rho * sum(hats[j] for j in near), rho * len(near)

            def added(theta, linear=linear, curvature=curvature):
                return linear + curvature * theta

            if solver is None:
                thetas[i] = exact(thetas[i], x, y, share, added, curvature)
            else:
                thetas[i] = inexact(thetas[i], x, y, share, added, batches[group][i], **solver)
            delta, grid = thetas[i] - hats[i], grids[i]
            if bits:
                R, (last, b) = np.abs(delta).max(), grids[i]
                if last > 0 and R > 0:
                    b = min(max(math.ceil(math.log2(1 + (2**b - 1) * R / (omega * last))), 1), 32)
                delta, grid = quantise(delta, R, b, random[i]), (R, b)
            sent[i] = bool(np.linalg.norm(delta) >= tau * xi**k and not (bits and grid[0] == 0))
            if sent[i]:
                told[i], grids[i] = hats[i] + delta, grid
        for i, hat in told.items():
            hats[i] = hat
    alphas = [
        alphas[i] + rho * sum(hats[i] - hats[j] for j in range(len(clients)) if edges[i, j])
        for i in range(len(clients))
    ]
    return thetas, hats, alphas, grids, sent
