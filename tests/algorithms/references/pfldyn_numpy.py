"""PFLDyn's round in NumPy: logistic regression, with the Jacobian of the meta-function as a matrix.

A model, h and a linear term are vectors [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient
from references.per_fedavg_numpy import hessian


def meta_gradient(theta, x, y, step, inner_lr, inner_steps, exact):
    """Of the loss on D′ after some steps on D."""
    (support, query), jacobian = step, np.eye(len(theta))
    for _ in range(inner_steps):
        jacobian = (np.eye(len(theta)) - inner_lr * hessian(theta, x[support])) @ jacobian
        theta = theta - inner_lr * gradient(theta, x[support], y[support])
    slope = gradient(theta, x[query], y[query])
    return jacobian.T @ slope if exact else slope


def pfldyn_round(theta, terms, clients, batches, *, alpha, inner_lr, inner_steps, exact, present, lr, momentum=0.0):
    """The new θ and the linear terms of all clients, of which h is the mean; those that are absent keep theirs."""
    terms, found = list(terms), []
    for k in present:
        (x, y), local, velocity = clients[k], theta, 0.0
        for step in batches[k]:
            slope = meta_gradient(local, x, y, step, inner_lr, inner_steps, exact)
            velocity = momentum * velocity + slope - terms[k] + alpha * (local - theta)
            local = local - lr * velocity
        terms[k] = terms[k] - alpha * (local - theta)
        found.append(local)
    return np.mean(found, axis=0) - np.mean(terms, axis=0) / alpha, terms
