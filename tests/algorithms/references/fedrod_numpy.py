"""FedRoD's round in NumPy, written from the paper alone; a personal head is a vector [CLASSES · WIDTH + CLASSES]."""

import numpy as np
from references.objectives_numpy import slope
from references.two_layers import BODY, cross_entropies, features, head, mean_by_samples, outputs


def personal_head(phi, z):
    return head(np.concatenate([np.zeros(BODY), phi]), z)


def balanced(theta, x, y, counts, gamma):
    """−log[n_y^γ e^{g_y} / Σ_c n_c^γ e^{g_c}], sample by sample."""
    total = 0.0
    for g, label in zip(outputs(theta, x), y, strict=True):
        total = total - np.log(counts[label] ** gamma * np.exp(g[label]) / (counts**gamma * np.exp(g)).sum())
    return total / len(y)


def train(theta, phi, x, y, batches, *, gamma, lr, momentum, weight_decay, rests=False):
    """Both heads and the body from the values before each step; with `rests` the personal head alone."""
    counts, of_theta, of_phi = np.bincount(y, minlength=3).astype(float), 0.0, 0.0
    for rows in batches:
        z, g = features(theta, x[rows]), outputs(theta, x[rows])
        by_phi = slope(lambda one, z=z, g=g, y=y[rows]: cross_entropies(g + personal_head(one, z), y).mean(), phi)
        by_theta = slope(lambda one, x=x[rows], y=y[rows]: balanced(one, x, y, counts, gamma), theta)
        of_phi = momentum * of_phi + by_phi + weight_decay * phi
        of_theta = momentum * of_theta + by_theta + weight_decay * theta
        phi, theta = phi - lr * of_phi, theta if rests else theta - lr * of_theta
    return theta, phi


def fedrod_round(theta, phis, clients, batches, *, present, **options):
    """The new body with its generic head, and all personal heads."""
    sent, after = {}, list(phis)
    for i in present:
        sent[i], after[i] = train(theta, phis[i], *clients[i], batches[i], **options)
    return mean_by_samples(sent, clients), after


def predicted(theta, phi, x):
    return outputs(theta, x) + personal_head(phi, features(theta, x))
