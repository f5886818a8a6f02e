import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    distance,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
)
from references.fedsgd_numpy import fedsgd_round
from torch import nn
from torch.nn import functional as F

from lit_fed.algorithms import FedAvg, FedSGD
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.models import Linear

SIZES = [5, 2, 8]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_rounds_are_those_of_the_reference(options, batch_size, weighting, client_trainer):
    train = make_clients(SIZES)
    federation = Federation(
        FedSGD(), train, solver=LocalSolver(**options), trainer=client_trainer, batch_size=batch_size,
        weighting=weighting,
    )  # fmt: skip
    theta, velocity, arrays = federation.weights[0].numpy(), 0.0, as_arrays(train)
    for present in ([0, 1, 2], [1], [0, 2]):
        some = [arrays[one] for one in present]
        theta, velocity = fedsgd_round(theta, velocity, some, uniform=weighting == "uniform", **options)
        federation.round(present)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.5},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
        {"lr": 0.1, "momentum": 0.7, "nesterov": True},
        {"lr": 0.05, "optimizer": "adam", "weight_decay": 0.1},
        {"lr": 0.5, "clip_norm": 0.05},
    ],
    ids=str,
)
def test_it_is_training_on_the_union(options, client_trainer):
    """Momentum, Adam's moments and the clipped norm are those of one machine, and live on from round to round."""
    train = make_clients(SIZES)
    federation = Federation(FedSGD(), train, solver=LocalSolver(**options), trainer=client_trainer)
    network = Linear((4,), 1).double()
    network.load_state_dict(tree.index(federation.shared.models.parameters, 0))
    options = dict(options)
    clip_norm, kind = options.pop("clip_norm", torch.inf), options.pop("optimizer", "sgd")
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](network.parameters(), **options)
    for _ in range(4):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(network(train.x)[:, 0], train.y.double()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        optimizer.step()
        federation.round()
        expected = torch.cat([leaf.detach().flatten() for leaf in network.parameters()])
        torch.testing.assert_close(federation.weights[0], expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- FedAvg with one step
@pytest.mark.parametrize("network", [Linear, small_mlp], ids=["linear", "mlp"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_fedavg_with_one_step_on_all_samples(network, weight_decay, client_trainer):
    options = {"task": make_task(network=network), "cohorts": [[0, 1, 2], [1], [0, 2, 2]], "batch_size": 0}
    options["solver"] = LocalSolver(lr=0.7, weight_decay=weight_decay, local_steps=1)
    one, other = (run_rounds(kind(), client_trainer, make_clients(SIZES), **options) for kind in (FedSGD, FedAvg))
    assert distance(one.shared.models, other.shared.models) < 1e-14
    assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=1e-14)
    assert one.bits.tolist() == other.bits.tolist()


# ---------------------------------------------------------------------- what has no meaning
@pytest.mark.parametrize(
    "changed",
    [{"local_epochs": 3}, {"local_steps": 7}, {"straggler_fraction": 1.0}, {"persist_optimizer": True}],
    ids=str,
)
def test_local_work_is_one_pass_whatever_the_solver(changed, client_trainer):
    solvers = LocalSolver(momentum=0.9), LocalSolver(momentum=0.9, **changed)
    one, other = (run_rounds(FedSGD(), client_trainer, make_clients(SIZES), solver=solver) for solver in solvers)
    assert same_bits(one.shared, other.shared)


# ---------------------------------------------------------------------- the rest
def test_the_loss_is_that_of_the_received_model(client_trainer):
    federation = run_rounds(FedSGD(), client_trainer, make_clients(SIZES), rounds=1, solver=LocalSolver(lr=0.0))
    assert federation.metrics["loss"] == pytest.approx(float(federation.evaluate()[:, 1].sum()) / 15, abs=1e-14)
