import pytest
import torch
from federated_round import distance, make_clients, make_context, make_task, perturbed, same_bits
from normalised import NormalisedMLP

from lit_fed.algorithms.federico import (
    Owned,
    Returned,
    _borrow,
    _first_models,
    _give_back,
    _loan_work,
    _take_back,
    _work_on,
)
from lit_fed.core import tree
from lit_fed.core.graphs.peers import Peers
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import ModelState

SOLVER = LocalSolver(lr=0.5, momentum=0.9)


def owned_at(*values, optimizer=None):
    leaf = torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
    buffers = {"var": leaf.abs(), "seen": leaf.long()}
    return Owned(
        Peers({"w": leaf}, buffers, ModelState({"w": leaf.mean(0)}, {"var": leaf[0], "seen": buffers["seen"][0]})),
        optimizer,
    )


def returned(owners, weights, values):
    """What C clients give back to k owners each."""
    leaf = torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    models = ModelState({"w": leaf}, {"var": leaf.abs(), "seen": leaf.long()})
    return Returned(torch.tensor(owners), torch.tensor(weights, dtype=torch.float64), models)


def context(**fields):
    return make_context(solver=SOLVER, num_clients=3, **fields)


def values(owned, name="w"):
    leaves = owned.peers.parameters | owned.peers.buffers
    return leaves[name].flatten().tolist()


# ---------------------------------------------------------------------- changes
def test_weighted_changes_add_up_while_their_weights_do_not_exceed_one():
    sent = returned([[0, 1], [1, 2]], [[1.0, 0.5], [0.25, 0.0]], [[5.0, 12.0], [14.0, 99.0]])
    found = _take_back(context(), owned_at(1.0, 10.0, 20.0), sent)
    assert values(found) == [5.0, 10 + 0.5 * 2 + 0.25 * 4, 20.0]
    assert float(found.peers.mean.parameters["w"]) == pytest.approx((5 + 12 + 20) / 3)
    assert found.optimizer is None


def test_a_weight_of_one_replaces_the_model_bit_for_bit():
    new = [[0.1 + 0.2], [1 / 3]]
    found = _take_back(context(), owned_at(0.7, -9.1, 2.0), returned([[1], [0]], [[1.0], [1.0]], new))
    assert values(found) == [1 / 3, 0.1 + 0.2, 2.0]


def test_many_users_move_a_model_to_the_mean_of_what_they_made_of_it():
    """Three users each halve the variance: their changes together would make it negative."""
    sent = returned([[0], [0], [0]], [[1.0], [1.0], [2.0]], [[2.0], [2.0], [3.0]])
    found = _take_back(context(), owned_at(8.0, 1.0, 1.0), sent)
    assert values(found) == [(2 + 2 + 2 * 3) / 4, 1.0, 1.0]
    assert values(found, "var") == [(2 + 2 + 2 * 3) / 4, 1.0, 1.0]
    assert values(found, "seen") == [2, 1, 1]  # 2.5 rounds to even


# ---------------------------------------------------------------------- gradients
def test_gradients_go_through_the_optimizer_of_the_owner():
    """Momentum 0.9, rate 0.5: two rounds of the gradients 2 and 1 for client 0, and of 3 for client 2."""
    ctx = context()
    start = owned_at(1.0, 1.0, 1.0)
    optimizer = SOLVER.init(ModelState(start.peers.parameters, {}))
    found = start._replace(optimizer=optimizer._replace(step=torch.zeros(3).double()))
    for gradients in ([[2.0, 3.0]], [[1.0, 3.0]]):
        ctx = ctx._replace(lr=torch.tensor(0.5).double())
        found = _take_back(ctx, found, returned([[0, 2]], [[1.0, 0.5]], gradients))
    velocity = [0.9 * 2 + 1, 0.0, 0.9 * 1.5 + 1.5]
    assert distance(found.optimizer.first["w"].flatten(), torch.tensor(velocity).double()) < 1e-6
    assert values(found) == pytest.approx([1 - 0.5 * 2 - 0.5 * 2.8, 1.0, 1 - 0.5 * 1.5 - 0.5 * 2.85])
    assert found.optimizer.step.tolist() == [2, 2, 2]


def test_absent_owners_take_no_step():
    ctx = context(present=torch.tensor([True, False, True]))
    start = owned_at(1.0, 1.0, 1.0)
    optimizer = perturbed(SOLVER.init(ModelState(start.peers.parameters, {})))
    start = start._replace(optimizer=optimizer._replace(step=torch.tensor([3.0, 4.0, 5.0]).double()))
    found = _take_back(ctx, start, returned([[0]], [[1.0]], [[2.0]]))
    assert values(found)[1] == 1.0
    assert values(found)[2] != 1.0
    assert same_bits(tree.index(found.optimizer, 1), tree.index(start.optimizer, 1))
    assert found.optimizer.step.tolist() == [4, 4, 6]


# ---------------------------------------------------------------------- the work of a client
def on_loan(exchange, batches, divisor=1.0):
    train = make_clients([6])
    data, ctx = train.client(0), make_context(solver=SOLVER, num_clients=3)
    owned = _first_models(ctx, exchange, common_start=False)
    ids, asked = torch.tensor([2, 0]), torch.tensor([True, False])
    models = _borrow(owned, ids)
    weights = torch.tensor([0.2, 0.3, 0.5]).double()
    work = _loan_work(ctx, exchange, models, ids, asked, torch.tensor(divisor).double(), weights)
    for rows in torch.arange(6).split(batches):
        work = _work_on(ctx, exchange, work, tree.index(data.batch, rows))
    return ctx, data, models, work


@pytest.mark.parametrize("divisor", [1.0, 6.0])
def test_a_gradient_is_that_of_all_samples_whatever_the_batches(divisor):
    for batches in (6, 2, 4):
        ctx, data, models, work = on_loan("gradient", batches, divisor)
        _, gradient = ctx.task.full_gradient(models, data)
        found = _give_back(ctx, work, data).value
        assert distance(found.models.parameters, tree.scale(gradient, 6 / divisor)) < 1e-12
        assert same_bits(work.models, models)


def test_local_steps_are_those_of_the_solver():
    ctx, data, models, work = on_loan("pseudo_gradient", 3)
    optimizer = SOLVER.init(models)
    for rows in torch.arange(6).split(3):
        models, optimizer, _ = SOLVER.step(ctx.task, models, optimizer, tree.index(data.batch, rows), ctx.lr)
    assert same_bits(_give_back(ctx, work, data).value.models, models)


@pytest.mark.parametrize("exchange", ["gradient", "pseudo_gradient"])
def test_what_is_given_back_counts_once_in_each_direction(exchange):
    ctx, data, _, work = on_loan(exchange, 6)
    message = _give_back(ctx, work, data)
    assert message.value.weights.tolist() == [0.5, 0.0]
    assert message.value.owners.tolist() == [2, 0]
    assert message.bits_up == message.bits_down == 5 * 64  # the other owner is absent, and the client itself


def test_every_owner_starts_alike_or_from_a_seed_of_its_own():
    ctx = make_context(solver=LocalSolver(optimizer="adam"), num_clients=3)
    own, common = (_first_models(ctx, "gradient", common_start=common) for common in (False, True))
    fresh = ctx.task.init(3, ctx.seed)
    assert same_bits(_borrow(own, torch.arange(3)), fresh)
    assert same_bits(_borrow(common, torch.arange(3)), tree.map_leaves(lambda leaf: leaf[:1].expand_as(leaf), fresh))
    assert own.optimizer.step.tolist() == [0, 0, 0]
    assert _first_models(ctx, "pseudo_gradient", common_start=False).optimizer is None


@pytest.mark.parametrize("exchange", ["gradient", "pseudo_gradient"])
def test_running_statistics_are_learned(exchange):
    train = make_clients([8])
    ctx = make_context(make_task(network=NormalisedMLP), LocalSolver(lr=0.1), num_clients=2)
    owned = _first_models(ctx, exchange, common_start=True)
    ids = torch.arange(2)
    weights = torch.tensor([0.6, 0.4]).double()
    work = _loan_work(ctx, exchange, _borrow(owned, ids), ids, ids >= 0, torch.tensor(1.0).double(), weights)
    work = _work_on(ctx, exchange, work, train.client(0).batch)
    sent = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), _give_back(ctx, work, train.client(0)).value)
    found = _take_back(ctx, owned, sent)
    name = next(name for name in work.models.buffers if "mean" in name)
    expected = work.models.buffers[name] * torch.tensor([[0.6], [0.4]]).double()
    assert distance(found.peers.buffers[name][:, 0], expected) < 1e-7
    assert float(expected.abs().max()) > 1e-3
