"""FL+HC in NumPy: hierarchical clustering by trying all pairs, and FedAvg within clusters; from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd

METRICS = {
    "euclidean": lambda a, b: np.sqrt(((a - b) ** 2).sum()),
    "manhattan": lambda a, b: np.abs(a - b).sum(),
    "cosine": lambda a, b: 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b),
}


def gap(one, other, points, linkage, metric):
    """Distance of two sets of points."""
    if linkage == "ward":
        a, b = points[one].mean(0), points[other].mean(0)
        return np.sqrt(2 * len(one) * len(other) / (len(one) + len(other)) * ((a - b) ** 2).sum())
    pairs = [METRICS[metric](points[i], points[j]) for i in one for j in other]
    return {"single": np.min, "complete": np.max, "average": np.mean}[linkage](pairs)


def clusters(points, linkage, metric, threshold, most):
    """The cluster of each point, numbered by first points."""
    sets = [[i] for i in range(len(points))]
    while len(sets) > 1:
        pairs = [(gap(a, b, points, linkage, metric), a, b) for k, a in enumerate(sets) for b in sets[k + 1 :]]
        nearest, a, b = min(pairs, key=lambda pair: pair[0])
        if nearest > threshold and len(sets) <= most:
            break
        sets = sorted([*(one for one in sets if one not in (a, b)), sorted(a + b)])
    labels = np.zeros(len(points), dtype=int)
    for number, members in enumerate(sorted(sets)):
        labels[members] = number
    return labels


def average_round(models, labels, clients, batches, *, present, **solver):
    """FedAvg within each cluster; `models` [C], `labels` [T]."""
    models = list(models)
    trained = {i: sgd(models[labels[i]], *clients[i], batches[i], **solver) for i in present}
    for c in range(len(models)):
        members = [i for i in present if labels[i] == c]
        if members:
            sizes = [len(clients[i][1]) for i in members]
            models[c] = np.average([trained[i] for i in members], axis=0, weights=sizes)
    return models
