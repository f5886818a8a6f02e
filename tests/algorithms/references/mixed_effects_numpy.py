"""Linear mixed models in NumPy, from mean and covariance of each client's labels; the intercept comes last.

A fit is a dict: mean μ [P], cov C [P, P], var τ² [P], s2 σ², gamma2 γ².
"""

import numpy as np


def design(x):
    return np.hstack([x, np.ones((len(x), 1))])


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def mode(X, y, fit):
    """The coefficients of the largest joint density of labels and random effects, by Newton steps with halving."""
    J = np.flatnonzero(fit["var"])
    Z, prior, b = X[:, J], np.diag(1 / fit["var"][J]), np.zeros(len(J))

    def density(b):
        eta = X @ fit["mean"] + Z @ b
        return (y * eta - np.logaddexp(0, eta)).sum() - b @ prior @ b / 2

    for _ in range(50):
        p = sigmoid(X @ fit["mean"] + Z @ b)
        step = np.linalg.solve(Z.T * (p * (1 - p)) @ Z + prior, Z.T @ (y - p) - prior @ b)
        while density(b + step) < density(b) - 1e-12:
            step = step / 2
        b = b + step
    theta = fit["mean"].copy()
    theta[J] += b
    return theta


def working(X, y, fit, binary):
    """Rows and labels whose residuals have variance σ²: for two classes those of the last Newton step."""
    if not binary:
        return X, y
    eta = X @ mode(X, y, fit)
    w = sigmoid(eta) * (1 - sigmoid(eta))
    return X * np.sqrt(w)[:, None], np.sqrt(w) * (eta + (y - sigmoid(eta)) / w)


def posterior(X, y, fit, binary):
    """θ of a client, and the covariance V of its random effects given μ, [P, P]."""
    X, y = working(X, y, fit, binary)
    J = np.flatnonzero(fit["var"])
    V = np.zeros((X.shape[1], X.shape[1]))
    V[np.ix_(J, J)] = np.linalg.inv(X[:, J].T @ X[:, J] / fit["s2"] + np.diag(1 / fit["var"][J]))
    return fit["mean"] + V @ X.T @ (y - X @ fit["mean"]) / fit["s2"], V


def error_covariance(X, y, fit, binary):
    """Covariance of θ about the truth."""
    W, _ = working(X, y, fit, binary)
    _, V = posterior(X, y, fit, binary)
    L = np.eye(len(V)) - V @ W.T @ W / fit["s2"]
    return L @ fit["cov"] @ L.T + V


def bounded(new, old):
    return np.clip(new, old / 100, old * 100)


def means(fit, clients, binary, shrunk):
    """Generalised least squares with the covariance σ²I + X·diag(τ²)·Xᵀ of each client's labels."""
    P = len(fit["mean"])
    A, a = np.zeros((P, P)), np.zeros(P)
    for X, y in clients:
        X, y = working(X, y, fit, binary)
        inverse = np.linalg.inv(fit["s2"] * np.eye(len(y)) + X * fit["var"] @ X.T)
        A, a = A + X.T @ inverse @ X, a + X.T @ inverse @ y
    if shrunk:
        A = A + np.diag([1 / fit["gamma2"]] * (P - 1) + [0])
    C = np.linalg.inv(A)
    mu = C @ a
    used = P - 1 - np.trace(C[:-1, :-1]) / fit["gamma2"]
    return fit | {"mean": mu, "cov": C, "gamma2": bounded(mu[:-1] @ mu[:-1] / used, fit["gamma2"])}


def variances(fit, clients, binary, groups, ml):
    """Fellner and Schall: τ² ← ΣB/(T − ΣD/τ²) over the coefficients of a group, σ² ← Σr/(n − e)."""
    P, s2, C = len(fit["mean"]), fit["s2"], fit["cov"] * (not ml)
    B, D, r, e, n, yy = np.zeros(P), np.zeros(P), 0, 0, 0, 0
    for X, y in clients:
        theta, V = posterior(X, y, fit, binary)
        W, z = working(X, y, fit, binary)
        K = V @ W.T @ W / s2
        L = np.eye(P) - K
        B, D = B + (theta - fit["mean"]) ** 2, D + np.diag(V + K @ C @ K.T)
        r, n, yy = r + ((z - W @ theta) ** 2).sum(), n + len(y), yy + (y**2).sum()
        e += np.trace(W.T @ W @ (L @ C @ L.T + V)) / s2
    new = fit["var"].copy()
    for group in groups:
        if old := fit["var"][group[0]]:
            new[group] = bounded(B[group].sum() / (len(clients) * len(group) - D[group].sum() / old), old)
    if not binary:
        s2 = max(r / max(n - e, 0.02 * n), 1e-7 * yy / n)
    return fit | {"var": new, "s2": s2}


def groups_of(P, random):
    return [[j] for j in range(P)] if random == "diagonal" else [list(range(P - 1)), [P - 1]]


def fitted(clients, *, rounds, binary=False, random="slopes", estimate="shrunk"):
    """A fit to clients, pairs (x, y), after some rounds."""
    data = [(design(x), y) for x, y in clients]
    P = data[0][0].shape[1]
    var = np.full(P, 0.1) * {"none": 0, "intercept": np.arange(P) == P - 1}.get(random, 1)
    fit = {"mean": np.zeros(P), "cov": np.zeros((P, P)), "var": var, "s2": 1.0 if binary else 0.5, "gamma2": 0.1}
    for _ in range(rounds):
        fit = means(fit, data, binary, estimate == "shrunk")
        fit = variances(fit, data, binary, groups_of(P, random), estimate == "ml")
    return fit


def held_out_loss(clients, held_out, *, rounds, binary, random, **options):
    """Mean loss of held-out rows, under the coefficients of the last round before its step of τ² and σ²."""
    fit = fitted(clients, rounds=rounds - 1, binary=binary, random=random, **options)
    data = [(design(x), y) for x, y in clients]
    fit = means(fit, data, binary, options.get("estimate", "shrunk") == "shrunk")
    losses = []
    for (X, y), (x_out, y_out) in zip(data, held_out, strict=True):
        eta = design(x_out) @ posterior(X, y, fit, binary)[0]
        losses += list(np.logaddexp(0, eta) - y_out * eta if binary else (y_out - eta) ** 2 / 2)
    return np.mean(losses)


def expected_information(fit, clients, groups):
    """Of (τ_g², σ²) in the likelihood of y ~ N(Xμ, Ω): ½ tr Ω⁻¹Ω_iΩ⁻¹Ω_j, [G + 1, G + 1]."""
    total = 0
    for x, y in clients:
        X = design(x)
        inverse = np.linalg.inv(fit["s2"] * np.eye(len(y)) + X * fit["var"] @ X.T)
        parts = [X[:, group] @ X[:, group].T for group in groups] + [np.eye(len(y))]
        total = total + np.array([[np.trace(inverse @ one @ inverse @ two) / 2 for two in parts] for one in parts])
    return total
