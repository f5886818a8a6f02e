"""FedAlt and FedSim in NumPy on a perceptron with own output layers v under a shared hidden layer u.

Written from the paper alone.
"""

from references.perceptron_parts import BODY, HEAD, average, sgd


def server(u, done, server_lr):
    """The step u ← u − η_s · mean(u − u_i)."""
    return [old - server_lr * (old - mean) for old, mean in zip(u, average(done, BODY, None), strict=True)]


def fedalt_round(u, personal, clients, first, second, lr, personal_lr, server_lr, **solver):
    """Algorithm 2: v_i for its batches, then u for its own."""
    done = []
    for v, data, of_v, of_u in zip(personal, clients, first, second, strict=True):
        leaves = sgd([*u, *v], *data, of_v, dict.fromkeys(HEAD, personal_lr), **solver)
        done.append(sgd(leaves, *data, of_u, dict.fromkeys(BODY, lr), **solver))
    return server(u, done, server_lr), [one[2:] for one in done]


def fedsim_round(u, personal, clients, batches, lr, personal_lr, server_lr, **solver):
    """Algorithm 3: both from one gradient, with rates of their own."""
    rates = dict.fromkeys(BODY, lr) | dict.fromkeys(HEAD, personal_lr)
    done = [sgd([*u, *v], *data, own, rates, **solver) for v, data, own in zip(personal, clients, batches, strict=True)]
    return server(u, done, server_lr), [one[2:] for one in done]
