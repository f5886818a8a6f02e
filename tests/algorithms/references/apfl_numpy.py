"""APFL in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient, probability


def local(w, v, alpha, x, y, batches, *, lr, update, momentum=0.0, weight_decay=0.0):
    """Local steps of one client: its copy of the global model, its own model and its mixing weight afterwards."""
    of_w, of_v = np.zeros_like(w), np.zeros_like(v)
    for step, batch in enumerate(batches):
        mixed = gradient(alpha * v + (1 - alpha) * w, x[batch], y[batch])
        slope = (v - w) @ mixed
        of_w = momentum * of_w + gradient(w, x[batch], y[batch]) + weight_decay * w
        of_v = momentum * of_v + alpha * mixed + weight_decay * v
        w, v = w - lr * of_w, v - lr * of_v
        if update == "every_step" or (update == "first_step" and step == 0):
            alpha = min(max(alpha - lr * slope, 0.0), 1.0)
    return w, v, alpha


def apfl_round(w, own, alphas, clients, batches, *, present=None, **options):
    """One round; returns the new global model, the clients' own models and their mixing weights."""
    present = range(len(own)) if present is None else present
    own, alphas, sent = list(own), list(alphas), []
    for i in present:
        copy, own[i], alphas[i] = local(w, own[i], alphas[i], *clients[i], batches[i], **options)
        sent.append(copy)
    return np.mean(sent, axis=0), own, alphas


def predict(w, v, alpha, x):
    """Probabilities of both classes, [n, 2]."""
    positive = probability(alpha * v + (1 - alpha) * w, x)
    return np.stack([1 - positive, positive], axis=1)
