"""FedCAC in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias, a leaf of its own.
"""

import numpy as np
from references.logistic import sgd


def critical(before, after, tau):
    """The critical parameters of the weights and of the bias."""
    mask = np.zeros(len(before), dtype=bool)
    for leaf in (slice(0, -1), slice(-1, None)):
        sensitivity = np.abs((after[leaf] - before[leaf]) * after[leaf])
        count = int(tau * len(sensitivity))
        if count:
            mask[leaf] = sensitivity >= np.sort(sensitivity)[-count]
    return mask


def fedcac_round(starts, clients, batches, t, *, tau, beta, present, **solver):
    """The common model, the new starts of all clients, and the trained models of those that took part."""
    trained = {i: sgd(starts[i], *clients[i], batches[i], **solver) for i in present}
    masks = {i: critical(starts[i], trained[i], tau) for i in present}
    overlap = {
        (i, j): 1 - (masks[i] ^ masks[j]).sum() / (2 * max(masks[i].sum(), 1))
        for i in present for j in present if i != j
    }  # fmt: skip
    common = np.average([trained[i] for i in present], axis=0, weights=[len(clients[i][1]) for i in present])
    starts = list(starts)
    for i in present:
        together = [i]
        if overlap:
            average, most = np.mean(list(overlap.values())), max(overlap.values())
            bound = average + t / beta * (most - average)
            together += [j for j in present if j != i and overlap[i, j] >= bound - 1e-9]
        starts[i] = np.where(masks[i], np.mean([trained[j] for j in together], axis=0), common)
    return common, starts, trained
