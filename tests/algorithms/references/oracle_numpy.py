"""One FedAvg per group in NumPy: logistic regressions, written from the definition alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import probability, sgd


def oracle_round(thetas, groups, clients, batches, *, present, **solver):
    """One round of every group's FedAvg with the clients `present`; a group without any keeps its model."""
    new = list(thetas)
    for g, theta in enumerate(thetas):
        members = [i for i in present if groups[i] == g]
        if members:
            models = [sgd(theta, *clients[i], batches[i], **solver) for i in members]
            new[g] = np.average(models, axis=0, weights=[len(clients[i][1]) for i in members])
    return new


def closest_group(thetas, x, y):
    """The group whose model has the lowest loss."""
    losses = [-np.log(np.where(y == 1, probability(theta, x), 1 - probability(theta, x))).sum() for theta in thetas]
    return int(np.argmin(losses))
