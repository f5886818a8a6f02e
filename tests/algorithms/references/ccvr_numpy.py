"""CCVR in NumPy, written from the paper: pooled features and singular values in the place of moments."""

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import BODY, CLASSES, WIDTH, cross_entropies, features, head, mean_by_samples, outputs


def fedavg_round(theta, clients, batches, present, **options):
    def objective(moved, rows, x, y):
        return cross_entropies(outputs(moved, x[rows]), y[rows]).mean()

    sent = {
        i: descend(lambda moved, rows, i=i: objective(moved, rows, *clients[i]), theta, batches[i], **options)
        for i in present
    }
    return mean_by_samples(sent, clients)


def merged(parts):
    """Mean and covariance of a class from those of each client: N_{c,k}, μ_{c,k}, Σ_{c,k} (Equation 4)."""
    total = sum(n for n, _, _ in parts)
    mean = sum(n * mu for n, mu, _ in parts) / total
    if total == 1:
        return mean, np.zeros((WIDTH, WIDTH))
    cov = sum((n - 1) * one + n * np.outer(mu, mu) for n, mu, one in parts) / (total - 1)
    return mean, cov - total / (total - 1) * np.outer(mean, mean)


def gaussians(theta, clients):
    """N_c, μ_c and a matrix R_c with R_c R_cᵀ = Σ_c of each class; None for one without samples."""
    found = []
    for c in range(CLASSES):
        own = [features(theta, x[y == c]) for x, y in clients if (y == c).any()]
        if not own:
            found.append(None)
            continue
        covs = [np.cov(z.T) if len(z) > 1 else np.zeros((WIDTH, WIDTH)) for z in own]
        mean, cov = merged([(len(z), z.mean(0), one) for z, one in zip(own, covs, strict=True)])
        _, singular, axes = np.linalg.svd(np.concatenate(own) - mean, full_matrices=False)
        root = axes.T @ np.diag(singular) @ axes / np.sqrt(max(sum(map(len, own)) - 1, 1))
        np.testing.assert_allclose(root @ root, cov, atol=1e-12)  # the paper's merge is the covariance of all
        found.append((sum(map(len, own)), mean, root))
    return found


def calibrated(theta, z, y, batches, lr):
    """The head after steps on virtual features."""

    def objective(phi, rows):
        return cross_entropies(head(np.concatenate([theta[:BODY], phi]), z[rows]), y[rows]).mean()

    return descend(objective, theta[BODY:], batches, lr=lr)
