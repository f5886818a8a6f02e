"""MOON's round in NumPy, written from the paper alone."""

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import cross_entropies, features, mean_by_samples, outputs


def cosine(a, b):
    """Of each row; 0 for a row of zeros."""
    norms = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return (a * b).sum(-1) / np.where(norms == 0, 1, norms)


def moon_round(w, previous, clients, batches, *, mu, tau, present, **options):
    """The new global model and the last own model of every client."""
    sent, after = {}, list(previous)
    for i in present:

        def objective(theta, rows, x=clients[i][0], y=clients[i][1], before=previous[i]):
            z, z_global, z_previous = (features(model, x[rows]) for model in (theta, w, before))
            near, far = (np.exp(cosine(z, other) / tau) for other in (z_global, z_previous))
            contrast = -np.log(near / (near + far))
            return (cross_entropies(outputs(theta, x[rows]), y[rows]) + mu * contrast).mean()

        sent[i] = after[i] = descend(objective, w, batches[i], **options)
    return mean_by_samples(sent, clients), after
