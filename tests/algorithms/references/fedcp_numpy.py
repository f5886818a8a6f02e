"""FedCP's round in NumPy, written from the paper and the authors' kernel: one loss of body, head and policy."""

import numpy as np
from references.objectives_numpy import slope
from references.two_layers import BODY, CLASSES, WIDTH, cross_entropies, features, head, mean_by_samples

HEAD = CLASSES * WIDTH + CLASSES
SIZES = [2 * WIDTH * WIDTH, 2 * WIDTH, 2 * WIDTH, 2 * WIDTH]
"""Numbers of a linear layer from D to 2D, and of LayerNorm."""


def context(phi):
    total = phi[: CLASSES * WIDTH].reshape(CLASSES, WIDTH).sum(0)
    return total / np.sqrt((total**2).sum())


def policy(theta, z, v):
    """r and s of each sample."""
    weight, bias, scale, shift = np.split(theta, np.cumsum(SIZES)[:-1])
    hidden = (z * v) @ weight.reshape(2 * WIDTH, WIDTH).T + bias
    away = hidden - hidden.mean(1, keepdims=True)
    normal = scale * away / np.sqrt((away * away).mean(1, keepdims=True) + 1e-5) + shift
    raised = np.exp(np.where(normal.real > 0, normal, 0))
    total = raised[:, :WIDTH] + raised[:, WIDTH:]
    return raised[:, :WIDTH] / total, raised[:, WIDTH:] / total


def discrepancy(x, y):
    def kernel(a, b):
        away = ((a[:, None] - b[None]) ** 2).sum(-1)
        return sum(np.exp(-0.5 * away / width) for width in (10, 15, 20, 50))

    return (kernel(x, x) + kernel(y, y) - kernel(x, y) - kernel(y, x)).mean()


def scores(body, phi, everyone, theta, x, v):
    z = features(np.concatenate([body, phi]), x)
    r, s = policy(theta, z, v)
    return head(np.concatenate([body, phi]), r * z) + head(np.concatenate([body, everyone]), s * z)


def train(sent, phi, x, y, batches, *, weight, lr, momentum, weight_decay, rests=False):
    """Body, personal head and policy from the values before each step; with `rests` the head alone."""
    everyone, v, velocity = sent[BODY : BODY + HEAD], context(phi), 0.0
    point, moves = np.concatenate([sent[:BODY], phi, sent[BODY + HEAD :]]), np.ones(len(sent))
    if rests:
        moves[:BODY] = moves[BODY + HEAD :] = 0
    for rows in batches:
        received = features(sent[: BODY + HEAD], x[rows])

        def objective(one, x=x[rows], y=y[rows], received=received):
            body, own, theta = one[:BODY], one[BODY : BODY + HEAD], one[BODY + HEAD :]
            fit = cross_entropies(scores(body, own, everyone, theta, x, v), y).mean()
            return fit + weight * discrepancy(features(one[: BODY + HEAD], x), received)

        velocity = momentum * velocity + slope(objective, point) + weight_decay * point
        point = point - lr * moves * velocity
    return point


def fedcp_round(sent, phis, clients, batches, *, present, **options):
    """The new body, global head and policy, and all personal heads."""
    found, after = {}, list(phis)
    for i in present:
        point = train(sent, phis[i], *clients[i], batches[i], **options)
        after[i] = point[BODY : BODY + HEAD].copy()
        point[BODY : BODY + HEAD] = (after[i] + sent[BODY : BODY + HEAD]) / 2
        found[i] = point
    return mean_by_samples(found, clients), after


def predicted(sent, phi, x):
    return scores(sent[:BODY], phi, sent[BODY : BODY + HEAD], sent[BODY + HEAD :], x, context(phi))
