"""Alternating proximal steps in NumPy: logistic regression trained towards the average of all models.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def prox_sgd(model, anchor, x, y, batches, prox_weight, lr, **solver):
    """SGD on the log-loss plus prox_weight/2·‖model − anchor‖²."""
    return sgd(model, x, y, batches, lr, added=lambda model: prox_weight * (model - anchor), **solver)


def prox_avg_round(models, average, clients, batches, present, everyone_counts, **options):
    """One round.

    Args:
        models: of every client.
        average: what the server sent.
        clients: (x, y) of every client.
        batches: of every client.
        present: clients that take part.
        everyone_counts: whether the average is over all clients, or over those present.
        options: of `prox_sgd`.

    Returns:
        The models and their average, weighted by samples.
    """
    models = list(models)
    for i in present:
        models[i] = prox_sgd(models[i], average, *clients[i], batches[i], **options)
    counted = range(len(models)) if everyone_counts else present
    return models, np.average([models[i] for i in counted], axis=0, weights=[len(clients[i][1]) for i in counted])
