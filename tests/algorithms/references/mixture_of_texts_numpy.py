"""The E-step for sequences in NumPy, written from the mixture model alone: one component writes a text, or its root."""

import numpy as np


def expectation(log_probs, y, pi, *, whole):
    """Responsibilities, new mixture weights, and the mean negative log-likelihood of a position.

    Args:
        log_probs: of each class at each position under each component, [n, M, L, C].
        y: labels, [n, L].
        pi: mixture weights, [M].
        whole: take the likelihood of the whole text; else the geometric mean over its positions.
    """
    n, M, L, _ = log_probs.shape
    q, nll = np.zeros((n, M)), 0.0
    for s in range(n):
        joint = pi.copy()
        for m in range(M):
            for place in range(L):
                probability = np.exp(log_probs[s, m, place, y[s, place]])
                joint[m] *= probability if whole else probability ** (1 / L)
        q[s] = joint / joint.sum()
        nll -= np.log(joint.sum()) / n / (L if whole else 1)
    return q, q.mean(axis=0), nll
