"""GADMM's round in NumPy: logistic regression, written from the paper alone, with one multiplier for each link.

A model is a vector [d + 1] whose last entry is the bias. λ[p] ties the clients at places p and p + 1 of the chain.
"""

import numpy as np
from references.logistic import exact, inexact


def gadmm_round(xs, lambdas, clients, batches, *, order, rho, samples=False, solver=None):
    """One round.

    Args:
        xs: every client's model.
        lambdas: the multiplier of each link of the chain, from the first to the last.
        clients: (x, y) of every client.
        batches: of every client, by the name of its group.
        order: the clients in the chain.
        rho: the penalty.
        samples: weigh the losses by numbers of samples.
        solver: settings of SGD; None: exact solves.

    Returns:
        The new models and multipliers.
    """
    xs, lambdas = list(xs), list(lambdas)
    num, total = len(order), sum(len(y) for _, y in clients)
    for first, group in ((0, "heads"), (1, "tails")):
        for place in range(first, num, 2):
            i = order[place]
            links = []  # (neighbour, multiplier and its sign)
            if place > 0:
                links.append((xs[order[place - 1]], -lambdas[place - 1]))
            if place < num - 1:
                links.append((xs[order[place + 1]], lambdas[place]))

            def added(theta, links=links):
                return sum((dual + rho * (theta - other) for other, dual in links), np.zeros_like(theta))

            x, y = clients[i]
            share = len(clients) * len(y) / total if samples else 1.0
            if solver is None:
                xs[i] = exact(xs[i], x, y, share, added, rho * len(links))
            else:
                xs[i] = inexact(xs[i], x, y, share, added, batches[group][i], **solver)
    for place in range(num - 1):
        lambdas[place] = lambdas[place] + rho * (xs[order[place]] - xs[order[place + 1]])
    return xs, lambdas


def rewire(lambdas, old, new):
    """Multipliers of a new chain in which every client has the linear term that it had in the old one."""
    padded = [np.zeros_like(lambdas[0]), *lambdas, np.zeros_like(lambdas[0])]
    terms = {client: padded[place + 1] - padded[place] for place, client in enumerate(old)}
    return list(np.cumsum([terms[client] for client in new], axis=0)[:-1])
