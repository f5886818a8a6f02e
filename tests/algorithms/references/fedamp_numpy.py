"""FedAMP and HeurFedAMP in NumPy: logistic regressions, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def attraction(ws, sigma, step):
    """Cloud models u_i = w_i − α·Σ_{j≠i} A'(‖w_i − w_j‖²)(w_i − w_j) with A(x) = 1 − exp(−x/σ)."""
    clouds = []
    for i, own in enumerate(ws):
        cloud = own.copy()
        for j, other in enumerate(ws):
            if j != i:
                slope = np.exp(-((own - other) ** 2).sum() / sigma) / sigma
                cloud = cloud - step * slope * (own - other)
        clouds.append(cloud)
    return clouds


def by_cosines(ws, sigma, own_share):
    """Cloud models of HeurFedAMP."""
    clouds = []
    for i, own in enumerate(ws):
        scores = [np.exp(sigma * own @ other / np.linalg.norm(own) / np.linalg.norm(other)) for other in ws]
        total = sum(score for j, score in enumerate(scores) if j != i)
        others = sum(score / total * ws[j] for j, score in enumerate(scores) if j != i)
        clouds.append(own_share * own + (1 - own_share) * others)
    return clouds


def fedamp_round(ws, clouds, clients, batches, *, pull, present, **solver):
    """The models after a round in which the clients `present` train, each pulled towards its cloud model."""
    ws = list(ws)
    for i in present:
        ws[i] = sgd(ws[i], *clients[i], batches[i], added=lambda w, i=i: pull * (w - clouds[i]), **solver)
    return ws
