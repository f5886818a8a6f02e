import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    run_rounds,
    same_bits,
    two_quadratics,
)
from references.fedavg_numpy import fedavg_round
from references.logistic import predict
from torch.nn import functional as F

from lit_fed.algorithms import FedAvg
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split
from lit_fed.models import Linear

SOLVERS = [
    {"lr": 0.5},
    {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05},
    {"lr": 0.3, "momentum": 0.9, "persist_optimizer": True},
]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize("sizes", [[5, 5, 5], [5, 2, 8]])
def test_rounds_are_those_of_the_reference(options, sizes, client_trainer):
    train = make_clients(sizes)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(FedAvg(), train, solver=solver, trainer=client_trainer, batch_size=2)
    options = {name: value for name, value in options.items() if name != "persist_optimizer"}
    theta, velocities = federation.weights[0].numpy(), None
    for _ in range(3):
        batches = batch_orders(federation)
        theta, kept = fedavg_round(theta, as_arrays(train), batches, velocities=velocities, **options)
        velocities = kept if solver.persist_optimizer else None
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
    for prediction, (x, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(prediction.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_sampled_rounds_are_those_of_the_reference(aggregation, weighting, client_trainer):
    train = make_clients([5, 2, 8])
    options = {"aggregation": aggregation, "weighting": weighting, "batch_size": 2}
    federation = Federation(FedAvg(), train, trainer=client_trainer, **options)
    theta = federation.weights[0].numpy()
    for present in ([0, 2], [1], [1, 2]):
        theta, _ = fedavg_round(
            theta, as_arrays(train), batch_orders(federation), present=present, lr=0.1,
            uniform=weighting == "uniform", stale_fill=aggregation == "stale_fill",
        )  # fmt: skip
        federation.round(present)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- two quadratics
def on_quadratics(steps, rounds=1):
    """½(w − 0)² and ½·3(w − 4)², from 0, with equal weights and rate 0.1."""
    setting = two_quadratics(solver=LocalSolver(lr=0.1, local_steps=steps), weighting="uniform")
    return float(run_rounds(FedAvg(), rounds=rounds, **setting).weights)


@pytest.mark.parametrize(("steps", "expected"), [(1, 0.6), (2, 1.02), (5, 1.66386)])
def test_first_round_on_two_quadratics(steps, expected):
    assert on_quadratics(steps) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("steps", "rounds", "expected"), [(1, 110, 3), (2, 60, 2.9142857143), (5, 30, 2.6805322851)])
def test_fixed_point_on_two_quadratics(steps, rounds, expected):
    assert on_quadratics(steps, rounds) == pytest.approx(expected, abs=1e-9)


def test_many_local_steps_average_the_clients_optima():
    assert on_quadratics(300) == pytest.approx(2, abs=1e-9)


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize("options", SOLVERS[:2], ids=str)
def test_one_client_is_plain_sgd(options, client_trainer):
    train = make_clients([7])
    federation = Federation(FedAvg(), train, solver=LocalSolver(**options), trainer=client_trainer, batch_size=3)
    network = Linear((4,), 1).double()
    network.load_state_dict(tree.index(federation.shared.models.parameters, 0))
    for _ in range(3):
        optimizer = torch.optim.SGD(network.parameters(), **options)
        for batch in batch_orders(federation)[0]:
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(network(train.x[batch])[:, 0], train.y[batch].double()).backward()
            optimizer.step()
        federation.round()
        expected = torch.cat([leaf.detach().flatten() for leaf in network.parameters()])
        torch.testing.assert_close(federation.weights[0], expected, rtol=0, atol=1e-12)


def test_identical_clients_train_as_one(client_trainer):
    shard = make_clients([6])
    copies = Split(shard.x.repeat(3, 1), shard.y.repeat(3), torch.tensor([0, 6, 12, 18]))
    options = {"solver": LocalSolver(local_steps=4, momentum=0.9), "batch_size": 0, "trainer": client_trainer}
    one, other = (run_rounds(FedAvg(), train=data, **options) for data in (shard, copies))
    assert distance(one.shared, other.shared) < 1e-12


def test_stale_fill_is_renormalised_with_a_smaller_server_step():
    train = make_clients([5, 2, 8])
    start = Federation(FedAvg(), train)
    renormalised, filled = (
        run_rounds(FedAvg(), None, train, rounds=1, cohorts=[[0, 1]], aggregation=aggregation)
        for aggregation in ("renormalised", "stale_fill")
    )
    expected = start.weights + 7 / 15 * (renormalised.weights - start.weights)
    torch.testing.assert_close(filled.weights, expected, rtol=0, atol=1e-14)


def test_a_client_drawn_twice_counts_twice():
    train = make_clients([5, 2, 8])
    once, twice = (
        run_rounds(FedAvg(), None, train, rounds=1, cohorts=[cohort], weighting="uniform")
        for cohort in ([0, 2], [0, 2, 2])
    )
    alone = [run_rounds(FedAvg(), None, train, rounds=1, cohorts=[[one]]).weights for one in (0, 2)]
    torch.testing.assert_close(twice.weights, (alone[0] + 2 * alone[1]) / 3, rtol=0, atol=1e-14)
    assert once.bits.tolist() == twice.bits.tolist()


# ---------------------------------------------------------------------- the rest


def test_the_training_loss_is_the_mean_over_steps_before_each():
    federation = Federation(FedAvg(), make_clients([6]), solver=LocalSolver(lr=0.0), batch_size=0)
    federation.round()
    assert federation.metrics["loss"] == pytest.approx(float(federation.evaluate()[0, 1]) / 6, abs=1e-12)


def test_rounds_follow_the_schedule():
    train = make_clients([5])
    solver = LocalSolver(lr=1.0, schedule="linear", local_steps=1)
    federation = run_rounds(FedAvg(), None, train, rounds=1, num_rounds=4, solver=solver)
    before = federation.shared
    federation.round()
    half = Federation(FedAvg(), train, solver=LocalSolver(lr=0.5, local_steps=1), shared=before, round_idx=1)
    half.round()
    assert same_bits(federation.shared, half.shared)
