"""pFedHN in NumPy, over logistic regression: written from the paper, with the chain rule by hand."""

import numpy as np


def generated(layers, v):
    """The model (w [D], b) of a client as [D + 1], and the inputs of each layer.

    Args:
        layers: (weight, bias) of the trunk, then those of w and of b.
        v: its embedding.
    """
    *trunk, weight, bias = layers
    inputs = [v]
    for place, (matrix, shift) in enumerate(trunk):
        inputs[-1] = np.maximum(inputs[-1], 0) if place else v
        inputs.append(matrix @ inputs[-1] + shift)
    made = np.concatenate([matrix @ inputs[-1] + shift for matrix, shift in (weight, bias)])
    return made, inputs


def slopes(layers, v, along):
    """Gradients of ⟨generated, along⟩: (weight, bias) of each layer, and v."""
    _, inputs = generated(layers, v)
    *trunk, weight, bias = layers
    split = len(weight[1])
    heads = [(np.outer(part, inputs[-1]), part) for part in (along[:split], along[split:])]
    back = weight[0].T @ along[:split] + bias[0].T @ along[split:]
    found = []
    for place in reversed(range(len(trunk))):
        found.insert(0, (np.outer(back, inputs[place]), back))
        back = trunk[place][0].T @ back
        back = back * (inputs[place] > 0) if place else back
    return [*found, *heads], back


def loss_slope(model, x, y):
    """Gradient of the mean cross-entropy by [w, b]."""
    inputs = np.hstack([x, np.ones((len(x), 1))])
    return inputs.T @ (1 / (1 + np.exp(-inputs @ model)) - y) / len(y)


def server_gradient(layers, embeddings, clients, present, lr, steps, clip):
    """The clipped gradient of a round by φ and all v; each client takes full-batch steps."""
    total = [[np.zeros_like(leaf) for leaf in layer] for layer in layers]
    of_embeddings = np.zeros_like(embeddings)
    for k in present:
        before, _ = generated(layers, embeddings[k])
        after = before.copy()
        for _ in range(steps):
            after -= lr * loss_slope(after, *clients[k])
        each, back = slopes(layers, embeddings[k], (before - after) / len(present))
        total = [[a + b for a, b in zip(one, new, strict=True)] for one, new in zip(total, each, strict=True)]
        of_embeddings[k] += back
    norm = np.sqrt(sum((leaf**2).sum() for layer in total for leaf in layer) + (of_embeddings**2).sum())
    factor = min(1.0, clip / (norm + 1e-6))
    return [[leaf * factor for leaf in layer] for layer in total], of_embeddings * factor


class Momentum:
    """Descent with momentum and weight decay, as PyTorch's SGD."""

    def __init__(self, lr, momentum, decay):
        self.lr, self.momentum, self.decay, self.velocity = lr, momentum, decay, {}

    def step(self, key, leaf, gradient):
        """The leaf after a step."""
        given = gradient + self.decay * leaf
        self.velocity[key] = self.momentum * self.velocity[key] + given if key in self.velocity else given
        return leaf - self.lr * self.velocity[key]
