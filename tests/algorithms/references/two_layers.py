"""A network with one hidden layer of five and three classes in NumPy, as a function of all its numbers in one vector.

Everything here also takes complex numbers, for the slopes of `objectives_numpy`.
"""

import numpy as np

INPUTS, WIDTH, CLASSES = 4, 5, 3
SHAPES = [(WIDTH, INPUTS), (WIDTH,), (CLASSES, WIDTH), (CLASSES,)]
BODY = WIDTH * INPUTS + WIDTH
"""How many numbers lie before the last layer."""


def leaves(theta):
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(theta, ends[:-1]), SHAPES, strict=True)]


def features(theta, x):
    """Inputs of the last layer, [n, WIDTH]."""
    weight, bias, _, _ = leaves(theta)
    before = x @ weight.T + bias
    return np.where(before.real > 0, before, 0)


def head(theta, z):
    _, _, weight, bias = leaves(theta)
    return z @ weight.T + bias


def outputs(theta, x):
    return head(theta, features(theta, x))


def log_softmax(scores):
    moved = scores - scores.real.max(-1, keepdims=True)
    return moved - np.log(np.exp(moved).sum(-1, keepdims=True))


def cross_entropies(scores, y):
    """−log of the softmax at the labels, [n]."""
    return -log_softmax(scores)[np.arange(len(y)), y]


def mean_by_samples(sent, clients):
    """The mean of vectors of some clients, given by their numbers, weighted by samples."""
    return sum(len(clients[i][1]) * one for i, one in sent.items()) / sum(len(clients[i][1]) for i in sent)
