"""Mean-regularised multi-task learning in NumPy: logistic regressions as the columns of one matrix.

The regulariser is differentiated as λ/2·tr(W Ω Wᵀ) with the centring matrix Ω, column by column, the others frozen.
"""

import numpy as np
from references.logistic import gradient, sgd


def mtl_round(columns, clients, batches, mean_weight, present, lr, momentum=0.0, weight_decay=0.0):
    """One round; `columns` is W, [d + 1, N]."""
    num_clients = columns.shape[1]
    omega = np.eye(num_clients) - np.ones((num_clients, num_clients)) / num_clients
    after = columns.copy()
    for i in present:
        x, y = clients[i]
        frozen, velocity = columns.copy(), 0.0
        for batch in batches[i]:
            slope = gradient(frozen[:, i], x[batch], y[batch])
            slope += mean_weight * (frozen @ omega)[:, i] + weight_decay * frozen[:, i]
            velocity = momentum * velocity + slope
            frozen[:, i] -= lr * velocity
        after[:, i] = frozen[:, i]
    return after


def unseen_client(mean, x, y, batches, mean_weight, lr):
    """A client without a column: from the mean, tied to it."""
    return sgd(mean, x, y, batches, lr, added=lambda model: mean_weight * (model - mean))
