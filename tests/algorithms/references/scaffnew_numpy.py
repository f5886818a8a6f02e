"""Scaffnew in NumPy, written from the paper alone: iterations with a coin each, as printed.

A model, and a control variate, is a vector.
"""

import numpy as np


def scaffnew(xs, hs, coins, gradients, weights, *, p, lr):
    """Iterations of all clients.

    Args:
        xs: models x_i.
        hs: control variates h_i.
        coins: θ_t.
        gradients: g_i(t, x) of each client at iteration t.
        weights: of the clients in the mean.
        p: the probability of a 1.
        lr: γ.

    Returns:
        The new x_i and h_i.
    """
    for t, coin in enumerate(coins):
        ahead = [x - lr * (g(t, x) - h) for x, h, g in zip(xs, hs, gradients, strict=True)]
        xs = [np.average(ahead, axis=0, weights=weights)] * len(xs) if coin else ahead
        hs = [h + p / lr * (x - before) for h, x, before in zip(hs, xs, ahead, strict=True)]
    return xs, hs
