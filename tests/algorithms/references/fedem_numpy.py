"""FedEM's round in NumPy: mixtures of logistic regressions, written from the paper alone.

Components are rows [M, d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import probability


def likelihoods(thetas, x, y):
    """p(y | x, θ_m) of every sample, [n, M]."""
    positive = np.stack([probability(theta, x) for theta in thetas], axis=1)
    return np.where(y[:, None] == 1, positive, 1 - positive)


def expectation(thetas, pi, x, y, powers=1.0):
    """Responsibilities [n, M] and the new mixture weights [M], from likelihoods to these powers, [n, 1]."""
    joint = pi * likelihoods(thetas, x, y) ** powers
    q = joint / joint.sum(axis=1, keepdims=True)
    return q, q.mean(axis=0)


def fedem_round(
    thetas, pis, clients, batches, *, lr, momentum=0.0, weight_decay=0.0, class_weights=(1.0, 1.0), in_e_step=False
):
    """One round with all clients.

    Args:
        thetas: components, [M, d + 1].
        pis: mixture weights of every client.
        clients: (x, y) of every client.
        batches: of every client, the batches of each component: arrays [M, B] of positions.
        lr: learning rate.
        momentum: momentum, fresh in every round.
        weight_decay: weight decay.
        class_weights: factors of the losses of both classes.
        in_e_step: whether they act in the E-step, too.

    Returns:
        The new components, the new mixture weights, and the mean negative log-likelihood of all samples under the old.
    """
    num_samples = sum(len(y) for _, y in clients)
    new_thetas, new_pis, nll = np.zeros_like(thetas), [], 0.0
    for pi, (x, y), own in zip(pis, clients, batches, strict=True):
        factor = np.asarray(class_weights)[y.astype(int)]
        powers = factor[:, None] if in_e_step else 1.0
        nll -= np.log(likelihoods(thetas, x, y) ** powers @ pi).sum() / num_samples
        q, new_pi = expectation(thetas, pi, x, y, powers)
        new_pis.append(new_pi)
        for m, theta in enumerate(thetas):
            velocity = np.zeros_like(theta)
            for step in own:
                batch = step[m]
                error = factor[batch] * q[batch, m] * (probability(theta, x[batch]) - y[batch]) / len(batch)
                gradient = np.append(x[batch].T @ error, error.sum()) + weight_decay * theta
                velocity = momentum * velocity + gradient
                theta = theta - lr * velocity
            new_thetas[m] += len(y) / num_samples * theta
    return new_thetas, new_pis, nll


def predict(thetas, pi, x):
    """Mixed probabilities of both classes, [n, 2]."""
    positive = sum(weight * probability(theta, x) for weight, theta in zip(pi, thetas, strict=True))
    return np.stack([1 - positive, positive], axis=1)
