"""FedBABU in NumPy on a perceptron, written from the paper alone."""

from references.perceptron_parts import BODY, HEAD, average, sgd

PARTS = {"body": BODY, "head": HEAD, "all": BODY + HEAD}


def fedbabu_round(leaves, clients, batches, lr, **solver):
    """One round with all clients: the averaged body under the unchanged head."""
    rates = dict.fromkeys(BODY, lr)
    models = [sgd(leaves, *data, own, rates, **solver) for data, own in zip(clients, batches, strict=True)]
    return [*average(models, BODY, [len(y) for _, y in clients]), *leaves[2:]]


def tuned(leaves, x, y, batches, lr, tune, **solver):
    """The model of a client after the tuning of a part."""
    return sgd(leaves, x, y, batches, dict.fromkeys(PARTS[tune], lr), **solver)
