"""pFedFDA in NumPy, written from the paper; folds, means and covariances sample by sample."""

import numpy as np
from references.objectives_numpy import descend
from references.two_layers import BODY, CLASSES, WIDTH, cross_entropies, features, mean_by_samples, outputs


def prior(y):
    share = np.array([np.mean(y == c) for c in range(CLASSES)]) + 1e-4
    return share / share.sum()


def lda_head(means, cov, share):
    """The numbers of the last layer: log N(z; μ_c, Σ) + log π_c, without what all classes have in common."""
    weight = means @ np.linalg.inv(cov)
    bias = [np.log(share[c]) - means[c] @ weight[c] / 2 for c in range(CLASSES)]
    return np.concatenate([weight.ravel(), bias])


def log_density(z, mean, cov):
    away = z - mean
    return -np.einsum("ij,jk,ik->i", away, np.linalg.inv(cov), away) / 2


def fitted(z, y, received, ridge):
    means = np.array([z[y == c].mean(0) if (y == c).any() else received[0][c] for c in range(CLASSES)])
    scatter = sum(
        (np.outer(one - means[c], one - means[c]) for one, c in zip(z, y, strict=True)), np.zeros((WIDTH, WIDTH))
    )
    return means, scatter / max(len(y) - 1, 1) + ridge * np.eye(WIDTH)


def between(received, own, beta):
    return [(1 - b) * there + b * here for there, here, b in zip(received, own, beta, strict=True)]


def best_beta(z, y, received, ridge, separate, grid):
    """The pair of the least cross-entropy of a two-fold cross-validation, whose folds alternate in each class."""
    fold = np.array([(y[:n] == c).sum() % 2 for n, c in enumerate(y)], dtype=int)
    twice = np.array([(y == c).sum() > 1 for c in y], dtype=bool)
    values = np.linspace(0, 1, grid)
    pairs = [(a, b) for a in values for b in values if separate or a == b]

    def loss(pair):
        total = 0.0
        for k in (0, 1):
            held = twice & (fold == k)
            means, cov = between(received, fitted(z[twice & ~held], y[twice & ~held], received, ridge), pair)
            scores = np.array([log_density(z[held], mean, cov) for mean in means]).T + np.log(prior(y))
            total += cross_entropies(scores, y[held]).sum()
        return total

    return min(pairs, key=loss)


def mixed(theta, x, y, received, ridge, separate, grid):
    z = features(theta, x)
    beta = best_beta(z, y, received, ridge, separate, grid)
    return (*between(received, fitted(z, y, received, ridge), beta), beta)


def pfedfda_round(body, received, clients, batches, *, present, fits, **options):
    """The new body, means and covariance, and β of each client."""
    bodies, means, covs, betas = {}, {}, {}, {}
    for i in present:
        x, y = clients[i]
        head = lda_head(*received, prior(y))

        def objective(one, rows, x=x, y=y, head=head):
            return cross_entropies(outputs(np.concatenate([one, head]), x[rows]), y[rows]).mean()

        bodies[i] = descend(objective, body, batches[i], **options)
        means[i], covs[i], betas[i] = mixed(np.concatenate([bodies[i], head]), x, y, received, **fits)
    return *(mean_by_samples(one, clients) for one in (bodies, means, covs)), betas


def served_head(body, x, y, received, fits):
    means, cov, _ = mixed(np.concatenate([body, np.zeros(WIDTH * CLASSES + CLASSES)]), x, y, received, **fits)
    return lda_head(means, cov, prior(y))


__all__ = ["BODY", "pfedfda_round", "served_head"]
