"""FedSA-LoRA in NumPy: a linear layer with an adapter, tanh, and one logit; written from the paper alone.

A model is a dict of the adapter's matrices A [r, d] and B [h, r], and of V [1, h] and c [1]; the layer is frozen.
"""

import numpy as np


def hidden(frozen, model, x):
    weight, bias = frozen
    return np.tanh(x @ (weight + model["B"] @ model["A"]).T + bias)


def probability(frozen, model, x):
    return 1 / (1 + np.exp(-(hidden(frozen, model, x) @ model["V"][0] + model["c"][0])))


def sgd(frozen, model, x, y, batches, lr, moving):
    """Steps of the named matrices."""
    for batch in batches:
        inner = hidden(frozen, model, x[batch])
        error = (probability(frozen, model, x[batch]) - y[batch]) / len(batch)
        change = (np.outer(error, model["V"][0]) * (1 - inner**2)).T @ x[batch]  # by the product BA, [h, d]
        slope = {
            "A": model["B"].T @ change,
            "B": change @ model["A"].T,
            "V": (error @ inner)[None],
            "c": error.sum()[None],
        }
        model = model | {name: model[name] - lr * slope[name] for name in moving}
    return model


def average(models, names, clients):
    """Means of the named matrices, weighted by samples."""
    sizes = [len(y) for _, y in clients]
    return {name: np.average([one[name] for one in models], axis=0, weights=sizes) for name in names}


def fedsa_lora_round(frozen, shared, own, clients, batches, lr):
    """One round with all clients: A and the output layer on average, and the clients' matrices B."""
    done = [
        sgd(frozen, shared | {"B": b}, *data, rows, lr, "ABVc")
        for b, data, rows in zip(own, clients, batches, strict=True)
    ]
    return average(done, "AVc", clients), [one["B"] for one in done]
