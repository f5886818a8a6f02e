import numpy as np
import torch
from federated_round import as_arrays, batch_orders, flat
from few_classes import HEAVY, close, samples, started, unseen_samples
from references.fedpac_numpy import fedpac_round, on_the_simplex, train_head
from references.two_layers import log_softmax, outputs

from lit_fed.algorithms import FedPAC
from lit_fed.algorithms.fedpac import smallest_mixture
from lit_fed.core.types import LocalWork


def served_as(federation, data, seen, body, heads):
    for found, head, (x, _) in zip(federation.predictions(data, seen=seen), heads, as_arrays(data), strict=True):
        close(found, log_softmax(outputs(np.concatenate([body, head]), x)))


def test_rounds_are_those_of_the_reference(client_trainer):
    """One client lacks a class; another one is not in the first round, after which a class has no centroid yet."""
    data = samples()
    data.y[:5], data.y[5:7] = data.y.new_tensor([0, 0, 2, 2, 0]), 2
    federation, clients = started(FedPAC(0.7, 2, 0.2), client_trainer, train=data, epochs=2)
    body, heads = federation.weights[0].numpy(), list(flat(federation.shared.heads.parameters).numpy())
    centroids, settings = {}, {"weight": 0.7, "head_lr": 0.2} | HEAVY
    (phase,) = federation.algorithm.phases(federation.context("train"), torch.arange(3))
    for cohort in ([0, 1], [0, 1, 2], [2, 1]):
        orders = [batch_orders(federation, work=work, stage=name) for name, work in phase.work.by_stage]
        body, heads, centroids = fedpac_round(body, heads, centroids, clients, *orders, present=cohort, **settings)
        federation.round(cohort)
        close(federation.weights, [body])
        close(flat(federation.shared.heads.parameters), heads)
        known = federation.shared.known.nonzero()[:, 0].tolist()
        assert known == sorted(centroids)
        close(federation.shared.prototypes[known], [centroids[k] for k in known])
    served_as(federation, samples([4, 2, 3], seed=1), True, body, heads)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_samples())
    unseen = [(x, y.astype(int)) for x, y in as_arrays(unseen_samples())]
    start = np.mean(heads, axis=0)
    fitted = [train_head(body, start, x, y, own, **HEAVY) for own, (x, y) in zip(orders, unseen, strict=True)]
    served_as(federation, unseen_samples(), False, body, fitted)


def test_mixtures_are_the_best_of_all_supports():
    rng, supports = np.random.default_rng(0), set()
    for _ in range(30):
        points = rng.normal(size=(4, 3)) + rng.normal(size=3)
        q = points @ points.T + np.diag(rng.uniform(0, 0.3, size=4))
        found = smallest_mixture(torch.tensor(q)).numpy()
        close(found, on_the_simplex(q), atol=1e-9)
        supports.add(tuple(found > 0))
    assert len(supports) > 5
    close(smallest_mixture(torch.zeros(3, 3, dtype=torch.float64)).sum(), 1)
