import math

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
    make_clients,
    make_task,
    quadratics,
    reordered,
    run_rounds,
    same_bits,
)
from references.federico_numpy import Client, Owner, federico_round, losses, predict

from lit_fed.algorithms import FedeRiCo, Local
from lit_fed.core import tree
from lit_fed.core.graphs.peers import draws, put_models
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import ModelState

EVERYBODY = {"num_neighbours": 9, "explore_probability": 0.0}
SIZES = [5, 7, 4, 6, 5]


def models_of(federation):
    return tree.index(federation.shared.peers.each, (slice(None), 0))


def thetas(federation):
    leaves = models_of(federation).parameters
    return torch.cat([leaves["linear.weight"].flatten(1), leaves["linear.bias"].flatten(1)], dim=1)


def with_models(federation, parameters):
    """The federation with these parameters, leaves [T, ...]."""
    each = ModelState({name: leaf.unsqueeze(1) for name, leaf in parameters.items()}, {})
    ids = torch.arange(federation.train.num_clients)
    federation.shared = federation.shared._replace(peers=put_models(federation.shared.peers, ids, each))
    return federation


def local_models(federation):
    return tree.index(federation.states.models, (slice(None), 0))


# ---------------------------------------------------------------------- against the reference
GRADIENT = [
    ({"lr": 0.1}, {}),
    ({"lr": 0.05, "momentum": 0.9, "weight_decay": 0.05}, {"loss": "mean", "loss_momentum": 0.3}),
    ({"lr": 0.1, "optimizer": "adam"}, {"tracking": "corrected_ema", "num_neighbours": 1}),
    ({"lr": 0.05}, {"tracking": "accumulated", "explore_probability": 0.0}),
]
CHANGE = [
    ({"lr": 0.2}, {"common_start": True}),
    ({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}, {"loss": "mean", "explore_probability": 1.0}),
    ({"lr": 0.05, "optimizer": "adam"}, {"tracking": "corrected_ema", "num_neighbours": 3}),
]


@pytest.mark.parametrize(
    ("exchange", "options", "fields"),
    [("gradient", *case) for case in GRADIENT] + [("pseudo_gradient", *case) for case in CHANGE],
    ids=str,
)
def test_rounds_are_those_of_the_reference(exchange, options, fields, client_trainer):
    algorithm = FedeRiCo(**{"num_neighbours": 2, "exchange": exchange} | fields)
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1, 6], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2, num_rounds=6)
    numpy_solver = {"adam" if name == "optimizer" else name: value for name, value in options.items()}
    owners = [Owner(theta, **numpy_solver) for theta in thetas(federation).numpy()]
    clients = [Client(i, 5) for i in range(5)]
    settings = {
        "num": algorithm.num_neighbours, "epsilon": algorithm.explore_probability, "beta": algorithm.loss_momentum,
        "tracking": algorithm.tracking, "loss": algorithm.loss,
        "change": None if exchange == "gradient" else numpy_solver,
    }  # fmt: skip
    for present in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 3, 4], [0, 1, 2, 3, 4], [2], [0, 1, 2, 3, 4]):
        ctx = federation.context("train")
        drawn = np.stack([draws(ctx, "neighbours", 6, torch.tensor(i)).numpy() for i in range(5)])
        orders = None if exchange == "gradient" else batch_orders(federation)
        federico_round(owners, clients, as_arrays(train), drawn[:, 0], drawn[:, 1:], present, orders, **settings)
        federation.round(present)
        expected = np.stack([owner.theta for owner in owners])
        np.testing.assert_allclose(thetas(federation).numpy(), expected, rtol=0, atol=1e-9)
        weights = np.stack([client.w for client in clients])
        np.testing.assert_allclose(federation.states.weights.numpy(), weights, rtol=0, atol=1e-9)
    for found, client, (x, _) in zip(federation.predictions(test), clients, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(client.w, owners, x), rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- it becomes Local
@pytest.mark.parametrize(
    "solver",
    [LocalSolver(lr=0.3, local_epochs=2), LocalSolver(momentum=0.9, weight_decay=0.1), LocalSolver(optimizer="adam")],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("tracking", ["ema", "accumulated"])
def test_without_neighbours_it_is_local(solver, tracking, client_trainer):
    train = make_clients(SIZES)
    algorithm = FedeRiCo(num_neighbours=0, exchange="pseudo_gradient", common_start=True, tracking=tracking)
    ours, alone = (run_rounds(one, client_trainer, train, solver=solver) for one in (algorithm, Local()))
    assert same_bits(models_of(ours), local_models(alone))
    assert distance(ours.predictions(), alone.predictions()) < 1e-12


# ---------------------------------------------------------------------- the weights
def mean_losses(federation, models, split):
    data = [split.client(one) for one in range(split.num_clients)]
    task = federation.task
    return torch.stack([task.losses(task.outputs(models, one.x), one.y).mean(0) for one in data])


def test_with_all_of_the_new_loss_the_weights_are_the_softmax_of_current_losses(client_trainer):
    train = make_clients(SIZES)
    federation = run_rounds(FedeRiCo(loss_momentum=1.0, **EVERYBODY), client_trainer, train, rounds=2)
    before = models_of(federation)
    federation.round_idx, federation.num_rounds = 2, 3
    federation.round()
    found = mean_losses(federation, before, train) * train.sizes[:, None]
    assert distance(federation.states.last, found) < 1e-12
    assert distance(federation.states.weights, torch.softmax(-found, 1)) < 1e-12


def test_accumulated_losses_of_all_are_the_posterior(client_trainer):
    """w^t ∝ w^(t-1) exp(-ℓ), from uniform weights."""
    train = make_clients(SIZES)
    algorithm = FedeRiCo(tracking="accumulated", **EVERYBODY)
    federation = Federation(algorithm, train, trainer=client_trainer, num_rounds=4)
    weights = torch.full((5, 5), 0.2, dtype=torch.float64)
    for _ in range(4):
        found = mean_losses(federation, models_of(federation), train) * train.sizes[:, None]
        weights = torch.softmax(weights.log() - found, 1)
        federation.round()
        assert distance(federation.states.weights, weights) < 1e-12


def test_a_model_is_trained_by_how_others_use_it(client_trainer):
    """Client 1's model is best for all: everybody trains it and nobody trains the others'."""
    train = quadratics([1.0, 1.0, 1.0], [10.0, 11.0, 12.0])
    options = {"task": make_task(REGRESSION, 1, Scale), "solver": LocalSolver(lr=0.1), "num_rounds": 1}
    start = {"weight": torch.tensor([[-90.0], [9.0], [-90.0]], dtype=torch.float64)}
    federation = with_models(Federation(FedeRiCo(), train, trainer=client_trainer, **options), start)
    federation.round()
    assert torch.equal(federation.states.weights, torch.tensor([[0.0, 1.0, 0.0]] * 3).double())
    expected = torch.tensor([[-90.0], [9 + 0.1 * (1 + 2 + 3)], [-90.0]], dtype=torch.float64)
    assert distance(models_of(federation).parameters["weight"], expected) < 1e-12


# ---------------------------------------------------------------------- who is asked
def test_models_never_seen_are_asked_first_and_have_no_weight(client_trainer):
    train = make_clients([30] * 6)
    federation = Federation(FedeRiCo(2, 0.0), train, trainer=client_trainer, num_rounds=3)
    for known in (3, 5, 6):
        federation.round()
        state = federation.states
        assert torch.equal((state.known > 0).sum(1), torch.full((6,), known))
        assert torch.equal(state.weights > 0, (state.known > 0) & (state.weights > 0))
        assert bool((state.known.diagonal() > 0).all())
        assert distance(state.weights.sum(1), torch.ones(6).double()) < 1e-12


def test_the_greedy_ask_the_models_of_lowest_loss(client_trainer):
    train = make_clients([6] * 6)
    federation = run_rounds(FedeRiCo(5, 0.0, exchange="pseudo_gradient"), client_trainer, train, rounds=1)
    tracked = federation.states.tracked.clone().fill_diagonal_(math.inf)
    federation.algorithm = FedeRiCo(2, 0.0)
    before = federation.states.last
    with_models(federation, tree.map_leaves(lambda leaf: leaf + 0.1, models_of(federation)).parameters)
    federation.algorithm = FedeRiCo(2, 0.0, exchange="pseudo_gradient")
    federation.round_idx = 0
    federation.round()
    asked = (federation.states.last != before).int().fill_diagonal_(0)
    assert torch.equal(asked, torch.zeros(6, 6).int().scatter(1, tracked.topk(2, largest=False)[1], 1))


def test_a_client_need_not_ask_itself(client_trainer):
    federation = run_rounds(FedeRiCo(1, 0.0, include_self=False), client_trainer, make_clients([6] * 5), rounds=1)
    assert torch.equal((federation.states.known > 0).sum(1), torch.ones(5).int())
    assert not bool((federation.states.known.diagonal() > 0).all())


def test_the_bias_of_a_first_look_is_corrected():
    train = make_clients([30] * 5)
    options = {"rounds": 4, "solver": LocalSolver(lr=0.0)}
    plain, corrected = (
        run_rounds(FedeRiCo(1, 0.0, tracking=kind), None, train, **options) for kind in ("ema", "corrected_ema")
    )
    assert distance(corrected.states.tracked, corrected.states.last) < 1e-10
    seen = plain.states.known > 0
    assert bool((plain.states.tracked[seen] < plain.states.last[seen]).all())


# ---------------------------------------------------------------------- absent and unseen clients
@pytest.mark.parametrize("exchange", ["gradient", "pseudo_gradient"])
def test_absent_clients_keep_what_they_have(exchange, client_trainer):
    train, solver = make_clients(SIZES), LocalSolver(momentum=0.9)
    federation = run_rounds(FedeRiCo(exchange=exchange), client_trainer, train, rounds=2, solver=solver)
    before = tree.map_leaves(torch.clone, (models_of(federation), federation.states, federation.shared.optimizer))
    federation.round_idx = 1
    federation.round([1, 4])
    after = models_of(federation), federation.states, federation.shared.optimizer
    absent = torch.tensor([0, 2, 3])
    assert same_bits(tree.index(before, absent), tree.index(after, absent))
    assert distance(tree.index(before[0], 1), tree.index(after[0], 1)) > 1e-4
    assert torch.equal(before[1].last[1][absent], after[1].last[1][absent])
    assert (after[1].last[1] != before[1].last[1]).nonzero()[:, 0].tolist() == [1, 4]
    assert federation.bits.tolist() == [2 * 5 * 64] * 2


def test_an_unseen_client_weighs_all_models(client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=5)
    federation = run_rounds(FedeRiCo(1), client_trainer, train)
    models = thetas(federation).numpy()
    owners = [Owner(theta, 0.1) for theta in models]
    for found, (x, y) in zip(federation.predictions(unseen, seen=False), as_arrays(unseen), strict=True):
        evidence = np.array([losses(theta, x, y).sum() for theta in models])
        weights = np.exp(-evidence) / np.exp(-evidence).sum()
        np.testing.assert_allclose(found.exp().numpy(), predict(weights, owners, x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- prediction, traffic, pictures
@pytest.mark.parametrize("exchange", ["gradient", "pseudo_gradient"])
def test_each_neighbour_costs_a_model_and_a_gradient(exchange, client_trainer):
    task = make_task(dtype=torch.float32)
    train = make_clients(SIZES, dtype=torch.float32)
    federation = run_rounds(FedeRiCo(3, exchange=exchange), client_trainer, train, rounds=1, task=task)
    assert federation.bits.tolist() == [5 * 3 * 5 * 32] * 2


def test_collaboration_is_the_weights():
    federation = run_rounds(FedeRiCo(), None, make_clients(SIZES), rounds=1)
    found = federation.algorithm.collaboration(federation.context("train"), federation.shared, federation.states)
    assert torch.equal(found, federation.states.weights)


def test_the_loss_is_that_of_the_collaborators(client_trainer):
    train = make_clients(SIZES)
    for loss in ("sum", "mean"):
        federation = run_rounds(FedeRiCo(loss=loss, **EVERYBODY), client_trainer, train, rounds=1)
        start = Federation(FedeRiCo(), train)
        each = (mean_losses(start, models_of(start), train) * federation.states.weights).sum(1)
        assert federation.metrics["loss"] == pytest.approx(float(each @ train.sizes.double() / 27), abs=1e-12)


def test_names_of_clients_do_not_matter(client_trainer):
    """With all clients asked and given starts no coin decides anything."""
    train, order = make_clients(SIZES), torch.tensor([2, 0, 4, 3, 1])
    renamed = reordered(train, order)
    algorithm = FedeRiCo(loss="mean", exchange="pseudo_gradient", **EVERYBODY)
    options = {"trainer": client_trainer, "batch_size": 0, "num_rounds": 3}
    one, other = (Federation(algorithm, data, **options) for data in (train, renamed))
    with_models(other, tree.index(models_of(one).parameters, order))
    for _ in range(3):
        one.round()
        other.round()
    assert distance(tree.index(models_of(one), order), models_of(other)) < 1e-12
    assert distance(one.states.weights[order][:, order], other.states.weights) < 1e-12
    assert distance(one.states.weights[1], one.states.weights[2]) > 1e-3
