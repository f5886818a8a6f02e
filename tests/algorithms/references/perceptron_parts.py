"""SGD in NumPy on some leaves of the perceptron of `fedper_numpy`, W [h, d], b [h], V [1, h], c [1], by place."""

import numpy as np
from references.fedper_numpy import slopes

BODY, HEAD = (0, 1), (2, 3)


def sgd(leaves, x, y, batches, rates, momentum=0.0, weight_decay=0.0, l2=()):
    """Steps from velocity 0.

    Args:
        leaves: the four arrays.
        x: inputs.
        y: labels.
        batches: rows of each step.
        rates: learning rate of each leaf that moves, by its place.
        momentum: of all.
        weight_decay: of all.
        l2: places and weights of penalties.
    """
    leaves, velocity, l2 = list(leaves), [0.0] * 4, dict(l2)
    for batch in batches:
        slope = [part for pair in slopes(leaves[:2], leaves[2:], x[batch], y[batch]) for part in pair]
        for place in rates:
            slope[place] = slope[place] + (weight_decay + l2.get(place, 0.0)) * leaves[place]
            velocity[place] = momentum * velocity[place] + slope[place]
        for place, rate in rates.items():
            leaves[place] = leaves[place] - rate * velocity[place]
    return leaves


def average(models, places, weights):
    """Weighted means of the leaves at some places."""
    return [np.average([model[place] for model in models], axis=0, weights=weights) for place in places]
