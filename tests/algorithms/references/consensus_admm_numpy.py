"""Consensus ADMM's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias. The server keeps what every client has sent last.
"""

import numpy as np
from references.logistic import exact, inexact


def consensus_admm_round(
    z, xs, duals, sent, clients, batches, *, rho, alpha=1.0, samples=False, present=None, solver=None
):
    """One round.

    Args:
        z: the common model, [d + 1].
        xs: every client's model.
        duals: every client's dual variable.
        sent: what every client has sent last.
        clients: (x, y) of every client.
        batches: of every client.
        rho: the penalty.
        alpha: over-relaxation.
        samples: weigh the losses by numbers of samples.
        present: clients that take part; None: all.
        solver: settings of SGD; None: exact solves.

    Returns:
        The new z, xs, duals and sent.
    """
    xs, duals, sent = list(xs), list(duals), list(sent)
    present = range(len(clients)) if present is None else present
    total = sum(len(y) for _, y in clients)
    for i in present:
        x, y = clients[i]
        share = len(clients) * len(y) / total if samples else 1.0

        def added(theta, z=z, dual=duals[i]):
            return dual + rho * (theta - z)

        if solver is None:
            xs[i] = exact(xs[i], x, y, share, added, rho)
        else:
            xs[i] = inexact(xs[i], x, y, share, added, batches[i], **solver)
        sent[i] = alpha * xs[i] + (1 - alpha) * z + duals[i] / rho
    old, z = z, np.mean(sent, axis=0)
    for i in present:
        duals[i] = duals[i] + rho * (alpha * xs[i] + (1 - alpha) * old - z)
    return z, xs, duals, sent
