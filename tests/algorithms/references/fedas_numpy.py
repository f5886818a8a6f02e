"""FedAS's round in NumPy, written from the paper alone; a body is the first BODY numbers of a model."""

import numpy as np
from references.objectives_numpy import descend, slope
from references.two_layers import BODY, cross_entropies, features, outputs


def loss(theta, x, y):
    return cross_entropies(outputs(theta, x), y).mean()


def aligned(theta, before, x, y, batches, align_lr, **options):
    """The received body of theta after steps towards the class means of the features of the model `before`."""
    means = {c: features(before, x[y == c]).mean(0) for c in np.unique(y)}

    def objective(body, rows):
        z = features(np.concatenate([body, theta[BODY:]]), x[rows])
        return sum(((z[y[rows] == c] - means[c]) ** 2).mean() for c in np.unique(y[rows]))

    body = descend(objective, theta[:BODY], batches, **options | {"lr": align_lr})
    return np.concatenate([body, theta[BODY:]])


def fedas_round(body, own, clients, align, train, fisher, *, align_lr, present, **options):
    """The new body and all own models; the batches of each stage."""
    after, traces = list(own), {}
    for i in present:
        x, y = clients[i]
        theta = aligned(np.concatenate([body, own[i][BODY:]]), own[i], x, y, align[i], align_lr, **options)
        after[i] = descend(lambda one, rows, x=x, y=y: loss(one, x[rows], y[rows]), theta, train[i], **options)
        slopes = [slope(lambda one, x=x[rows], y=y[rows]: loss(one, x, y), after[i]) for rows in fisher[i]]
        traces[i] = sum((one**2).sum() for one in slopes)
    return sum(trace * after[i][:BODY] for i, trace in traces.items()) / sum(traces.values()), after
