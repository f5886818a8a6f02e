"""FedDBE's round in NumPy, written from the paper and the authors' loss."""

import numpy as np
from references.objectives_numpy import slope
from references.two_layers import cross_entropies, features, head, mean_by_samples


def train(theta, bias, x, y, batches, wanted, *, kappa, mu, lr, momentum, weight_decay, rests=False):
    """Steps of the model and of the bias from the values before them; `wanted` None: without DBE."""
    mean, total, of_theta, of_bias = np.zeros(5), np.zeros(5), 0.0, 0.0
    for rows in batches:

        def objective(moved, shift, x=x[rows], y=y[rows], mean=mean):
            z = features(moved, x)
            loss = cross_entropies(head(moved, z + shift), y).mean()
            if wanted is None:
                return loss
            away = (1 - mu) * mean + mu * z.mean(0) - wanted
            return loss + kappa * (0.5 * away * away).mean()

        by_theta = slope(lambda one, f=objective, b=bias: f(one, b), theta)
        by_bias = slope(lambda one, f=objective, t=theta: f(t, one), bias)
        of_batch = features(theta, x[rows]).mean(0)
        mean, total = (1 - mu) * mean + mu * of_batch, total + of_batch
        of_theta = momentum * of_theta + by_theta + weight_decay * theta
        of_bias = momentum * of_bias + by_bias + weight_decay * bias
        theta = theta if rests else theta - lr * of_theta
        bias = bias if wanted is None else bias - lr * of_bias
    return theta, bias, total / len(batches)


def feddbe_round(theta, biases, wanted, clients, batches, *, present, **options):
    """The new model, all biases and z̄^g, which is None before the first round."""
    sent, after, means = {}, list(biases), {}
    for i in present:
        sent[i], after[i], means[i] = train(theta, biases[i], *clients[i], batches[i], wanted, **options)
    if wanted is None:
        wanted = mean_by_samples(means, clients)
    return mean_by_samples(sent, clients), after, wanted


def predicted(theta, bias, x):
    return head(theta, features(theta, x) + bias)
