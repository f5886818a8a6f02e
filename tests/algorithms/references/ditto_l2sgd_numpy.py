"""Personal logistic regressions trained towards a global one that follows them, in NumPy.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import sgd


def personal(v, w, x, y, batches, prox_weight, lr, **solver):
    """Proximal SGD towards w."""
    return sgd(v, x, y, batches, lr, added=lambda v: prox_weight * (v - w), **solver)


def l2sgd_round(vs, w, clients, batches, present, **options):
    """One round: all personal models, and w moved by the mean difference times the share of the clients present."""
    vs = [
        personal(v, w, *data, own, **options) if i in present else v
        for i, (v, data, own) in enumerate(zip(vs, clients, batches, strict=True))
    ]
    return vs, w + len(present) / len(vs) * np.mean([vs[i] - w for i in present], axis=0)
