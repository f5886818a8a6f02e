"""FedNova's round in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias. The vectors a_i are written out, entry by entry.
"""

import numpy as np
from references.logistic import gradient


def step_weights(steps, *, lr=0.0, momentum=0.0, prox_weight=0.0, nesterov=False):
    """a_i: the weight with which the gradient of each step counts in the change of a client, [steps].

    With momentum or with a proximal term as in Section 4; Nesterov's form, and both of them together, by sending the
    gradient of one step alone through the solver.
    """
    ahead = np.arange(steps, 0, -1)  # steps from each one to the end, itself counted
    if not nesterov and not prox_weight:
        return (1 - momentum**ahead) / (1 - momentum)
    if not momentum:
        return (1 - lr * prox_weight) ** (ahead - 1)
    weights = np.zeros(steps)
    for k in range(steps):
        change, velocity = 0.0, 0.0
        for step in range(steps):
            gradient = float(step == k) - lr * prox_weight * change
            velocity = momentum * velocity + gradient
            change += gradient + momentum * velocity if nesterov else velocity
        weights[k] = change
    return weights


def local_solve(x, features, labels, batches, *, lr, momentum, prox_weight, weight_decay, nesterov):
    """The model of a client after a step on each of its batches."""
    model, velocity = x.copy(), np.zeros_like(x)
    for batch in batches:
        slope = gradient(model, features[batch], labels[batch]) + weight_decay * model + prox_weight * (model - x)
        velocity = momentum * velocity + slope
        model = model - lr * (slope + momentum * velocity if nesterov else velocity)
    return model


def fednova_round(
    x, clients, batches, *, cohort=None, uniform=False, effective_steps=None, lr=0.1, momentum=0.0, prox_weight=0.0,
    weight_decay=0.0, nesterov=False,
):  # fmt: skip
    """One round; a client that stands twice in the cohort counts twice. Returns the model and ‖a_i‖₁ of each."""
    solver = {"lr": lr, "momentum": momentum, "prox_weight": prox_weight, "nesterov": nesterov}
    cohort = list(range(len(clients))) if cohort is None else cohort
    p = np.array([1.0 if uniform else len(clients[i][1]) for i in cohort])
    p = p / p.sum()
    norms = np.array([np.abs(step_weights(len(batches[i]), **solver)).sum() for i in cohort])
    directions = [
        (x - local_solve(x, *clients[i], batches[i], weight_decay=weight_decay, **solver)) / (lr * norm)
        for i, norm in zip(cohort, norms, strict=True)
    ]
    tau = p @ norms if effective_steps is None else effective_steps
    return x - tau * lr * (p @ np.stack(directions)), norms
