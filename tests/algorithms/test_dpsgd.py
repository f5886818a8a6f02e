import networkx as nx
import numpy as np
import pytest
import torch
from federated_round import Federation, as_arrays, distance, flat, make_clients
from references.dpsgd_numpy import rounds

from lit_fed.algorithms import DPSGD, DFedEM
from lit_fed.core.graphs.topology import PathGraph, Ring
from lit_fed.core.local_solver import LocalSolver

SIZES, RATE = [5, 2, 8, 3, 6], 0.4
COHORTS = [[0, 1, 2, 3, 4], [4, 1, 2], [0, 1, 3, 4]]


def started(algorithm, trainer=None, **options):
    options = {"solver": LocalSolver(lr=RATE, local_steps=1), "batch_size": 0} | options
    return Federation(algorithm, make_clients(SIZES), trainer=trainer, **options)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("order", ["parallel", "after"])
@pytest.mark.parametrize("topology", [Ring(), PathGraph()], ids=["ring", "path"])
def test_rounds_are_those_of_the_reference(topology, order, weighting, client_trainer):
    """Logistic regression from a model of each client's own; some clients are absent."""
    federation = started(DPSGD(topology, order=order, common_start=False), client_trainer, weighting=weighting)
    clients, own = as_arrays(federation.train), weighting == "samples"

    def gradient(i, model):
        x, y = clients[i]
        slope = (1 / (1 + np.exp(-(x @ model[:-1] + model[-1]))) - y) / len(y)
        return np.append(slope @ x, slope.sum()) * (len(y) * len(SIZES) / sum(SIZES) if own else 1)

    edges = (nx.cycle_graph if topology == Ring() else nx.path_graph)(len(SIZES)).edges
    models = flat(federation.shared.parameters).numpy()
    for cohort, expected in zip(COHORTS, rounds(models, gradient, list(edges), COHORTS, RATE, order), strict=True):
        federation.round(cohort)
        np.testing.assert_allclose(flat(federation.shared.parameters).numpy(), expected, rtol=0, atol=1e-12)
    mean = flat(federation.shared.mean.parameters)[0].numpy()
    np.testing.assert_allclose(mean, expected.mean(0), rtol=0, atol=1e-12)
    x = torch.from_numpy(clients[1][0])
    served = federation.predictions()[1].exp()[:, 1].numpy()
    np.testing.assert_allclose(served, 1 / (1 + np.exp(-(x.numpy() @ expected[1][:-1] + expected[1][-1]))), atol=1e-12)


def test_the_mean_model_takes_the_mean_step():
    """W is doubly stochastic, so that in both orders the mean of the models moves by the mean of the steps."""
    first = [started(DPSGD(order=order)) for order in ("parallel", "after")]
    for one in first:
        one.round()
    means = [flat(one.shared.mean.parameters) for one in first]
    assert distance(*means) < 1e-12
    assert distance(*(flat(one.shared.parameters) for one in first)) > 1e-3


def test_averaged_after_the_steps_it_is_d_fedem_with_one_component():
    """Also with several steps on batches, and kept momentum."""
    solver = LocalSolver(lr=0.1, momentum=0.9, persist_optimizer=True)
    pair = [
        started(one, solver=solver, batch_size=2)
        for one in (DPSGD(order="after"), DFedEM(1, Ring(), "lazy_metropolis"))
    ]
    for one in pair:
        for cohort in COHORTS:
            one.round(cohort)
    assert distance(*(one.shared for one in pair)) < 1e-12
    assert pair[0].bits.tolist() == pair[1].bits.tolist()
