"""Consensus ADMM's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias. The server keeps what every client has sent last.
"""

import numpy as np
from references.logistic import gradient, sigmoid, with_bias


def exact(theta, x, y, share, dual, rho, z):
    """argmin share·f(θ) + ⟨dual, θ⟩ + ρ/2·‖θ − z‖² by damped Newton steps."""
    features = with_bias(x)

    def objective(theta):
        logits = features @ theta
        loss = np.mean(np.logaddexp(0, logits) - y * logits)
        return share * loss + dual @ theta + rho / 2 * np.sum((theta - z) ** 2)

    for _ in range(60):
        slope = share * gradient(theta, x, y) + dual + rho * (theta - z)
        p = sigmoid(features @ theta)
        hessian = share * features.T @ (features * (p * (1 - p))[:, None]) / len(y) + rho * np.eye(len(theta))
        step, size = np.linalg.solve(hessian, slope), 1.0
        while objective(theta - size * step) > objective(theta) + 1e-13 and size > 1e-10:
            size /= 2
        theta = theta - size * step
    return theta


def inexact(theta, x, y, share, dual, rho, z, batches, lr, momentum=0.0, weight_decay=0.0):
    """SGD on the same objective divided by the share."""
    velocity = np.zeros_like(theta)
    for batch in batches:
        slope = gradient(theta, x[batch], y[batch]) + (dual + rho * (theta - z)) / share + weight_decay * theta
        velocity = momentum * velocity + slope
        theta = theta - lr * velocity
    return theta


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
        if solver is None:
            xs[i] = exact(xs[i], x, y, share, duals[i], rho, z)
        else:
            xs[i] = inexact(xs[i], x, y, share, duals[i], rho, z, batches[i], **solver)
        sent[i] = alpha * xs[i] + (1 - alpha) * z + duals[i] / rho
    old, z = z, np.mean(sent, axis=0)
    for i in present:
        duals[i] = duals[i] + rho * (alpha * xs[i] + (1 - alpha) * old - z)
    return z, xs, duals, sent
