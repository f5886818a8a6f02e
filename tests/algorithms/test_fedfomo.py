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
from references.fedfomo_numpy import combine, fedfomo_round
from references.logistic import probability

from lit_fed.algorithms import FedFOMO
from lit_fed.algorithms.fedfomo import _held_out
from lit_fed.core import tree
from lit_fed.core.graphs.peers import draws, own_models
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Batch, ModelState, Split

SIZES = [5, 10, 4, 12, 6]


def flat_models(each):
    leaves = each.parameters
    return torch.cat([leaf.flatten(1) for leaf in (leaves["linear.weight"], leaves["linear.bias"])], dim=1)


def left_with(federation):
    return flat_models(federation.states.models)


def held_samples(federation, fraction):
    ctx = federation.context("train")
    clients = (federation.train.client(one) for one in range(federation.train.num_clients))
    return [_held_out(ctx, one, fraction).nonzero()[:, 0].tolist() for one in clients]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"lr": 0.5}, {"num_neighbours": 2}),
        ({"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}, {"num_neighbours": 1, "explore_decay": 0.2}),
        ({"lr": 0.4}, {"num_neighbours": 4, "val_fraction": 0.5, "keep": "trained"}),
        ({"lr": 2.0}, {"num_neighbours": 2, "val_fraction": 0.0, "explore_probability": 1.0}),
        ({"lr": 30.0}, {"num_neighbours": 1, "keep": "trained"}),
    ],
    ids=str,
)
def test_rounds_are_those_of_the_reference(options, fields, client_trainer):
    algorithm, train = FedFOMO(**fields), make_clients(SIZES)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=3, num_rounds=5)
    left = left_with(federation).numpy().copy()
    uploaded, affinity = left.copy(), np.zeros((5, 5))
    held = held_samples(federation, algorithm.val_fraction)
    for round_idx, present in enumerate(([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 3], [0, 1, 2, 3, 4], [4, 0])):
        ctx = federation.context("combine")
        drawn = np.stack([draws(ctx, "neighbours", 6, torch.tensor(i)).numpy() for i in range(5)])
        epsilon = max(algorithm.explore_probability - round_idx * algorithm.explore_decay, 0.0)
        fedfomo_round(
            left, uploaded, affinity, as_arrays(train), held, batch_orders(federation), present, drawn[:, 0],
            drawn[:, 1:], num=algorithm.num_neighbours, epsilon=epsilon, keep=algorithm.keep, solver=options,
        )  # fmt: skip
        federation.round(present)
        np.testing.assert_allclose(left_with(federation).numpy(), left, rtol=0, atol=1e-10)
        found = flat_models(tree.index(federation.shared.peers.each, (slice(None), 0))).numpy()
        np.testing.assert_allclose(found, uploaded, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.shared.affinity.numpy(), affinity, rtol=0, atol=1e-10)
    for found, theta, (x, _) in zip(federation.predictions(), left, as_arrays(train), strict=True):
        np.testing.assert_allclose(found.exp().numpy()[:, 1], probability(theta, x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- it becomes Local
@pytest.mark.parametrize("keep", ["previous", "trained"])
def test_where_no_model_helps(keep, client_trainer):
    """A rate so high that every trained model is worse than the start."""
    train = quadratics([1.0, 1.0], [1.0, 1.2])
    options = {"task": make_task(REGRESSION, 1, Scale), "solver": LocalSolver(lr=5.0), "rounds": 1}
    federation = run_rounds(FedFOMO(val_fraction=0.0, keep=keep), client_trainer, train, **options)
    expected = {"previous": [0.0, 0.0], "trained": [5.0, 6.0]}[keep]
    np.testing.assert_allclose(federation.states.models.parameters["weight"].flatten(), expected, atol=1e-12)
    assert bool((federation.shared.affinity < 0).all())
    assert torch.equal(federation.states.shares, torch.zeros(2, 2).double())


# ---------------------------------------------------------------------- the weights
def test_weights_of_a_round_by_hand(client_trainer):
    """From 0 at rate 1 the models are at the centres 1 and 3: L_0 falls by 1/2 and by -3/2, L_1 by 5/2 and by 9/2."""
    train = quadratics([1.0, 1.0], [1.0, 3.0])
    options = {"task": make_task(REGRESSION, 1, Scale), "solver": LocalSolver(lr=1.0), "rounds": 1}
    federation = run_rounds(FedFOMO(), client_trainer, train, **options)
    np.testing.assert_allclose(federation.shared.affinity, [[0.5, -0.5], [2.5, 1.5]], atol=1e-12)
    np.testing.assert_allclose(federation.states.shares, [[1, 0], [0.625, 0.375]], atol=1e-12)
    np.testing.assert_allclose(federation.states.models.parameters["weight"].flatten(), [1.0, 1.75], atol=1e-12)


def test_affinity_decides_who_is_asked(client_trainer):
    train = make_clients([20] * 6)
    federation = Federation(FedFOMO(2, explore_probability=0.0), train, trainer=client_trainer, num_rounds=4)
    federation.round()
    before = federation.shared.affinity
    federation.round()
    gained = (federation.shared.affinity != before).int()
    for own in range(6):
        rank = -before[own].clone()
        rank[own] = -torch.inf
        third = rank.sort().values[2]
        assert gained[own].sum() == 3
        assert bool((rank[gained[own] > 0] <= third).all())


# ---------------------------------------------------------------------- held-out samples
def test_training_does_not_see_held_out_samples(client_trainer):
    train = make_clients([10, 15])
    start = Federation(FedFOMO(), train)
    held = held_samples(start, 0.2)
    assert [len(rows) for rows in held] == [2, 3]
    changed = Split(train.x.clone(), train.y.clone(), train.offsets)
    for client, rows in enumerate(held):
        changed.x[train.offsets[client] + torch.tensor(rows)] *= 100
    options = {"rounds": 1, "solver": LocalSolver(momentum=0.9, local_epochs=2)}
    one, other = (run_rounds(FedFOMO(), client_trainer, data, **options) for data in (train, changed))
    assert same_bits(one.shared.peers, other.shared.peers)
    assert distance(one.shared.affinity, other.shared.affinity) > 1e-3


def test_training_sees_all_the_others(client_trainer):
    train = make_clients([10])
    (held,) = held_samples(Federation(FedFOMO(), train), 0.2)
    options = {"rounds": 1, "batch_size": 0}
    before = run_rounds(FedFOMO(), client_trainer, train, **options).shared.peers
    for row in set(range(10)) - set(held):
        changed = Split(train.x.clone(), train.y.clone(), train.offsets)
        changed.x[row] += 1
        assert distance(before, run_rounds(FedFOMO(), client_trainer, changed, **options).shared.peers) > 1e-6


def test_a_batch_that_is_wholly_held_out_is_no_step(client_trainer):
    """Batches of one sample: those that are held out leave model, momentum and mean loss as if they were not there."""
    train, solver = make_clients([5]), LocalSolver(lr=0.3, momentum=0.9, weight_decay=0.1)
    start = Federation(FedFOMO(0, val_fraction=0.4), train, solver=solver, batch_size=1)
    (held,) = held_samples(start, 0.4)
    models, data = own_models(start.shared.peers, torch.tensor(0)), train.client(0)
    optimizer, losses = solver.init(models), []
    (order,) = batch_orders(start)
    for (row,) in order:
        if row not in held:
            rows = torch.tensor([row])
            batch = Batch(data.x[rows], data.y[rows], rows, torch.ones(1))
            models, optimizer, loss = solver.step(start.task, models, optimizer, batch, solver.lr_at(0, 1))
            losses.append(float(loss))
    assert len(held) == 2
    found = run_rounds(FedFOMO(0, val_fraction=0.4), client_trainer, train, rounds=1, solver=solver, batch_size=1)
    assert (
        distance(found.shared.peers.each.parameters, tree.map_leaves(lambda one: one[None], models.parameters)) < 1e-12
    )
    assert found.metrics["loss"] == pytest.approx(sum(losses) / 3, abs=1e-12)


# ---------------------------------------------------------------------- absent and unseen clients
def test_absent_clients_keep_their_models_and_are_served_from(client_trainer):
    train = make_clients(SIZES)
    algorithm = FedFOMO(4)
    federation = run_rounds(algorithm, client_trainer, train, rounds=1, num_rounds=2)
    before = federation.states, federation.shared
    federation.round([1])
    absent = torch.tensor([0, 2, 3, 4])
    after = federation.states, federation.shared
    assert same_bits(tree.index(before[0], absent), tree.index(after[0], absent))
    assert same_bits(before[1].affinity[absent], after[1].affinity[absent])
    assert same_bits(tree.index(before[1].peers.each, absent), tree.index(after[1].peers.each, absent))
    assert int((before[1].affinity[1] != after[1].affinity[1]).sum()) == 5


def test_an_unseen_client_weighs_all_models_once_from_their_mean(client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 20], seed=2, first_id=5)
    federation = run_rounds(FedFOMO(1), client_trainer, train, rounds=2)
    models = flat_models(tree.index(federation.shared.peers.each, (slice(None), 0))).numpy()
    mean = models.mean(0)
    for found, (x, y) in zip(federation.predictions(unseen, seen=False), as_arrays(unseen), strict=True):
        new, _, _ = combine(mean, dict(enumerate(models)), x, y)
        expected = probability(mean if new is None else new, x)
        np.testing.assert_allclose(found.exp().numpy()[:, 1], expected, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- traffic, pictures
@pytest.mark.parametrize(("num", "downloads"), [(0, 0), (2, 2), (9, 4)])
def test_models_come_down_one_goes_up(num, downloads, client_trainer):
    task = make_task(dtype=torch.float32)
    train = make_clients(SIZES, dtype=torch.float32)
    federation = run_rounds(FedFOMO(num), client_trainer, train, rounds=1, task=task)
    model = 5 * 32
    assert federation.bits.tolist() == [5 * (model + 64 * (downloads + 1)), 5 * downloads * model]


def test_collaboration_is_the_weights_of_the_last_step():
    federation = run_rounds(FedFOMO(), None, make_clients(SIZES), rounds=1)
    found = federation.algorithm.collaboration(federation.context("combine"), federation.shared, federation.states)
    assert torch.equal(found, federation.states.shares)
    assert bool(((found.sum(1) - 1).abs() < 1e-12).any())


def test_names_of_clients_do_not_matter(client_trainer):
    """With all models sent and nothing held out no random number decides anything."""
    train, order = make_clients(SIZES), torch.tensor([2, 0, 4, 3, 1])
    renamed = reordered(train, order)
    algorithm = FedFOMO(4, val_fraction=0.0)
    one, other = (run_rounds(algorithm, client_trainer, data, batch_size=0) for data in (train, renamed))
    assert distance(tree.index(one.states.models, order), other.states.models) < 1e-12
    assert distance(one.shared.affinity[order][:, order], other.shared.affinity) < 1e-12
    assert distance(one.states.shares[order][:, order], other.states.shares) < 1e-12


def test_start_and_states(client_trainer):
    federation = Federation(FedFOMO(), make_clients([5, 2]))
    assert same_bits(tree.index(federation.states.models, 0), federation.shared.peers.mean)
    assert isinstance(federation.states.models, ModelState)
