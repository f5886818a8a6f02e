"""FedDF's server in NumPy, over logistic regression: written from the paper alone."""

import numpy as np


def distilled(models, weights, public, batches, lr, betas=(0.9, 0.999), eps=1e-8):
    """The student after one Adam step for each batch.

    Args:
        models: (w [D], b) of each client.
        weights: samples of each client.
        public: inputs [P, D].
        batches: rows of each step.
        lr: rate of the first step; it follows a cosine over the steps.
    """
    models = np.array([[*w, b] for w, b in models])
    student = np.average(models, axis=0, weights=weights)
    inputs = np.hstack([public, np.ones((len(public), 1))])
    first = second = 0.0
    for step, rows in enumerate(batches):
        x = inputs[rows]
        taught = _sigmoid((x @ models.T).mean(1))
        gradient = x.T @ (_sigmoid(x @ student) - taught) / len(rows)
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        unbiased = first / (1 - betas[0] ** (step + 1)), second / (1 - betas[1] ** (step + 1))
        rate = lr * (1 + np.cos(np.pi * step / len(batches))) / 2
        student = student - rate * unbiased[0] / (np.sqrt(unbiased[1]) + eps)
    return student


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))
