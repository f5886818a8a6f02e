import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    quadratics,
    run_rounds,
    two_quadratics,
)
from normalised import NormalisedMLP
from references.fedavgm_numpy import server_round
from torch.nn import functional as F

from lit_fed.algorithms import FedAvg, FedAvgM, FedSGD
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import ModelState, Reduced
from lit_fed.models import Linear

SIZES = [5, 2, 8]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
def test_rounds_are_those_of_the_reference(momentum, aggregation, client_trainer):
    """Rounds of all and of some clients."""
    train, solver = make_clients(SIZES), LocalSolver(lr=0.5, momentum=momentum, local_epochs=2)
    options = {"trainer": client_trainer, "solver": solver, "batch_size": 2, "aggregation": aggregation}
    federation = Federation(FedAvgM(0.7, 0.9), train, **options)
    w, v = federation.weights[0].numpy(), np.zeros(5)
    rates = {"server_lr": 0.7, "server_momentum": 0.9, "lr": 0.5, "momentum": momentum}
    for present in ([0, 1, 2], [1], [2, 0], [0, 1, 2]):
        orders, everyone = batch_orders(federation), aggregation == "stale_fill"
        w, v = server_round(w, v, as_arrays(train), orders, present, everyone=everyone, **rates)
        federation.round(present)
        np.testing.assert_allclose(federation.weights[0], w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.shared.momentum)[0], v, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- two quadratics
def on_quadratics(algorithm, rounds, lr=0.1):
    """½(w − 0)² and ½·3(w − 4)², from 0, with equal weights, one step a round."""
    setting = two_quadratics(solver=LocalSolver(lr=lr, local_steps=1), weighting="uniform")
    return run_rounds(algorithm, rounds=rounds, **setting)


def test_two_steps_on_two_quadratics():
    """Δ = 0.6 − 0.2w: v is 0.6 and then 0.9·0.6 + 0.6 − 0.2·0.6."""
    assert float(on_quadratics(FedAvgM(), 1).weights) == pytest.approx(0.6, abs=1e-9)
    assert float(on_quadratics(FedAvgM(), 2).weights) == pytest.approx(0.6 + 1.02, abs=1e-9)
    assert float(on_quadratics(FedAvgM(0.5, 0.0), 1).weights) == pytest.approx(0.3, abs=1e-9)


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("server_lr", [0.5, 1.0])
def test_momentum_over_single_steps_is_that_of_torch(server_lr):
    """Where clients take one step on all their samples, Δw = −η ∇f, and the server is torch.optim.SGD."""
    train = make_clients(SIZES)
    solver = LocalSolver(lr=0.4, local_steps=1)
    federation = Federation(FedAvgM(server_lr, 0.8), train, solver=solver, batch_size=0)
    network = Linear((4,), 1).double()
    network.load_state_dict(tree.index(federation.shared.models.parameters, 0))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.4 * server_lr, momentum=0.8)
    descent = Federation(FedSGD(), train, solver=LocalSolver(lr=0.4 * server_lr, momentum=0.8))
    for _ in range(4):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(network(train.x)[:, 0], train.y.double()).backward()
        optimizer.step()
        federation.round()
        descent.round()
        expected = torch.cat([leaf.detach().flatten() for leaf in network.parameters()])
        torch.testing.assert_close(federation.weights[0], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(descent.weights[0], expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- the server's state
def after_a_step(algorithm, change, dtype=torch.float64):
    """One server step of one parameter from w = 64 and v = 0.5."""
    one = lambda value: {"weight": torch.full((1, 1), value, dtype=dtype)}  # noqa: E731
    federation = Federation(algorithm, quadratics([1.0], [0.0]), make_task(REGRESSION, 1, Scale, dtype=dtype))
    shared = federation.shared._replace(models=ModelState(one(64.0), {}), momentum=one(0.5))
    average = {"weight": torch.full((1, 1), 64.0 + change, dtype=torch.float64)}
    reduced = Reduced(ModelState(average, {}), torch.tensor(1.0, dtype=torch.float64))
    return algorithm.server_step(federation.context("train"), shared, reduced, torch.arange(1))


def test_small_changes_are_not_lost_in_float32():
    """The change is taken before the average is rounded to the type of the models."""
    new = after_a_step(FedAvgM(server_momentum=0.0), 1e-7, torch.float32)
    torch.testing.assert_close(flat(new.momentum).float(), torch.full((1, 1), 1e-7), rtol=1e-5, atol=0)


def test_running_statistics_have_no_momentum(client_trainer):
    options = {"task": make_task(network=NormalisedMLP), "rounds": 1}
    one, other = (run_rounds(kind(), client_trainer, make_clients([5, 4, 8]), **options) for kind in (FedAvgM, FedAvg))
    assert tree.leaves(one.shared.models.buffers)
    assert distance(one.shared.models.buffers, other.shared.models.buffers) < 1e-14
    assert set(one.shared.momentum) == set(one.shared.models.parameters)
