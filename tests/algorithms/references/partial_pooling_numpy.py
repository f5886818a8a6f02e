"""Partial pooling in NumPy, as random effects in some leaves of a model; no derivative is written by hand.

A model is a vector θ, `outputs(θ, x)` [n, K] are scores, and `leaves` are its pooled parts, slices of θ.
"""

import numpy as np
from references.objectives_numpy import STEP
from references.two_layers import log_softmax

LOW, HIGH = 1e-8, 1e4


def jacobian(outputs, theta, x):
    """Of the scores of each sample, [n, K, d]."""
    each = []
    for place in range(len(theta)):
        moved = theta.astype(complex)
        moved[place] += 1j * STEP
        each.append(outputs(moved, x).imag / STEP)
    return np.stack(each, -1)


def probabilities(kind, scores):
    return 1 / (1 + np.exp(-scores)) if kind == "binary" else np.exp(log_softmax(scores))


def gradient(kind, outputs, theta, x, y):
    """Of the mean loss."""
    scores = outputs(theta, x)
    if kind == "classes":
        error = probabilities(kind, scores) - np.eye(scores.shape[1])[y.astype(int)]
    else:
        error = (scores if kind == "regression" else probabilities(kind, scores)) - y[:, None]
    return np.einsum("nk,nkd->d", error, jacobian(outputs, theta, x)) / len(y)


def information(kind, outputs, theta, x, signs=None):
    """The Fisher information of all samples, [d, d].

    Given signs [n, K] its estimate for classes: the outer product of Σ_c s_c·√p_c·(e_c − p) is on average
    Σ_c p_c·(e_c − p)(e_c − p)ᵀ, the covariance of the score.
    """
    slopes, scores = jacobian(outputs, theta, x), outputs(theta, x)
    if kind == "regression":
        return np.einsum("nki,nkj->ij", slopes, slopes)
    p = probabilities(kind, scores)
    if kind == "binary":
        return np.einsum("nk,nki,nkj->ij", p * (1 - p), slopes, slopes)
    away = np.einsum("nck,nkd->ncd", np.eye(scores.shape[1])[None] - p[:, None], slopes)  # of log p_c, [n, C, d]
    if signs is None:
        return np.einsum("nc,nci,ncj->ij", p, away, away)
    one = np.einsum("nc,nc,nci->ni", signs, np.sqrt(p), away)
    return one.T @ one


def determined(F, tau2, s2, leaves):
    """Σ (1 − v/τ²) of each leaf, with v the diagonal of the posterior's covariance."""
    every = np.concatenate([np.arange(len(F))[leaf] for leaf in leaves])
    prior = np.concatenate([np.full(len(np.arange(len(F))[leaf]), one) for leaf, one in zip(leaves, tau2, strict=True)])
    v = np.zeros(len(F))
    v[every] = np.diag(np.linalg.inv(F[np.ix_(every, every)] / s2 + np.diag(1 / prior)))
    return np.array([(1 - v[leaf] / one).sum() for leaf, one in zip(leaves, tau2, strict=True)])


def start(theta, num_clients, leaves, kind):
    """The server's and the clients' state before the first round."""
    G = len(leaves)
    server = {
        "theta": theta, "tau2": np.full(G, 0.1), "s2": 0.5 if kind == "regression" else 1.0,
        "sums": (np.zeros(G), np.zeros(G), 0.0, 0.0, 0.0),
    }  # fmt: skip
    return server, [{"theta": theta, "mean": theta, "tau2": None, "round": None} for _ in range(num_clients)]


def model_of(server, client, leaves, now):
    """A client's model in round `now`: μ has taken equal steps in its last round and in those that it missed."""
    theta = server["theta"].copy()
    for leaf in leaves if client["round"] is not None else ():
        steps = now - client["round"]
        theta[leaf] = client["theta"][leaf] + (steps - 1) * (theta - client["mean"])[leaf] / steps
    return theta


def descend(server, theta, tau2, data, batches, problem, leaves, *, lr, momentum=0.0):
    """SGD on the mean loss + Σ_g w_g/2·‖θ − μ‖²_g, every gradient divided by 1 + lr·w_g in leaf g."""
    (x, y), (kind, outputs), velocity, w = data, problem, 0.0, np.zeros(len(theta))
    for leaf, variance in zip(leaves, tau2, strict=True):
        w[leaf] = server["s2"] / (len(y) * variance)
    for rows in batches:
        slope = gradient(kind, outputs, theta, x[rows], y[rows]) + w * (theta - server["theta"])
        velocity = momentum * velocity + slope / (1 + lr * w)
        theta = theta - lr * velocity
    return theta


def pooling_round(
    server, states, clients, batches, problem, leaves, *, now, variance="leaf", present=None, signs=None,
    **solver,
):  # fmt: skip
    """One round; returns the server's and the clients' states."""
    (kind, outputs), T, states = problem, len(clients), list(states)
    present = range(T) if present is None else present
    mu, s2, sent = server["theta"], server["s2"], []
    for i in present:
        x, y = clients[i]
        own = variance == "client" and states[i]["tau2"] is not None
        tau2 = states[i]["tau2"] if own else server["tau2"]
        theta = model_of(server, states[i], leaves, now)
        theta = descend(server, theta, tau2, clients[i], batches[i], problem, leaves, **solver)
        weight = 1.0
        F = information(kind, outputs, theta, x, None if signs is None else signs[i])
        slope = determined(F, tau2, s2, leaves)
        score = np.array([((theta - mu)[leaf] ** 2).sum() for leaf in leaves])
        squares = ((outputs(theta, x) - y[:, None]) ** 2).sum() if kind == "regression" else 0.0
        n = len(y) * outputs(theta, x[:1]).shape[1]
        sums = (score, slope, squares, n - slope.sum(), n)
        if variance == "client":
            d = sum(len(theta[leaf]) for leaf in leaves)
            spread = sum(old * (len(theta[leaf]) - k) for leaf, old, k in zip(leaves, tau2, slope, strict=True))
            rho2 = np.clip((spread + score.sum()) / d, LOW, HIGH)
            weight, tau2 = 1 / rho2, np.full(len(leaves), rho2)
        states[i] = {"theta": theta, "mean": mu, "tau2": tau2, "round": now}
        sent.append((theta, len(y), weight, sums))
    share = min(1.0, len(sent) / T)
    mean = np.average([one[0] for one in sent], axis=0, weights=[one[2] for one in sent])
    body = np.average([one[0] for one in sent], axis=0, weights=[one[1] for one in sent])
    new = body
    for leaf in leaves:
        new[leaf] = mean[leaf]
    score, slope, *others = (np.mean([one[3][k] for one in sent], axis=0) for k in range(5))
    if variance == "leaf":  # about μ + share·(mean − μ)
        for g, leaf in enumerate(leaves):
            score[g] -= (1 - (1 - share) ** 2) * ((mean - mu)[leaf] ** 2).sum()
        sums = (score, slope, *others)
    else:
        inverse = np.full(len(leaves), np.mean([one[2] for one in sent]))
        sums = (np.ones(len(leaves)), inverse, *others)
    sums = tuple((1 - share) * old + share * one for old, one in zip(server["sums"], sums, strict=True))
    tau2 = np.clip(sums[0] / sums[1], LOW, HIGH)
    s2 = sums[2] / max(sums[3], sums[4] / 50) if kind == "regression" else 1.0
    return {"theta": new, "tau2": tau2, "s2": s2, "sums": sums}, states
