"""Federated distillation's round in NumPy, written from the paper alone.

`told` holds for each class what the server knows: the mean outputs of each client of the last round that had the class.
"""

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import CLASSES, cross_entropies, log_softmax, outputs


def teachers(told, i):
    """For each class the mean of the other clients; None without any."""
    others = [[mean for j, mean in by_client.items() if j != i] for by_client in told]
    return [np.mean(means, axis=0) if means else None for means in others]


def train(theta, x, y, batches, teacher, weight, distance, **options):
    def objective(moved, rows):
        scores = outputs(moved, x[rows])
        total = cross_entropies(scores, y[rows]).sum()
        for own, label in zip(scores, y[rows], strict=True):
            aim = teacher[label]
            if aim is not None and distance == "mse":
                total = total + weight * ((own - aim) ** 2).mean()
            elif aim is not None:
                total = total - weight * np.exp(log_softmax(aim)) @ log_softmax(own)
        return total / len(y[rows])

    return descend(objective, theta, batches, **options)


def feddistill_round(own, told, clients, batches, *, weight, distance, present, **options):
    """All own models, and what the server knows."""
    after, new = list(own), list(told)
    for i in present:
        after[i] = train(own[i], *clients[i], batches[i], teachers(told, i), weight, distance, **options)
    for label in range(CLASSES):
        having = {i: clients[i][1] == label for i in present if (clients[i][1] == label).any()}
        if having:
            new[label] = {i: outputs(after[i], clients[i][0])[rows].mean(0) for i, rows in having.items()}
    return after, new
