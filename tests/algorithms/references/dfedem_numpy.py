"""D-FedEM's round in NumPy: mixtures of logistic regressions without a server, written from the paper alone.

The components of a client are rows [M, d + 1] whose last entry is the bias; clients are the first axis of `thetas`.
"""

import numpy as np
from references.logistic import sigmoid, with_bias


def metropolis(edges, present=None):
    """A mixing matrix: an edge gets 1 over the larger degree, and the diagonal the rest.

    Args:
        edges: adjacency, [T, T].
        present: whether each client takes part; None: all do.
    """
    degrees = edges.sum(axis=1)
    matrix = np.zeros_like(edges)
    for i, j in zip(*np.nonzero(edges), strict=True):
        if present is None or (present[i] and present[j]):
            matrix[i, j] = 1 / max(degrees[i], degrees[j])
    return matrix + np.diag(1 - matrix.sum(axis=1))


def expectation(theta, pi, x, y):
    """Responsibilities [n, M], the new mixture weights [M] and the mean negative log-likelihood under the old ones."""
    positive = sigmoid(x @ theta.T)
    joint = pi * np.where(y[:, None] == 1, positive, 1 - positive)
    total = joint.sum(axis=1, keepdims=True)
    return joint / total, (joint / total).mean(axis=0), -np.log(total).mean()


def dfedem_round(thetas, pis, clients, batches, matrix, *, lr, momentum=0.0, weight_decay=0.0, shares=None):
    """One round.

    Args:
        thetas: components of every client, [T, M, d + 1].
        pis: mixture weights of every client, [T, M].
        clients: (x, y) of every client.
        batches: of every client, the rows of each of its batches; None for one that is absent.
        matrix: W, [T, T].
        lr: learning rate.
        momentum: momentum, fresh in every round.
        weight_decay: weight decay.
        shares: factor on the loss of every client.

    Returns:
        The new components, the new mixture weights, and each client's mean negative log-likelihood under the old ones.
    """
    thetas, pis, likelihoods = thetas.copy(), pis.copy(), np.zeros(len(pis))
    for t, ((x, y), own) in enumerate(zip(clients, batches, strict=True)):
        if own is None:
            continue
        x = with_bias(x)
        q, pis[t], likelihoods[t] = expectation(thetas[t], pis[t], x, y)
        velocity = 0.0
        for rows in own:
            error = q[rows] * (sigmoid(x[rows] @ thetas[t].T) - y[rows][:, None])
            gradient = (1.0 if shares is None else shares[t]) * error.T @ x[rows] / len(rows)
            velocity = momentum * velocity + gradient + weight_decay * thetas[t]
            thetas[t] = thetas[t] - lr * velocity
    return np.einsum("ij,jmd->imd", matrix, thetas), pis, likelihoods


def predict(theta, pi, x):
    """Mixed probabilities of both classes, [n, 2]."""
    positive = sigmoid(with_bias(x) @ theta.T) @ pi
    return np.stack([1 - positive, positive], axis=1)
