"""LG-FedAvg in NumPy on a perceptron with own hidden layers and a shared output layer, written from the paper alone."""

from references.perceptron_parts import BODY, HEAD, average, sgd


def lg_fedavg_round(top, bodies, clients, batches, lr, **solver):
    """One round with all clients: the averaged output layer, and all hidden layers."""
    rates = dict.fromkeys(BODY + HEAD, lr)
    done = [
        sgd([*body, *top], *data, own, rates, **solver)
        for body, data, own in zip(bodies, clients, batches, strict=True)
    ]
    return average(done, HEAD, [len(y) for _, y in clients]), [one[:2] for one in done]


def newcomer(top, body, x, y, batches, lr, **solver):
    """The hidden layer that a new client trains under the shared output layer."""
    return sgd([*body, *top], x, y, batches, dict.fromkeys(BODY, lr), **solver)[:2]
