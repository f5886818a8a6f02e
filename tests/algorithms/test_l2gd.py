from itertools import groupby, pairwise

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
    make_context,
    make_task,
    perturbed,
    quadratics,
    run_rounds,
    same_bits,
)
from normalised import NormalisedMLP
from references.l2gd_numpy import l2gd_round, l2sgd_plus_round, tune
from references.logistic import predict

from lit_fed.algorithms import L2GD, L2SGDPlus, Local
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError

Q2 = quadratics([1.0, 3.0], [0.0, 4.0])


def scalar(**fields):
    """Options of the fixture with one parameter."""
    return {"task": make_task(REGRESSION, 1, Scale), "batch_size": 0} | fields


def coins_of(algorithm, round_idx, seed=0):
    draws = generator(seed, round_idx, 0, "l2gd").random(algorithm.flips_per_round)
    return [draw < algorithm.communication_probability for draw in draws]


def local_batches(federation, coins):
    """The batches of each run of local steps of the coming round."""
    size = 0 if federation.algorithm.gradient == "full" else None
    runs = [(place, coin, len(list(flips))) for place, (coin, flips) in enumerate(groupby(coins))]
    works = {place: LocalWork(steps=steps, batch_size=size) for place, coin, steps in runs if not coin}
    return [batch_orders(federation, f"local/{place}", work) for place, work in works.items()]


def positions(federation):
    return federation.states.models.parameters["weight"].flatten()


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize(("gradient", "scaling"), [("full", "paper"), ("stochastic", "slides")])
def test_rounds_are_those_of_the_reference(options, gradient, scaling, client_trainer):
    train, test = make_clients([5, 5, 5]), make_clients([4, 2, 3], seed=1)
    algorithm = L2GD(0.4, 0.8, flips_per_round=6, gradient=gradient, scaling=scaling)
    options = options | {"lr": 0.9 if scaling == "paper" else 0.3}
    federation = Federation(algorithm, train, solver=LocalSolver(**options), trainer=client_trainer, batch_size=2)
    models, mean = [federation.weights[0].numpy()] * 3, federation.weights[0].numpy()
    seen = set()
    for round_idx in range(4):
        coins = coins_of(algorithm, round_idx)
        models, mean, communications = l2gd_round(
            models, mean, coins, as_arrays(train), local_batches(federation, coins),
            p=0.4, prox_weight=0.8, n=3 if scaling == "paper" else 1, **options,
        )  # fmt: skip
        federation.round()
        np.testing.assert_allclose(flat(federation.states.models).numpy(), np.stack(models), rtol=0, atol=1e-10)
        if mean is not None:
            np.testing.assert_allclose(federation.weights[0].numpy(), mean, rtol=0, atol=1e-10)
        assert federation.bits.tolist() == [communications * 3 * 5 * 64] * 2
        seen.add(communications)
    assert len(seen) > 1  # rounds of several kinds were compared
    for found, theta, (x, _) in zip(federation.predictions(test), models, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("scaling", ["paper", "slides"])
def test_rounds_with_control_variates_are_those_of_the_reference(scaling, client_trainer):
    algorithm, clients = L2SGDPlus(0.4, 0.8, 6, scaling=scaling), make_clients([5, 2, 7])
    lr, n = (0.9, 3) if scaling == "paper" else (0.3, 1)
    federation = Federation(algorithm, clients, solver=LocalSolver(lr=lr), trainer=client_trainer, batch_size=3)
    models, shifts = [federation.weights[0].numpy()] * 3, [np.zeros(5)] * 3
    tables = [np.zeros((m, 5)) for m in (5, 2, 7)]
    for round_idx in range(4):
        coins = coins_of(algorithm, round_idx)
        batches = local_batches(federation, coins)
        l2sgd_plus_round(models, tables, shifts, coins, as_arrays(clients), batches, lr=lr, p=0.4, prox_weight=0.8, n=n)
        federation.round()
        assert federation.bits.tolist() == [sum(coins) * 3 * 5 * 64] * 2
    states = federation.states
    for found, expected in ((states.models, models), (states.shift, shifts)):
        np.testing.assert_allclose(flat(found).numpy(), np.stack(expected), rtol=0, atol=1e-10)
    for one, expected in enumerate(tables):
        found = flat(tree.index(states.table, one)).numpy()
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=0, atol=1e-10)
        assert not found[len(expected) :].any()


@pytest.mark.parametrize(("scaling", "divisor"), [("paper", 3), ("slides", 1)])
def test_an_unseen_client_is_tuned_near_the_mean(scaling, divisor, client_trainer):
    train, unseen = make_clients([5, 5, 5]), make_clients([6, 3], seed=2, first_id=3)
    algorithm = L2GD(0.5, 0.8, flips_per_round=8, scaling=scaling)
    solver = LocalSolver(lr=0.4, schedule="multi_step", local_epochs=2)
    federation = run_rounds(algorithm, client_trainer, train, solver=solver, rounds=4)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen)
    mean, found = federation.weights[0].numpy(), flat(federation.serve(unseen, seen=False).models)
    for own, order, (x, y) in zip(found, orders, as_arrays(unseen), strict=True):
        np.testing.assert_allclose(own.numpy(), tune(mean, x, y, order, 0.4 / divisor, 0.8), rtol=0, atol=1e-10)


def test_before_the_first_averaging_the_mean_is_the_initial_model():
    federation = run_rounds(L2GD(0.0), None, make_clients([5, 2]), rounds=2)
    federation.solver = LocalSolver(local_epochs=0)
    start = Federation(L2GD(0.0), make_clients([5, 2])).shared
    unseen = make_clients([6], first_id=2)
    assert same_bits(tree.index(federation.serve(unseen, seen=False).models, 0), start.models)
    assert distance(tree.index(federation.serve().models, 0), start.models) > 1e-3


# ---------------------------------------------------------------------- identities
def test_never_averaging_is_local_at_a_fraction_of_the_rate():
    alone = run_rounds(Local(), None, Q2, rounds=4, **scalar(solver=LocalSolver(lr=0.25, local_steps=1)))
    ours = run_rounds(L2GD(0.0, 50.0), None, Q2, rounds=4, **scalar(solver=LocalSolver(lr=0.5)))
    assert same_bits(ours.states.models, alone.states.models)
    assert ours.bits.tolist() == [0, 0]
    train = make_clients([5, 2, 8])
    options = {"train": train, "rounds": 2, "batch_size": 0}
    alone = run_rounds(Local(), None, solver=LocalSolver(lr=0.1, local_steps=3, momentum=0.9), **options)
    ours = run_rounds(L2GD(0.0, flips_per_round=3), None, solver=LocalSolver(lr=0.3, momentum=0.9), **options)
    assert distance(ours.states.models, alone.states.models) < 1e-12


def test_always_averaging_ends_after_one_step(client_trainer):
    federation = Federation(L2GD(1.0, 8.0), Q2, trainer=client_trainer, **scalar(solver=LocalSolver(lr=0.25)))
    models = perturbed(federation.states.models)
    mean = tree.map_leaves(lambda leaf: leaf.mean(0), models)
    federation.states, federation.shared = (
        federation.states._replace(models=models),
        federation.shared._replace(models=mean),
    )
    for _ in range(3):
        federation.round()
        assert same_bits(federation.states.models, tree.stack([mean] * 2))
        assert federation.bits.tolist() == [0, 0]


# ---------------------------------------------------------------------- averaging steps
def one_flip(averaging, **fields):
    """A federation of three quadratics in different places, before a round of one local or one averaging step."""
    algorithm = L2GD(0.3, 0.7, **fields)
    last_seed = next(seed for seed in range(99) if [*coins_of(algorithm, 0, seed), *coins_of(algorithm, 1, seed)] == [
        False, averaging
    ])  # fmt: skip
    train = quadratics([1.0, 3.0, 2.0], [0.0, 4.0, -5.0])
    federation = Federation(algorithm, train, **scalar(solver=LocalSolver(lr=0.9), seed=last_seed, round_idx=1))
    federation.num_rounds = 3
    federation.states = federation.states._replace(models=perturbed(federation.states.models, 2.0))
    return federation


def test_running_statistics_are_averaged_like_parameters(client_trainer):
    train, task = make_clients([5, 6]), make_task(network=NormalisedMLP)
    algorithm = L2GD(0.5, 2.0, flips_per_round=2, gradient="stochastic")  # γ = ½
    seed = next(seed for seed in range(99) if coins_of(algorithm, 0, seed) == [False, True])
    options = {"task": task, "rounds": 1, "seed": seed}
    local = L2GD(0.0, gradient="stochastic")  # the same local step without the averaging
    before = run_rounds(local, client_trainer, train, solver=LocalSolver(lr=0.5), **options).states.models
    federation = run_rounds(algorithm, client_trainer, train, solver=LocalSolver(lr=0.25), **options)
    mean = tree.map_leaves(lambda leaf: leaf.double().mean(0), before)
    assert distance(federation.shared.models, mean) < 1e-14
    expected = tree.map_leaves(lambda leaf, middle: (leaf + middle) / 2, before, mean)
    assert distance(federation.states.models, expected) < 1e-14
    assert all(float((leaf[0] - leaf[1]).abs().max()) > 0 for name, leaf in tree.items(before) if "running" in name)


def test_a_flip_is_a_gradient_step_in_expectation():
    local, averaging = one_flip(averaging=False), one_flip(averaging=True)
    x = positions(local)
    assert torch.equal(x, positions(averaging))
    for federation in (local, averaging):
        federation.round()
    a, c = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64), torch.tensor([0.0, 4.0, -5.0], dtype=torch.float64)
    gradient = (a * (x - c) + 0.7 * (x - x.mean())) / 3
    expected = 0.7 * positions(local) + 0.3 * positions(averaging)
    torch.testing.assert_close(expected, x - 0.9 * gradient, rtol=0, atol=1e-13)


# ---------------------------------------------------------------------- communication
@pytest.mark.parametrize("flips", [1, 7])
def test_communication_is_at_transitions_from_local_steps(flips):
    algorithm = L2GD(0.3, flips_per_round=flips)
    ids, task, coins, names = torch.arange(10), make_task(), [], []
    for round_idx in range(2100 // flips):
        coins += coins_of(algorithm, round_idx)
        names += [phase.name for phase in algorithm.phases(make_context(task, round_idx=round_idx), ids)]
    transitions = sum(not one and other for one, other in pairwise(coins))
    assert sum(name.startswith("average") for name in names) == transitions
    assert sum(name.startswith("pull") for name in names) == sum(coins)
    assert transitions == pytest.approx(0.3 * 0.7 * 2100, abs=60)


def test_local_steps_of_a_round_are_merged():
    algorithm = L2GD(0.5, flips_per_round=40)
    phases = algorithm.phases(make_context(), torch.arange(10))
    runs = [len(list(flips)) for coin, flips in groupby(coins_of(algorithm, 0)) if not coin]
    works = [phase.work for phase in phases if phase.name.startswith("local")]
    assert [(work.steps, work.batch_size, work.epochs) for work in works] == [(steps, 0, None) for steps in runs]
    assert len({phase.name for phase in phases if phase.name.startswith("local")}) == len(runs)  # batches of their own


def test_sampled_clients_take_the_steps_and_are_averaged(client_trainer):
    federation = Federation(L2GD(1.0, 1.0), make_clients([5, 2, 8]), trainer=client_trainer)
    before = tree.map_leaves(lambda leaf: leaf.clone(), perturbed(federation.states.models))
    federation.states = federation.states._replace(models=before)
    federation.round([0, 2])
    mean = tree.map_leaves(lambda leaf: (leaf[0] + leaf[2]) / 2, before)
    assert distance(federation.shared.models, mean) < 1e-14
    assert same_bits(tree.index(federation.states.models, 1), tree.index(before, 1))
    gamma = 0.1 / 3
    expected = tree.map_leaves(lambda leaf, middle: (1 - gamma) * leaf[2] + gamma * middle, before, mean)
    assert distance(tree.index(federation.states.models, 2), expected) < 1e-14
    federation.round([0, 1])  # who comes now does not know the mean of the others
    assert federation.bits.tolist() == [2 * 5 * 64, 2 * 5 * 64]


def test_the_loss_of_an_averaging_step_is_that_of_the_last_local_step():
    federation = one_flip(averaging=True)
    federation.states = federation.states._replace(loss=torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64))
    federation.round()
    assert federation.metrics["loss"] == pytest.approx(3.0)


# ---------------------------------------------------------------------- settings


def test_steps_past_the_mean_are_refused():
    solver = LocalSolver(lr=0.1)
    assert L2GD(0.1, 10.0).phases(make_context(solver=solver), torch.arange(10))  # γ = 1
    message = r"prox_weight is 11\.0, .*; give at most 10, or a --model\.solver\.lr of at most 0\.09091"
    with pytest.raises(ConfigError, match=message):
        L2GD(0.1, 11.0).phases(make_context(solver=solver), torch.arange(10))
    with pytest.raises(ConfigError, match="give at most 1, or"):
        L2GD(0.1, 2.0, scaling="slides").phases(make_context(solver=solver), torch.arange(10))
