"""FedU's round in NumPy: logistic regressions tied by a graph, written from the paper alone.

Models are rows [T, d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient


def fedu_round(models, clients, batches, edges, strength, *, lr, momentum=0.0, weight_decay=0.0, shares=None):
    """One round.

    Args:
        models: w of every client, [T, d + 1].
        clients: (x, y) of every client.
        batches: of every client, the rows of each of its batches; None for one that is absent.
        edges: adjacency, [T, T].
        strength: μ̃η, the step of the pull.
        lr: learning rate.
        momentum: momentum, fresh in every round.
        weight_decay: weight decay.
        shares: factor on the loss of every client.

    Returns:
        The new models.
    """
    trained = models.copy()
    for i, ((x, y), own) in enumerate(zip(clients, batches, strict=True)):
        velocity = 0.0
        for rows in own or []:
            slope = (1.0 if shares is None else shares[i]) * gradient(trained[i], x[rows], y[rows])
            velocity = momentum * velocity + slope + weight_decay * trained[i]
            trained[i] = trained[i] - lr * velocity
    after = trained.copy()
    present = [i for i, own in enumerate(batches) if own is not None]
    for i in present:
        for j in present:
            after[i] = after[i] - strength * edges[i, j] * (trained[i] - trained[j])
    return after


def fixed_point(hessians, slopes, edges, strength, lr):
    """Where models rest under one full step on ½w'Hw − b'w and one pull in each round, [T, d].

    Args:
        hessians: H of every client, [T, d, d].
        slopes: b of every client, [T, d].
        edges: adjacency, [T, T].
        strength: step of the pull.
        lr: learning rate.
    """
    slopes = np.array(slopes, dtype=float)
    num_clients, size = slopes.shape
    blocks = np.zeros((num_clients, size, num_clients, size))
    for i, hessian in enumerate(hessians):
        blocks[i, :, i] = hessian
    pull = np.eye(num_clients) - strength * (np.diag(edges.sum(axis=1)) - edges)
    pull = np.kron(pull, np.eye(size))
    identity = np.eye(num_clients * size)
    step = identity - lr * blocks.reshape(identity.shape)
    return np.linalg.solve(identity - pull @ step, pull @ (lr * slopes.ravel())).reshape(slopes.shape)
