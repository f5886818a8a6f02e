"""FedRep in NumPy: epochs of the head on the received base, then of the base under the new head.

Written from the paper, on the perceptron of `fedper_numpy`.
"""

import numpy as np
from references.fedper_numpy import slopes


def train_part(base, head, x, y, batches, lr, momentum=0.0, weight_decay=0.0, clip_norm=np.inf, *, of_head):
    """SGD on one part while the other is fixed, from velocity 0."""
    velocity = [0.0, 0.0]
    for batch in batches:
        part, gradient = (head, base)[not of_head], slopes(base, head, x[batch], y[batch])[of_head]
        norm = np.sqrt(sum((g**2).sum() for g in gradient))
        gradient = [g * min(clip_norm / (norm + 1e-6), 1) for g in gradient]
        gradient = [g + weight_decay * p for g, p in zip(gradient, part, strict=True)]
        velocity = [momentum * v + g for v, g in zip(velocity, gradient, strict=True)]
        moved = tuple(p - lr * v for p, v in zip(part, velocity, strict=True))
        base, head = (base, moved) if of_head else (moved, head)
    return base, head


def fedrep_round(base, heads, clients, batches_of_head, batches_of_base, head_lr, lr, sizes=None, **solver):
    """One round with all clients: the averaged base, by samples unless `sizes` says otherwise, and all heads."""
    done = []
    for head, data, first, second in zip(heads, clients, batches_of_head, batches_of_base, strict=True):
        _, new = train_part(base, head, *data, first, head_lr, **solver, of_head=True)
        done.append(train_part(base, new, *data, second, lr, **solver, of_head=False))
    sizes = sizes or [len(y) for _, y in clients]
    averaged = tuple(np.average(parts, axis=0, weights=sizes) for parts in zip(*(one[0] for one in done), strict=True))
    return averaged, [one[1] for one in done]
