"""FedNTD's round in NumPy, class by class, written from the paper alone."""

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import cross_entropies, mean_by_samples, outputs


def distillation(local, teacher, y, tau):
    """−Σ_{c ≠ y} q^g(c) log[q^l(c)/q^g(c)] of one sample's logits [C]."""
    kept = [c for c in range(len(local)) if c != y]
    q_local, q_global = (np.exp(scores[kept] / tau) / np.exp(scores[kept] / tau).sum() for scores in (local, teacher))
    return -sum(g * np.log(own / g) for own, g in zip(q_local, q_global, strict=True))


def fedntd_round(w, clients, batches, *, beta, tau, present, **options):
    """The new global model."""
    sent = {}
    for i in present:

        def objective(theta, rows, x=clients[i][0], y=clients[i][1]):
            local, teacher = outputs(theta, x[rows]), outputs(w, x[rows])
            kept = [distillation(*one, tau) for one in zip(local, teacher, y[rows], strict=True)]
            return (cross_entropies(local, y[rows]) + beta * np.array(kept)).mean()

        sent[i] = descend(objective, w, batches[i], **options)
    return mean_by_samples(sent, clients)
