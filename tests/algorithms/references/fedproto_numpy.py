"""FedProto's round in NumPy, written from the paper alone; a prototype of a class is None before anybody has it."""

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import CLASSES, cross_entropies, features, outputs


def class_mean(z, y, j):
    return z[y == j].mean(0)


def training_loss(theta, x, y, prototypes, weight, distance):
    loss, z = cross_entropies(outputs(theta, x), y).mean(), features(theta, x)
    if distance == "samples":
        known = [(row, prototypes[j]) for row, j in zip(z, y, strict=True) if prototypes[j] is not None]
        return loss + weight * sum(((row - one) ** 2).mean() for row, one in known) / len(y)
    for j, prototype in enumerate(prototypes):
        if prototype is not None and (y == j).any():
            away = class_mean(z, y, j) - prototype
            loss = loss + weight * (away * away).mean()
    return loss


def train(theta, x, y, batches, prototypes, weight, distance, **options):
    return descend(
        lambda moved, rows: training_loss(moved, x[rows], y[rows], prototypes, weight, distance),
        theta, batches, **options,
    )  # fmt: skip


def fedproto_round(own, prototypes, clients, batches, *, weight, distance, present, **options):
    """All own models, and the prototypes: Σ_i |D_ij|/N_j · C_i^(j)."""
    after = list(own)
    for i in present:
        after[i] = train(own[i], *clients[i], batches[i], prototypes, weight, distance, **options)
    new = list(prototypes)
    for j in range(CLASSES):
        having = [i for i in present if (clients[i][1] == j).any()]
        total = sum((clients[i][1] == j).sum() for i in having)
        if having:
            means = {i: class_mean(features(after[i], clients[i][0]), clients[i][1], j) for i in having}
            new[j] = sum((clients[i][1] == j).sum() / total * mean for i, mean in means.items())
    return after, new


def nearest(theta, x, prototypes):
    """Probabilities of all classes, by the squared distances to the prototypes there are."""
    z = features(theta, x)
    chances = np.zeros((len(x), CLASSES))
    for j, prototype in enumerate(prototypes):
        if prototype is not None:
            chances[:, j] = np.exp(-((z - prototype) ** 2).sum(1))
    return chances / chances.sum(1, keepdims=True)
