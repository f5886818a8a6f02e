"""FedLC's round in NumPy, by pairwise margins, written from the paper alone."""

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import mean_by_samples, outputs


def calibrated(scores, y, counts, tau, with_true):
    """log Σ_c exp(f_c − f_y + τ·(n_y^{−1/4} − n_c^{−1/4})) of one sample, over the classes that the client has."""
    total = 0.0
    for c, count in enumerate(counts):
        if count and (with_true or c != y):
            total = total + np.exp(scores[c] - scores[y] + tau * (counts[y] ** -0.25 - count**-0.25))
    return np.log(total)


def fedlc_round(w, clients, batches, *, tau, with_true, present, **options):
    """The new global model."""
    sent = {}
    for i in present:
        counts = np.bincount(clients[i][1], minlength=3)

        def objective(theta, rows, x=clients[i][0], y=clients[i][1], counts=counts):
            pairs = zip(outputs(theta, x[rows]), y[rows], strict=True)
            return np.mean([calibrated(scores, label, counts, tau, with_true) for scores, label in pairs])

        sent[i] = descend(objective, w, batches[i], **options)
    return mean_by_samples(sent, clients)
