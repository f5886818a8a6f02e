"""Personal logistic regressions trained towards a global one that follows them, in NumPy.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient


def personal(v, w, x, y, batches, prox_weight, lr, momentum=0.0, weight_decay=0.0):
    """Proximal SGD towards w."""
    velocity = np.zeros_like(v)
    for batch in batches:
        slope = gradient(v, x[batch], y[batch]) + weight_decay * v
        velocity = momentum * velocity + slope + prox_weight * (v - w)
        v = v - lr * velocity
    return v


def l2sgd_round(vs, w, clients, batches, present, **options):
    """One round: all personal models, and w moved by the mean difference times the share of the clients present."""
    vs = [
        personal(v, w, *data, own, **options) if i in present else v
        for i, (v, data, own) in enumerate(zip(vs, clients, batches, strict=True))
    ]
    return vs, w + len(present) / len(vs) * np.mean([vs[i] - w for i in present], axis=0)
