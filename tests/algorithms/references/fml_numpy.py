"""Federated mutual learning in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import probability


def slope(theta, x, y, teacher, share):
    """Gradient of share·CE(y) + (1 − share)·KL(teacher ‖ model), each term by itself."""
    own = probability(theta, x)
    features = np.column_stack([x, np.ones(len(x))])
    cross_entropy = features.T @ (own - y) / len(x)
    # d/dz [t·log(t/p) + (1 − t)·log((1 − t)/(1 − p))] = p − t
    divergence = features.T @ (own - teacher) / len(x)
    return share * cross_entropy + (1 - share) * divergence


def mutual(phi, theta, x, y, batches, alpha, beta, lr, momentum=0.0, weight_decay=0.0, meme_rests=False):
    """Both models after the batches, and the mean cross-entropy of the personal one before each step."""
    velocities, losses = [0.0, 0.0], []
    for batch in batches:
        inputs, labels = x[batch], y[batch]
        says, told = probability(phi, inputs), probability(theta, inputs)
        losses.append(-np.mean(labels * np.log(says) + (1 - labels) * np.log(1 - says)))
        slopes = [slope(phi, inputs, labels, told, alpha), slope(theta, inputs, labels, says, beta)]
        velocities = [
            momentum * velocity + gradient + weight_decay * model
            for velocity, gradient, model in zip(velocities, slopes, (phi, theta), strict=True)
        ]
        phi = phi - lr * velocities[0]
        if not meme_rests:
            theta = theta - lr * velocities[1]
    return phi, theta, np.mean(losses)


def fml_round(phis, theta, clients, batches, **options):
    """One round with all clients: the personal models, the meme model and the loss."""
    sizes = [len(y) for _, y in clients]
    done = [mutual(phi, theta, x, y, own, **options) for phi, (x, y), own in zip(phis, clients, batches, strict=True)]
    memes, losses = [one[1] for one in done], [one[2] for one in done]
    return [one[0] for one in done], np.average(memes, axis=0, weights=sizes), np.average(losses, weights=sizes)
