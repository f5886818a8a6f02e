"""FedBuff in NumPy: who comes in when, and rounds of logistic regression; written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def schedule(means, least, size, number, num_rounds, rng):
    """For each round the pairs (client, version it was sent) that come in, and the time at its end; without a queue."""
    idle, on_the_way, now, found = list(range(len(means))), [], 0.0, []
    for version in range(num_rounds):
        buffer = []
        while len(buffer) < size:
            if all(trip[0] > now for trip in on_the_way):
                while len(on_the_way) < number and idle:
                    client = idle.pop(rng.integers(len(idle)))
                    on_the_way.append((now + least + means[client] * rng.exponential(), client, version))
            first = min(on_the_way, key=lambda trip: trip[0])  # of equal ones that which was sent out first
            on_the_way.remove(first)
            buffer.append(first)
            now = first[0]
        idle += sorted(client for _, client, _ in buffer)
        found.append((sorted((client, sent) for _, client, sent in buffer), now))
    return found


def server_step(w, changes, ages, server_lr=1.0, weights=None):
    """Changes of some clients, and how many steps ago each was sent its model."""
    weights = np.ones(len(changes)) if weights is None else weights
    total = sum(weight * change / np.sqrt(1 + age) for change, age, weight in zip(changes, ages, weights, strict=True))
    return w + server_lr * total / np.sum(weights)


def one_round(versions, clients, batches, arrived, *, server_lr, lr, momentum, by_samples=False):
    """The next model, where `versions` holds all models so far and `arrived` is of `schedule`."""
    changes, ages, sizes = [], [], []
    for client, version in arrived:
        x, y = clients[client]
        changes.append(sgd(versions[version], x, y, batches[client], lr, momentum) - versions[version])
        ages.append(len(versions) - 1 - version)
        sizes.append(len(y))
    return server_step(versions[-1], changes, ages, server_lr, sizes if by_samples else None)
