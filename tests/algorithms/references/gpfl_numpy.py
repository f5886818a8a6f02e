"""GPFL's round in NumPy, written from the paper: one loss of body, head, embeddings and valve."""

import numpy as np
from references.objectives_numpy import slope
from references.two_layers import BODY, CLASSES, WIDTH, cross_entropies, features, head, mean_by_samples

SIZES = [CLASSES * WIDTH] + 2 * [WIDTH * WIDTH, WIDTH, WIDTH, WIDTH]
GUIDES = sum(SIZES)
"""How many numbers embeddings and valve have."""


def relu(z):
    return np.where(z.real > 0, z, 0)


def shares(y):
    return np.array([np.mean(y == c) for c in range(CLASSES)])


def embeddings(guides):
    return guides[: SIZES[0]].reshape(CLASSES, WIDTH)


def valve(guides, condition):
    """γ and β: two networks of a linear layer, ReLU and LayerNorm."""
    parts = np.split(guides, np.cumsum(SIZES)[:-1])[1:]
    found = []
    for weight, bias, scale, shift in (parts[:4], parts[4:]):
        hidden = relu(weight.reshape(WIDTH, WIDTH) @ condition + bias)
        away = hidden - hidden.mean()
        found.append(scale * away / np.sqrt((away * away).mean() + 1e-5) + shift)
    return found


def routed(z, gates):
    return relu((gates[0] + 1) * z + gates[1])


def length(rows):
    return np.sqrt((rows * rows).sum(-1))


def loss(theta, guides, x, y, received, weight):
    """L_i of a batch."""
    z, e = features(theta, x), embeddings(guides)
    guided = routed(z, valve(guides, received.mean(0)))
    own = routed(z, valve(guides, weight["shares"] @ received))
    norm = length(guided)
    cosines = (guided / np.where(norm.real > 0, norm, 1)[:, None]) @ (e / length(e)[:, None]).T
    far = length(guided - received[y])
    return (cross_entropies(head(theta, own), y) + cross_entropies(cosines, y) + weight["lambda"] * far).mean()


def train(body, phi, guides, x, y, batches, *, pull, mu, lr, momentum, weight_decay, rests=False):
    """All parts from the values before each step; with `rests` the head alone."""
    received, velocity = embeddings(guides).copy(), 0.0
    weight = {"lambda": pull, "shares": shares(y)}
    point = np.concatenate([body, phi, guides])
    decay = np.full(len(point), weight_decay)
    decay[-GUIDES:] += mu
    moves = np.ones(len(point))
    if rests:
        moves[:] = 0
        moves[BODY : BODY + len(phi)] = 1
    for rows in batches:
        down = slope(
            lambda one, rows=rows: loss(one[:-GUIDES], one[-GUIDES:], x[rows], y[rows], received, weight), point
        )
        velocity = momentum * velocity + down + decay * point
        point = point - lr * moves * velocity
    return point[:BODY], point[BODY:-GUIDES], point[-GUIDES:]


def gpfl_round(sent, phis, clients, batches, *, present, **options):
    """The new body with embeddings and valve behind it, and all heads."""
    found, after = {}, list(phis)
    for i in present:
        body, after[i], guides = train(sent[:BODY], phis[i], sent[BODY:], *clients[i], batches[i], **options)
        found[i] = np.concatenate([body, guides])
    return mean_by_samples(found, clients), after


def predicted(sent, phi, x, y):
    """Of a client whose training samples have the labels y."""
    guides, theta = sent[BODY:], np.concatenate([sent[:BODY], phi])
    gates = valve(guides, shares(y) @ embeddings(guides))
    return head(theta, routed(features(theta, x), gates))
