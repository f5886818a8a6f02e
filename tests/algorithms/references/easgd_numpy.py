"""EASGD and EAMSGD in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import gradient


def work(model, centre, velocity, x, y, batches, *, lr, elasticity, delta, weight_decay=0.0):
    """Local steps of one worker, the first of them with the elastic force; the new model and its velocity."""
    for step, batch in enumerate(batches):
        force = elasticity * (model - centre) if step == 0 else 0.0
        ahead = model + delta * velocity
        velocity = delta * velocity - lr * (gradient(ahead, x[batch], y[batch]) + weight_decay * ahead)
        model = model + velocity - force
    return model, velocity


def synchronous_round(models, centre, velocities, clients, batches, *, elasticity, present=None, **options):
    """All workers (or those present) exchange with the same centre.

    Returns:
        The new models, the new centre and the new velocities.
    """
    present = range(len(models)) if present is None else present
    new_models, new_velocities = list(models), list(velocities)
    for i in present:
        new_models[i], new_velocities[i] = work(
            models[i], centre, velocities[i], *clients[i], batches[i], elasticity=elasticity, **options
        )
    beta = elasticity * len(present)
    return new_models, (1 - beta) * centre + beta * np.mean([models[i] for i in present], axis=0), new_velocities


def asynchronous_round(models, centre, velocities, clients, batches, order, *, elasticity, **options):
    """Workers exchange one after another, in this order."""
    models, velocities = list(models), list(velocities)
    for i in order:
        difference = models[i] - centre
        models[i], velocities[i] = work(
            models[i], centre, velocities[i], *clients[i], batches[i], elasticity=elasticity, **options
        )
        centre = centre + elasticity * difference
    return models, centre, velocities
