"""Other averages and first rounds of FedEM in NumPy: mixtures of logistic regressions, written from the formulas alone.

Components are rows [M, d + 1] whose last entry is the bias.
"""

import numpy as np
from references.fedem_numpy import likelihoods
from references.logistic import sigmoid, with_bias

LEAST_SHARE = 1e-3


# ---------------------------------------------------------------------- E-steps: q [n, M], π [M], shares [M] or None
def exact(pi, losses, client_id):
    """q ∝ π·p."""
    joint = pi * np.exp(-losses)
    q = joint / joint.sum(axis=1, keepdims=True)
    return q, q.mean(axis=0), None


def annealed(beta, by_client=False):
    """q ∝ (π·p)^β; or with the geometric mean of p over a client's samples."""

    def e_step(pi, losses, client_id):
        if by_client:
            losses = np.repeat(losses.mean(axis=0)[None], len(losses), axis=0)
        joint = (pi * np.exp(-losses)) ** beta
        q = joint / joint.sum(axis=1, keepdims=True)
        return q, q.mean(axis=0), None

    return e_step


def clustered(pi, losses, client_id):
    """The component of least mean loss takes all samples; π is the mean of a Dirichlet posterior."""
    (n, num_models), chosen = losses.shape, np.zeros(losses.shape[1])
    chosen[losses.mean(axis=0).argmin()] = 1
    return np.repeat(chosen[None], n, axis=0), (n * chosen + 1) / (n + num_models), chosen


def of_one_client(one, component):
    """A client trains a component alone, and is the only one whose models count."""

    def e_step(pi, losses, client_id):
        chosen = np.eye(losses.shape[1])[component]
        return np.repeat(chosen[None], len(losses), axis=0), pi, chosen * (client_id == one)

    return e_step


# ---------------------------------------------------------------------- a round
def trained(thetas, q, x, y, batches, lr, momentum=0.0, weight_decay=0.0):
    """The components after weighted steps on each batch."""
    x, velocity = with_bias(x), 0.0
    for rows in batches:
        error = q[rows] * (sigmoid(x[rows] @ thetas.T) - y[rows][:, None])
        velocity = momentum * velocity + error.T @ x[rows] / len(rows) + weight_decay * thetas
        thetas = thetas - lr * velocity
    return thetas


def sent(pi, least):
    """1 for components of at least this weight, and for the largest."""
    return ((pi >= least) | (np.arange(len(pi)) == pi.argmax())).astype(float)


def average(old, new, weights, shares, how, total, alone):
    """The server's components.

    Args:
        old: before the round, [M, d].
        new: of the clients of the round, [C, M, d].
        weights: of these clients, [C].
        shares: with which each component of a client counts, [C, M].
        how: samples, responsibility or rescaled.
        total: samples of all clients, of whom the absent ones hold the server's; None: they do not count.
        alone: whether each component is one of some clients alone.
    """
    weight, mass = weights.sum(), weights @ shares
    if how == "rescaled" and not alone:
        mean = (
            old + np.einsum("c,cmd->md", weights, new - old) / weight / np.maximum(mass / weight, LEAST_SHARE)[:, None]
        )
    else:
        some = mass[:, None] > 0
        mean = np.where(some, np.einsum("c,cm,cmd->md", weights, shares, new) / np.where(some, mass[:, None], 1), old)
    if total is None:
        return mean
    part = mass[:, None] / total if how == "samples" else weight / total
    return part * mean + (1 - part) * old


def mixture_round(thetas, pis, cohort, clients, batches, e_step=exact, how="samples", least=0.0, total=None, **solver):
    """One round with the clients of a cohort, some of them several times.

    Args:
        thetas: components, [M, d + 1].
        pis: mixture weights of all clients, [T, M].
        cohort: ids.
        clients: (x, y) of all clients.
        batches: of all clients, the rows of each batch.
        e_step: one of those above.
        how: the average.
        least: smallest weight of a component that is sent.
        total: as of `average`.
        solver: of `trained`.

    Returns:
        New components and mixture weights, and means over samples: of the negative log-likelihood under the old
        weights, of q, of q·loss and of q·qᵀ.
    """
    old_pis, pis, new, shares, told = pis, pis.copy(), [], [], []
    weights = np.array([float(len(clients[t][1])) for t in cohort])
    for t in cohort:
        x, y = clients[t]
        losses = -np.log(likelihoods(thetas, x, y))
        q, pi, share = e_step(old_pis[t], losses, t)
        told.append((-np.log(np.exp(-losses) @ old_pis[t]).mean(), q.mean(0), (q * losses).mean(0), q.T @ q / len(y)))
        new.append(trained(thetas, q, x, y, batches[t], **solver))
        if share is None:
            share = np.ones_like(pi) if how == "samples" else pi
        shares.append(share * sent(pi, least))
        pis[t] = pi
    alone = e_step is clustered or e_step.__qualname__.startswith("of_one_client")
    thetas = average(thetas, np.stack(new), weights, np.stack(shares), how, total, alone)
    return thetas, pis, [np.average(np.stack(one), axis=0, weights=weights) for one in zip(*told, strict=True)]


# ---------------------------------------------------------------------- exchanges
def worst_explained(thetas, cohort, clients, num_components):
    """The client whose mean loss under the best of the first components is largest."""
    best = [-np.log(likelihoods(thetas[:num_components], *clients[t])).min(axis=1).mean() for t in cohort]
    return cohort[int(np.argmax(best))]


def split_and_merge(thetas, share, loss, overlap, unused, alike, spread, noise):
    """Components after an exchange, and which kind it was.

    Args:
        thetas: [M, d + 1].
        share: of all samples, [M].
        loss: mean of q·loss, [M].
        overlap: mean of q·qᵀ, [M, M].
        unused: under which share times M a component is given up.
        alike: over which cosine two are merged.
        spread: of the copy, in standard deviations of its weights; a single bias has none.
        noise: standard normal numbers, [d].
    """
    thetas, num_models = thetas.copy(), len(thetas)
    cosine = np.array([
        [-1 if a == b else overlap[a, b] / np.sqrt(overlap[a, a] * overlap[b, b]) for b in range(num_models)]
        for a in range(num_models)
    ])  # fmt: skip
    one, other = sorted(np.unravel_index(cosine.argmax(), cosine.shape))
    if share.min() < unused / num_models:
        free, kind = share.argmin(), "unused"
    elif cosine[one, other] > alike:
        thetas[one] = (share[one] * thetas[one] + share[other] * thetas[other]) / (share[one] + share[other])
        free, kind = other, "alike"
    else:
        return thetas, ""
    source = max((m for m in range(num_models) if m != free), key=lambda m: loss[m])
    thetas[free] = thetas[source]
    thetas[free, :-1] += spread * noise * thetas[source, :-1].std()
    return thetas, kind
