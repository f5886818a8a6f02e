"""FedAsync in NumPy: logistic regression, written from the paper alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

from references.logistic import sgd


def factor(staleness, kind, a, b):
    """s(t − τ)."""
    if kind == "constant":
        return 1.0
    if kind == "polynomial":
        return 1 / (staleness + 1) ** a
    return 1.0 if staleness <= b else 1 / (a * (staleness - b) + 1)


def one_step(versions, x, y, batches, version, *, alpha, kind, a, b, rho, **solver):
    """The next model, where `versions` holds all models so far and the worker was sent one of them."""
    start, age = versions[version], len(versions) - 1 - version
    new = sgd(start, x, y, batches, added=lambda theta: rho * (theta - start), **solver)
    share = alpha * factor(age, kind, a, b)
    return (1 - share) * versions[-1] + share * new
