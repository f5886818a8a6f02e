"""Averages by responsibility and rounds of clustering of FedEM in NumPy, written from the formulas alone.

Mixtures of logistic regressions.

Components are rows [M, d + 1] whose last entry is the bias.
"""

import numpy as np
from references.fedem_numpy import likelihoods
from references.logistic import sigmoid, with_bias


# ---------------------------------------------------------------------- E-steps: q [n, M], π [M], shares [M] or None
def exact(pi, losses, client_id):
    """q ∝ π·p."""
    joint = pi * np.exp(-losses)
    q = joint / joint.sum(axis=1, keepdims=True)
    return q, q.mean(axis=0), None


def clustered(pi, losses, client_id):
    """The component of least mean loss takes all samples; π is the mean of a Dirichlet posterior."""
    (n, num_models), chosen = losses.shape, np.zeros(losses.shape[1])
    chosen[losses.mean(axis=0).argmin()] = 1
    return np.repeat(chosen[None], n, axis=0), (n * chosen + 1) / (n + num_models), chosen


# ---------------------------------------------------------------------- a round
def trained(thetas, q, x, y, batches, lr, momentum=0.0, weight_decay=0.0):
    """The components after weighted steps on each batch."""
    x, velocity = with_bias(x), 0.0
    for rows in batches:
        error = q[rows] * (sigmoid(x[rows] @ thetas.T) - y[rows][:, None])
        velocity = momentum * velocity + error.T @ x[rows] / len(rows) + weight_decay * thetas
        thetas = thetas - lr * velocity
    return thetas


def average(old, new, weights, shares, total):
    """The server's components.

    Args:
        old: before the round, [M, d].
        new: of the clients of the round, [C, M, d].
        weights: of these clients, [C].
        shares: with which each component of a client counts, [C, M].
        total: samples of all clients, of whom the absent ones hold the server's; None: they do not count.
    """
    mass = (weights @ shares)[:, None]
    mean = np.where(mass > 0, np.einsum("c,cm,cmd->md", weights, shares, new) / np.where(mass > 0, mass, 1), old)
    part = 1 if total is None else weights.sum() / total
    return part * mean + (1 - part) * old


def mixture_round(thetas, pis, cohort, clients, batches, e_step=exact, how="samples", total=None, **solver):
    """One round with the clients of a cohort, some of them several times.

    Args:
        thetas: components, [M, d + 1].
        pis: mixture weights of all clients, [T, M].
        cohort: ids.
        clients: (x, y) of all clients.
        batches: of all clients, the rows of each batch.
        e_step: one of those above.
        how: samples or responsibility.
        total: as of `average`.
        solver: of `trained`.

    Returns:
        New components, mixture weights, and the mean negative log-likelihood of a sample under the old weights.
    """
    old_pis, pis, new, shares, losses_of = pis, pis.copy(), [], [], []
    weights = np.array([float(len(clients[t][1])) for t in cohort])
    for t in cohort:
        x, y = clients[t]
        losses = -np.log(likelihoods(thetas, x, y))
        q, pi, share = e_step(old_pis[t], losses, t)
        losses_of.append(-np.log(np.exp(-losses) @ old_pis[t]).mean())
        new.append(trained(thetas, q, x, y, batches[t], **solver))
        if share is None:
            share = np.ones_like(pi) if how == "samples" else pi
        shares.append(share)
        pis[t] = pi
    thetas = average(thetas, np.stack(new), weights, np.stack(shares), total)
    return thetas, pis, np.average(losses_of, weights=weights)
