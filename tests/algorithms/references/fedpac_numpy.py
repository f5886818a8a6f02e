"""FedPAC's round in NumPy, written from the paper alone; the quadratic program by trying all supports."""

from itertools import combinations

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import BODY, CLASSES, cross_entropies, features, mean_by_samples, outputs


def loss(theta, x, y):
    return cross_entropies(outputs(theta, x), y).mean()


def train_head(body, phi, x, y, batches, **options):
    return descend(lambda one, rows: loss(np.concatenate([body, one]), x[rows], y[rows]), phi, batches, **options)


def train_body(body, phi, x, y, batches, aims, weight, **options):
    def objective(one, rows):
        z = features(np.concatenate([one, phi]), x[rows])
        pulled = [((row - aims[label]) ** 2).mean() for row, label in zip(z, y[rows], strict=True)]
        return loss(np.concatenate([one, phi]), x[rows], y[rows]) + weight * np.mean(pulled)

    return descend(objective, body, batches, **options)


def statistics(z, y):
    """p_k μ_k of each class, and the variance (Σ_k p_k tr E[ff^T | k] − Σ_k p_k² ‖μ_k‖²)/n."""
    h, spread = np.zeros((CLASSES, z.shape[1])), 0.0
    for k in np.unique(y):
        p, own = np.mean(y == k), z[y == k]
        h[k] = p * own.mean(0)
        spread += p * np.trace(own.T @ own / len(own)) - p**2 * (own.mean(0) ** 2).sum()
    return h, spread / len(y)


def on_the_simplex(q):
    """The best α of all supports on which the stationary point is not negative."""
    best, value = None, np.inf
    for size in range(1, len(q) + 1):
        for support in combinations(range(len(q)), size):
            part = q[np.ix_(support, support)]
            found = np.linalg.lstsq(part, np.ones(size), rcond=None)[0]
            alpha = np.zeros(len(q))
            alpha[list(support)] = found / found.sum()
            if (alpha >= -1e-12).all() and alpha @ q @ alpha < value:
                best, value = alpha, alpha @ q @ alpha
    return best


def fedpac_round(body, heads, centroids, clients, of_head, of_body, *, weight, head_lr, present, lr, **options):
    """The new body, all heads, and the centroids by class."""
    bodies, trained, h, v = {}, {}, {}, {}
    for i in present:
        x, y = clients[i]
        z = features(np.concatenate([body, heads[i]]), x)
        h[i], v[i] = statistics(z, y)
        aims = {k: centroids.get(k, z[y == k].mean(0)) for k in np.unique(y)}
        trained[i] = train_head(body, heads[i], x, y, of_head[i], lr=head_lr, **options)
        pull = weight if centroids else 0.0  # nothing is aligned before the first centroids
        bodies[i] = train_body(body, trained[i], x, y, of_body[i], aims, pull, lr=lr, **options)
    new, after = dict(centroids), list(heads)
    for k in range(CLASSES):
        rows = [features(np.concatenate([bodies[i], trained[i]]), clients[i][0][clients[i][1] == k]) for i in present]
        if sum(map(len, rows)):
            new[k] = np.concatenate(rows).mean(0)
    for i in present:
        d = [[((h[i] - h[j]) * (h[i] - h[m])).sum() for m in present] for j in present]
        alpha = on_the_simplex(np.diag([v[j] for j in present]) + np.array(d))
        after[i] = sum(share * trained[j] for share, j in zip(alpha, present, strict=True))
    return mean_by_samples(bodies, clients), after, new


def split(theta):
    return theta[:BODY], theta[BODY:]
