"""UCFL in NumPy: logistic regressions, written from the paper alone; k-means by trying all divisions.

A model is a vector [d + 1] whose last entry is the bias.
"""

from itertools import product

import numpy as np
from references.logistic import gradient, sgd


def variance(theta, x, y, division):
    """σ²: how far the gradients of the batches of a division [n] are from that of all samples."""
    mean = gradient(theta, x, y)
    batches = [division == k for k in np.unique(division)]
    return np.mean([((gradient(theta, x[one], y[one]) - mean) ** 2).sum() for one in batches])


def weights(gradients, variances, sizes):
    """Rows of w_ij, with variances of 0 replaced by the mean of the others."""
    known = variances > 1e-12
    sigma = np.sqrt(np.where(known, variances, variances[known].mean()))
    rows = np.zeros((len(sizes), len(sizes)))
    for i in range(len(sizes)):
        for j in range(len(sizes)):
            distance = ((gradients[i] - gradients[j]) ** 2).sum()
            rows[i, j] = sizes[j] / sizes[i] * np.exp(-distance / (2 * sigma[i] * sigma[j]))
    return rows / rows.sum(1, keepdims=True)


def k_means(rows, k):
    """The labels with the smallest sum of squares within clusters, of all there are."""
    best = np.inf, None
    for labels in product(range(k), repeat=len(rows)):
        labels = np.array(labels)
        if len(set(labels)) == k:
            clusters = [rows[labels == one] for one in range(k)]
            spread = sum(((one - one.mean(0)) ** 2).sum() for one in clusters)
            best = min(best, (spread, labels), key=lambda pair: pair[0])
    return best[1]


def silhouette(rows, labels):
    """Mean over points of (b − a) / max(a, b), 0 for a point alone in its cluster."""
    scores = []
    for i, own in enumerate(labels):
        distance = np.linalg.norm(rows - rows[i], axis=1)
        if (labels == own).sum() == 1:
            scores.append(0.0)
            continue
        a = distance[labels == own].sum() / ((labels == own).sum() - 1)
        b = min(distance[labels == other].mean() for other in set(labels) - {own})
        scores.append((b - a) / max(a, b))
    return np.mean(scores)


def streams(rows, number):
    """(row of each client's stream, label of each client) for a number of streams, "personal" or "silhouette"."""
    if number == "personal":
        return rows, np.arange(len(rows))
    if number == "silhouette":
        candidates = [k_means(rows, k) for k in range(2, len(rows))]
        labels = max(candidates, key=lambda one: silhouette(rows, one))
    else:
        labels = k_means(rows, number)
    return np.stack([rows[labels == own].mean(0) for own in labels]), labels


def ucfl_round(thetas, rows, labels, clients, batches, *, present, fill=False, **solver):
    """A round: thetas [T] of the clients, of which those in `present` train, are combined by `rows` [T, T]."""
    sent = {j: sgd(thetas[j], *clients[j], batches[j], **solver) for j in present}
    new = []
    for i, theta in enumerate(thetas):
        total = sum(rows[i, j] for j in present)
        combined = sum(rows[i, j] * sent[j] for j in present)
        if fill:
            new.append(combined + (1 - total) * theta)
        else:
            new.append(combined / total if labels[i] in {labels[j] for j in present} else theta)
    return new
