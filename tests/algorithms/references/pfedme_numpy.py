"""pFedMe's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np


def derivatives(theta, x, y):
    """Gradient and Hessian of the mean log-loss."""
    features = np.column_stack([x, np.ones(len(x))])
    positive = 1 / (1 + np.exp(-features @ theta))
    curvature = features.T @ np.diag(positive * (1 - positive)) @ features / len(y)
    return features.T @ (positive - y) / len(y), curvature


def search(start, anchor, x, y, prox_weight, inner_steps, inner_lr, exact):
    """Near the minimum of the loss plus prox_weight/2·‖θ − anchor‖²."""
    theta = start
    for _ in range(50 if exact else inner_steps):
        slope, curvature = derivatives(theta, x, y)
        slope = slope + prox_weight * (theta - anchor)
        if exact:
            theta = theta - np.linalg.solve(curvature + prox_weight * np.eye(len(theta)), slope)
        else:
            theta = theta - inner_lr * slope
    return theta


def local_updates(
    w, x, y, batches, *, lr, prox_weight, inner_steps, inner_lr, exact, warm_start, momentum=0.0, weight_decay=0.0
):
    """A client's part of a round: its copy of the global model and its personal one."""
    local, personal, velocity = w, w, 0.0
    for batch in batches:
        start = personal if warm_start else local
        personal = search(start, local, x[batch], y[batch], prox_weight, inner_steps, inner_lr, exact)
        velocity = momentum * velocity + prox_weight * (local - personal) + weight_decay * local
        local = local - lr * velocity
    return local, personal


def pfedme_round(w, personals, clients, batches, *, server_mix, present=None, **settings):
    """One round; returns the global model and all personal ones."""
    present = range(len(clients)) if present is None else present
    personals, locals_ = list(personals), []
    for i in present:
        local, personals[i] = local_updates(w, *clients[i], batches[i], **settings)
        locals_.append(local)
    return (1 - server_mix) * w + server_mix * np.mean(locals_, axis=0), personals
