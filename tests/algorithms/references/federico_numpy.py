"""FedeRiCo in NumPy: logistic regression, written from the paper's Algorithm 1 alone.

A model is a vector [d + 1] whose last entry is the bias.
"""

import numpy as np
from references.logistic import probability


def losses(theta, x, y):
    logit = x @ theta[:-1] + theta[-1]
    return np.logaddexp(0, np.where(y > 0, -logit, logit))


def gradient(theta, x, y):
    """Of the sum over samples."""
    error = probability(theta, x) - y
    return np.append(x.T @ error, error.sum())


class Owner:
    """A model and the optimizer of its owner."""

    def __init__(self, theta, lr, momentum=0.0, weight_decay=0.0, adam=False):
        self.theta, self.lr, self.momentum, self.weight_decay, self.adam = theta, lr, momentum, weight_decay, adam
        self.first, self.second, self.steps = np.zeros_like(theta), np.zeros_like(theta), 0

    def step(self, g):
        g = g + self.weight_decay * self.theta
        self.steps += 1
        if self.adam:
            self.first = 0.9 * self.first + 0.1 * g
            self.second = 0.999 * self.second + 0.001 * g**2
            mean, square = self.first / (1 - 0.9**self.steps), self.second / (1 - 0.999**self.steps)
            self.theta = self.theta - self.lr * mean / (np.sqrt(square) + 1e-8)
        else:
            self.first = self.momentum * self.first + g
            self.theta = self.theta - self.lr * self.first


class Client:
    """What client i remembers of the others' models."""

    def __init__(self, i, num_clients):
        self.i, self.last, self.average = i, np.zeros(num_clients), np.zeros(num_clients)
        self.rounds, self.w = np.zeros(num_clients, dtype=int), np.full(num_clients, 1 / num_clients)

    def tracked(self, tracking, beta):
        if tracking != "corrected_ema":
            return self.average
        return np.array(
            [a / (1 - (1 - beta) ** n) if n else 0.0 for a, n in zip(self.average, self.rounds, strict=True)]
        )

    def neighbours(self, coin, ties, num, epsilon, tracking, beta, present):
        rank = np.zeros(len(ties)) if coin < epsilon else self.tracked(tracking, beta)
        others = [j for j in present if j != self.i]
        return [self.i, *sorted(others, key=lambda j: (rank[j], ties[j]))[:num]]

    def e_step(self, found, tracking, beta):
        for j, loss in found.items():
            self.last[j] = loss
        self.rounds += (self.rounds > 0) | np.isin(np.arange(len(self.last)), list(found))
        if tracking == "accumulated":
            self.average = self.average + self.last
        else:
            self.average = (1 - beta) * self.average + beta * self.last
        seen, tracked = self.rounds > 0, self.tracked(tracking, beta)
        weights = np.where(seen, np.exp(-(tracked - tracked[seen].min())), 0.0)
        self.w = weights / weights.sum()


def local_steps(theta, x, y, batches, **solver):
    owner = Owner(theta, **solver)
    for batch in batches:
        owner.step(gradient(owner.theta, x[batch], y[batch]) / len(batch))
    return owner.theta


def federico_round(owners, clients, data, coins, ties, present, batches, *, num, epsilon, beta, tracking, loss, change):
    """One round; `change` holds the local solver for several local steps, else one gradient is sent."""
    received, total = {i: [] for i in present}, dict.fromkeys(present, 0.0)
    for i in present:
        (x, y), client = data[i], clients[i]
        asked = client.neighbours(coins[i], ties[i], num, epsilon, tracking, beta, present)
        scale = len(y) if loss == "mean" else 1
        client.e_step({j: losses(owners[j].theta, x, y).sum() / scale for j in asked}, tracking, beta)
        for j in asked:
            theta = owners[j].theta
            if change is None:
                received[j].append(client.w[j] * gradient(theta, x, y) / scale)
            else:
                total[j] += client.w[j]
                received[j].append(client.w[j] * (local_steps(theta, x, y, batches[i], **change) - theta))
    for i in present:
        if change is None:
            owners[i].step(np.sum(received[i], axis=0))
        else:
            owners[i].theta = owners[i].theta + np.sum(received[i], axis=0) / max(1.0, total[i])


def predict(w, owners, x):
    """Probabilities [n, 2] of the mixture."""
    positive = sum(weight * probability(owner.theta, x) for weight, owner in zip(w, owners, strict=True))
    return np.stack([1 - positive, positive], axis=1)
