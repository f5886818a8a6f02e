"""SCAFFOLD's round in NumPy: logistic regression, written from the paper alone.

A model, and a control, is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient


def scaffold_round(
    theta, control, controls, clients, batches, *, lr, option="II", server_lr=1.0, present=None, by_samples=False,
    stale_fill=False, momentum=0.0, weight_decay=0.0,
):  # fmt: skip
    """One round.

    Args:
        theta: the global model x, [d + 1].
        control: c, [d + 1].
        controls: c_i of every client.
        clients: (x, y) of every client.
        batches: the batches of every client.
        lr: the local step size.
        option: `I` or `II`.
        server_lr: the server's step size.
        present: clients that take part; None: all.
        by_samples: weights n_i/n in the place of 1/N.
        stale_fill: the absent count with the global model.
        momentum: of the local steps.
        weight_decay: of the local steps.

    Returns:
        The new model, the new c and all c_i.
    """
    present = range(len(clients)) if present is None else present
    sizes = np.array([len(y) if by_samples else 1.0 for _, y in clients])
    share_of_round, share_of_all = sizes / sizes[list(present)].sum(), sizes / sizes.sum()
    move, drift, after = np.zeros_like(theta), np.zeros_like(theta), list(controls)
    for i in present:
        local, velocity = theta.copy(), np.zeros_like(theta)
        for batch in batches[i]:
            slope = gradient(local, clients[i][0][batch], clients[i][1][batch]) - controls[i] + control
            velocity = momentum * velocity + slope + weight_decay * local
            local = local - lr * velocity
        if option == "I":
            after[i] = gradient(theta, *clients[i])
        elif batches[i]:
            after[i] = controls[i] - control + (theta - local) / (len(batches[i]) * lr)
        move += (share_of_all if stale_fill else share_of_round)[i] * (local - theta)
        drift += share_of_all[i] * (after[i] - controls[i])
    return theta + server_lr * move, control + drift, after
