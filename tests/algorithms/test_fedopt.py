import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
)
from references.fedopt_numpy import adaptive, averaged_change

from lit_fed.algorithms import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedOpt, FedYogi
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.reduce import as_shared
from lit_fed.core.server_optimizer import ServerOptimizer
from lit_fed.core.types import Reduced
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8]
ADAPTIVE = {"adagrad": FedAdagrad, "yogi": FedYogi, "adam": FedAdam}


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
def test_rounds_are_those_of_the_reference(method, aggregation, client_trainer):
    """Rounds of all and of some clients, with momentum in the clients' steps."""
    decays = {"beta1": 0.7} if method == "adagrad" else {"beta1": 0.8, "beta2": 0.9}
    options = {"server_lr": 0.3, "tau": 0.05, **decays}
    train, solver = make_clients(SIZES), LocalSolver(lr=0.5, momentum=0.9, local_epochs=2)
    setting = {"trainer": client_trainer, "solver": solver, "batch_size": 2, "aggregation": aggregation}
    federation = Federation(ADAPTIVE[method](**options), train, **setting)
    state = federation.weights[0].numpy(), np.zeros(5), np.full(5, 0.05**2)
    for present in ([0, 1, 2], [1], [2, 0], [0, 1, 2]):
        all_samples = 15 if aggregation == "stale_fill" else None
        orders = batch_orders(federation)
        change = averaged_change(state[0], as_arrays(train), orders, present, 0.5, 0.9, all_samples=all_samples)
        state = adaptive(state, change, method, **options)
        federation.round(present)
        shared = federation.shared
        found = [flat(part)[0].numpy() for part in (shared.models.parameters, shared.first, shared.second)]
        np.testing.assert_allclose(found, state, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- identities
def test_the_first_round_of_adagrad():
    """θ = θ⁰ + ηΔ / (√(τ² + Δ²) + τ)."""
    train = make_clients(SIZES)
    start = Federation(FedAvg(), train).weights
    change = run_rounds(FedAvg(), None, train, rounds=1).weights - start
    found = run_rounds(FedAdagrad(0.3, 0.01), None, train, rounds=1).weights
    expected = start + 0.3 * change / ((0.01**2 + change**2).sqrt() + 0.01)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- the server's state
def test_small_changes_are_not_lost_in_float32():
    """The change is taken before the average is rounded to the type of the models."""
    federation = Federation(
        FedAdam(beta1=0.5), make_clients(SIZES, dtype=torch.float32), make_task(dtype=torch.float32)
    )
    start = tree.map_leaves(lambda leaf: 64 + leaf, federation.shared.models)
    shared = federation.shared._replace(models=start)
    average = Reduced(tree.map_leaves(lambda leaf: leaf.double() + 1e-7, start), torch.ones(()))
    new = federation.algorithm.server_step(federation.context("train"), shared, average, torch.arange(3))
    new = as_shared(new, shared, "FedAdam")
    torch.testing.assert_close(flat(new.first), torch.full((1, 5), 0.5e-7), rtol=1e-5, atol=0)


# ---------------------------------------------------------------------- any optimizer
OPTIONS = {
    "SGD": {"momentum": 0.9, "nesterov": True}, "Adam": {"amsgrad": True}, "AdamW": {"weight_decay": 0.1},
    "Adagrad": {}, "Adadelta": {"rho": 0.8}, "Adamax": {}, "NAdam": {}, "RAdam": {"betas": [0.5, 0.9]},
    "RMSprop": {"centered": True}, "Rprop": {},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_the_server_steps_as_an_optimizer_of_pytorch_would(name):
    """Which goes on from round to round with its own moments, on minus the average change, at a rate that decays."""
    setting = {"train": make_clients(SIZES), "solver": LocalSolver(lr=0.5)}
    federation = Federation(FedOpt(ServerOptimizer(name, 0.05, "linear", OPTIONS[name])), **setting)
    plain = Federation(FedAvg(), **setting)
    leaf = {one: torch.nn.Parameter(value.clone()) for one, value in federation.shared.models.parameters.items()}
    optimizer = getattr(torch.optim, name)(leaf.values(), lr=0.05, **OPTIONS[name])
    for round_idx in range(4):
        plain.shared, plain.round_idx = plain.shared._replace(models=federation.shared.models), round_idx
        plain.round()
        for one, value in leaf.items():
            value.grad = value.detach() - plain.shared.models.parameters[one]
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + round_idx)
        optimizer.step()
        before, kept = federation.shared.moments, tree.map_leaves(torch.clone, federation.shared.moments)
        federation.round()
        assert same_bits(before, kept)  # PyTorch counts steps in place
        assert distance(federation.shared.models.parameters, tree.map_leaves(torch.detach, leaf)) < 1e-12


def test_rounds_beyond_a_schedule_keep_its_last_rate():
    """A run that goes on with more rounds does not raise the server's rate again."""
    given = FedOpt(ServerOptimizer(lr=1.0, schedule="multi_step"))
    federation = Federation(given, make_clients(SIZES), solver=LocalSolver(lr=0.5), num_rounds=80, round_idx=5)
    plain = Federation(FedAvg(), make_clients(SIZES), solver=LocalSolver(lr=0.5), num_rounds=80, round_idx=5)
    federation.schedule_rounds, start = 4, federation.weights
    federation.round()
    plain.round()
    torch.testing.assert_close(federation.weights - start, 0.01 * (plain.weights - start), rtol=0, atol=1e-12)


def test_with_sgd_it_is_fedavgm_and_fedavg():
    setting = {"train": make_clients(SIZES), "solver": LocalSolver(lr=0.5)}
    momentum = FedOpt(ServerOptimizer(lr=0.5, options={"momentum": 0.7}))
    for any_, known in ((momentum, FedAvgM(server_lr=0.5, server_momentum=0.7)), (FedOpt(), FedAvg())):
        found, expected = (run_rounds(one, **setting).weights for one in (any_, known))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": 0.0}, r"lr is 0.0; give a number > 0"),
        ({"name": "LBFGS"}, r"name is LBFGS; give SGD, Adam, "),
        ({"options": {"maximize": True}}, r"options has 'maximize'; SGD takes momentum, dampening, "),
        ({"options": {"momentum": "0.9"}}, r"options: momentum is '0.9'; give a number"),
        ({"name": "Adam", "options": {"betas": 0.9}}, r"options: .*; give values that torch.optim.Adam takes"),
        ({"name": "Adam", "options": {"betas": [0.9]}}, r"options: .*; give values that torch.optim.Adam takes"),
        ({"options": {"momentum": -1}}, r"options: Invalid momentum value: -1; give values that torch.optim.SGD takes"),
    ],
)
def test_wrong_options_of_the_optimizer_are_refused(given, message):
    with pytest.raises(ConfigError, match=f"--model.algorithm.server_optimizer.{message}"):
        FedOpt(ServerOptimizer(**given))
