"""Clustered FL in NumPy: logistic regressions, written from the paper alone; bipartitions by trying all of them.

A model is a vector [d + 1] whose last entry is the bias.
"""

from itertools import product

import numpy as np
from references.logistic import sgd


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def best_division(updates):
    """The two lists of positions with the smallest largest similarity across, the first holding position 0."""
    divisions = []
    for bits in product([0, 1], repeat=len(updates) - 1):
        if any(bits):
            left = [0, *(i + 1 for i, bit in enumerate(bits) if not bit)]
            right = [i + 1 for i, bit in enumerate(bits) if bit]
            largest = max(cosine(updates[i], updates[j]) for i in left for j in right)
            divisions.append((largest, left, right))
    return min(divisions, key=lambda one: one[0])


def clustered_round(clusters, clients, batches, *, eps1, eps2, most, min_size, **solver):
    """One round.

    Args:
        clusters: (model, list of clients) of each.
        clients: (x, y) of every client.
        batches: of every client.
        eps1: the average update must be shorter than this share of the longest.
        eps2: the longest must be longer.
        most: number of clusters at most.
        min_size: clusters of no more clients stay together.
        solver: of the clients.

    Returns:
        The new clusters, those who left a cluster as a new one at the end; and of each split the cluster, its model
        before, and (client, side, update) of its clients.
    """
    groups, models, splits = [], {}, []
    born = []
    for number, (theta, members) in enumerate(clusters):
        for i in members:
            models[i] = sgd(theta, *clients[i], batches[i], **solver)
        updates = [models[i] - theta for i in members]
        sizes = np.array([len(clients[i][1]) for i in members])
        average = np.linalg.norm(np.average(updates, axis=0, weights=sizes))
        longest = max(np.linalg.norm(one) for one in updates)
        wanted = average < eps1 * longest and longest > eps2 and len(members) > min_size
        if wanted and len(clusters) + len(born) < most:
            _, left, right = best_division(updates)
            splits.append((number, theta, [(members[p], int(p in right), updates[p]) for p in range(len(members))]))
            born.append([members[p] for p in right])
            members = [members[p] for p in left]
        groups.append(members)
    return [(mean_model(models, clients, members), members) for members in groups + born], splits


def mean_model(models, clients, members):
    return np.average([models[i] for i in members], axis=0, weights=[len(clients[i][1]) for i in members])


def place(splits, x, y, batches, **solver):
    """The cluster of an unseen client: down the tree of splits, which are numbered as they happened."""
    cluster = 0
    for number, (parent, theta, cached) in enumerate(splits):
        if cluster == parent:
            own = sgd(theta, x, y, batches, **solver) - theta
            likeness = [max(cosine(own, update) for _, on, update in cached if on == side) for side in (0, 1)]
            cluster = number + 1 if likeness[1] > likeness[0] else cluster
    return cluster
