"""L2GD in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

from itertools import groupby

import numpy as np
from references.logistic import gradient, sgd


def l2gd_round(models, mean, coins, clients, batches, *, lr, p, prox_weight, n, momentum=0.0, weight_decay=0.0):
    """The flips of one round.

    Args:
        models: x_i of every client.
        mean: the mean that everyone knows, or None if a local step has changed it.
        coins: 1 for an averaging step.
        clients: (x, y) of every client.
        batches: for each run of local steps, the batches of every client.
        lr: α.
        p: probability of an averaging step.
        prox_weight: λ.
        n: what divides both step sizes: N, or 1 in the scaling of a sum over clients.
        momentum: momentum, fresh in each run of local steps.
        weight_decay: weight decay.

    Returns:
        The new models, the mean that everyone knows, and how often it was communicated.
    """
    runs, communications, previous = iter(batches), 0, True
    for coin in coins:
        if coin:
            if mean is None:
                mean, communications = np.mean(models, axis=0), communications + 1
            gamma = lr * prox_weight / (n * p)
            models = [(1 - gamma) * model + gamma * mean for model in models]
        else:
            if previous:
                run, step, velocities = next(runs), 0, [0.0] * len(models)
            for i, (model, (x, y)) in enumerate(zip(models, clients, strict=True)):
                slope = gradient(model, x[run[i][step]], y[run[i][step]]) + weight_decay * model
                velocities[i] = momentum * velocities[i] + slope
            models = [model - lr / (n * (1 - p)) * velocity for model, velocity in zip(models, velocities, strict=True)]
            mean, step = None, step + 1
        previous = coin
    return models, mean, communications


def l2sgd_plus_round(models, tables, shifts, coins, clients, batches, *, lr, p, prox_weight, n):
    """The flips of one round of L2SGD+: lists of x_i, J_i [m, d + 1] and Ψ_i, all changed in place."""
    runs = iter(batches)
    for coin, flips in groupby(coins):
        steps, run = len(list(flips)), None if coin else next(runs)
        for step in range(steps):
            mean = np.mean(models, axis=0)
            for i, (x, table, (features, y)) in enumerate(zip(models, tables, clients, strict=True)):
                if coin:
                    slope = prox_weight / (n * p) * (x - mean) - (1 / p - 1) / n * shifts[i] + table.mean(0) / n
                    shifts[i] = prox_weight * (x - mean)
                else:
                    rows = run[i][step]
                    fresh = np.stack([gradient(x, features[[j]], y[[j]]) for j in rows])
                    slope = (fresh - table[rows]).mean(0) / (n * (1 - p)) + table.mean(0) / n + shifts[i] / n
                    table[rows] = fresh
                models[i] = x - lr * slope


def tune(mean, x, y, batches, lr, prox_weight):
    """The model of a client that was not in training."""
    return sgd(mean, x, y, batches, lr, added=lambda theta: prox_weight * (theta - mean))


def mixture_solution(curvatures, centres, prox_weight):
    """Minimisers x_i of Σ a_i/2·(x_i − c_i)² + λ/2·(x_i − mean)², in closed form."""
    a, c = np.array(curvatures), np.array(centres)
    weights = a / (a + prox_weight)
    z = (weights * c).sum() / weights.sum()
    return (a * c + prox_weight * z) / (a + prox_weight)
