"""kNN-Per's predictions in NumPy, sample by sample, written from the paper alone."""

import numpy as np
from references.two_layers import CLASSES, features, log_softmax, outputs


def neighbours(z, stored, labels, k, squared):
    """p_kNN of one sample's features."""
    away = np.sqrt(((stored - z) ** 2).sum(1))
    away = away**2 / len(z) if squared else away
    chances = np.zeros(CLASSES)
    for i in np.argsort(away, kind="stable")[:k]:
        chances[labels[i]] += np.exp(-away[i])
    return chances / chances.sum()


def predicted(theta, x, own_x, own_y, weight, k, squared):
    """λ·p_kNN + (1 − λ)·p of each sample."""
    stored = features(theta, own_x)
    near = np.stack([neighbours(z, stored, own_y, k, squared) for z in features(theta, x)])
    return weight * near + (1 - weight) * np.exp(log_softmax(outputs(theta, x)))


def best_weight(theta, x, y, k, squared):
    """The λ of a grid with the largest mean log-likelihood of samples that are predicted from the others."""
    found = []
    for weight in np.arange(11) / 10:
        kept = [np.arange(len(y)) != i for i in range(len(y))]
        each = [predicted(theta, x[i : i + 1], x[rows], y[rows], weight, k, squared)[0] for i, rows in enumerate(kept)]
        found.append(np.mean([np.log(np.maximum(one[label], 1e-300)) for one, label in zip(each, y, strict=True)]))
    return np.argmax(found) / 10


def predicted_by_mixture(thetas, pi, x, own_x, own_y, weight, k, squared):
    """The same around a mixture: p of the mixture, and d² = Σ_m π_m ‖φ_m(x) − φ_m(x_i)‖²."""
    z, stored = (np.stack([features(theta, rows) for theta in thetas], axis=1) for rows in (x, own_x))
    away = np.sqrt(np.einsum("m,nimd->ni", pi, (z[:, None] - stored[None]) ** 2))
    model = sum(share * np.exp(log_softmax(outputs(theta, x))) for share, theta in zip(pi, thetas, strict=True))
    away = away**2 / z.shape[-1] if squared else away
    near = np.zeros_like(model)
    for n, row in enumerate(away):
        for i in np.argsort(row, kind="stable")[:k]:
            near[n, own_y[i]] += np.exp(-row[i])
    return weight * near / near.sum(1, keepdims=True) + (1 - weight) * model
