"""Algorithm 5 in NumPy, for logistic regression; written from the paper alone.

Models are rows [M, d + 1] whose last entry is the bias; clients are the first axis of `us`. An instance is a function
`build(u, v, x, y)` that gives a client's new v and a function `gradient(u, rows)` of its surrogate on a batch.
"""

import numpy as np


def decentralized_round(us, vs, clients, batches, build, matrix, *, lr, momentum=0.0, weight_decay=0.0, shares=None):
    """One round with all clients.

    Args:
        us: models of every client, [T, M, d + 1].
        vs: the local variable of every client.
        clients: (x, y) of every client.
        batches: of every client, the rows of each of its batches.
        build: the instance.
        matrix: W, [T, T].
        lr: learning rate.
        momentum: momentum, fresh in every round.
        weight_decay: weight decay.
        shares: factor on the surrogate of every client.

    Returns:
        The new models and the new local variables.
    """
    trained, new_vs = us.copy(), []
    for t, (v, (x, y), own) in enumerate(zip(vs, clients, batches, strict=True)):
        v, gradient = build(us[t], v, x, y)
        new_vs.append(v)
        velocity = 0.0
        for rows in own:
            slope = (1.0 if shares is None else shares[t]) * gradient(trained[t], rows)
            velocity = momentum * velocity + slope + weight_decay * trained[t]
            trained[t] = trained[t] - lr * velocity
    return np.tensordot(matrix, trained, axes=1), new_vs


def identity(u, v, x, y):
    """FedAvg: the surrogate is the local loss itself, without a local variable."""
    x = np.hstack([x, np.ones((len(x), 1))])

    def gradient(u, rows):
        return (1 / (1 + np.exp(-(x[rows] @ u.T))) - y[rows][:, None]).T @ x[rows] / len(rows)

    return v, gradient
