import pytest
import torch
from federated_round import REGRESSION, Scale, distance, make_clients, make_context, make_task

from lit_fed.algorithms.fedfomo import _held_out, first_order_step, first_order_weights
from lit_fed.core.graphs.peers import Peers
from lit_fed.core.types import ClientData, ModelState


def test_the_weights_of_the_card():
    """Previous loss 2, losses 1, 1.5, 2.5 at distances 2, 1, 1."""
    weights, shares = first_order_weights(torch.tensor([2.0, 1.0, 1.5, 2.5]), torch.tensor([2.0, 1.0, 1.0]))
    assert weights.tolist() == [0.5, 0.5, -0.5]
    assert shares.tolist() == [0.5, 0.5, 0.0]


def test_shares_do_not_depend_on_the_scale_of_the_loss():
    losses, distances = torch.tensor([2.0, 1.0, 1.9, 2.5]).double(), torch.tensor([2.0, 1.0, 1.0]).double()
    one, other = (first_order_weights(k * losses, distances)[1] for k in (1.0, 37.0))
    assert distance(one, other) < 1e-15


def test_copies_of_the_previous_model_and_worse_models_have_no_share():
    weights, shares = first_order_weights(torch.tensor([2.0, 2.0, 3.0]), torch.tensor([0.0, 1.0]))
    assert weights.tolist() == [0.0, -1.0]
    assert shares.tolist() == [0.0, 0.0]


# ---------------------------------------------------------------------- the step
CTX = make_context(make_task(REGRESSION, 1, Scale), num_clients=4)


def peers_at(*values):
    leaf = torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
    return Peers({"weight": leaf}, {}, ModelState({"weight": leaf.mean(0)}, {}))


def one_sample(centre, client_id=0):
    """Loss ½(w − centre)²."""
    x = torch.ones(1, 1, dtype=torch.float64)
    return ClientData(x, torch.tensor([centre]).double(), None, torch.ones(1), torch.tensor(client_id))


def step(centre, values, ids, keep="previous", start=0.0, client_id=0):
    previous = ModelState({"weight": torch.full((1, 1), start, dtype=torch.float64)}, {})
    data = one_sample(centre, client_id)
    return first_order_step(CTX, previous, peers_at(*values), torch.tensor(ids), data, torch.zeros(1) > 0, keep)


def test_a_step_towards_models_that_help():
    found = step(3.0, [1.0, 2.0, -1.0, 9.0], [2, 0, 1])
    assert found.weights.tolist() == [2.5, 2.0, -3.5, 0.0]
    assert distance(found.models.parameters["weight"], torch.tensor([[(2.5 + 2 * 2) / 4.5]]).double()) < 1e-7
    assert distance(found.shares, torch.tensor([2.5, 2.0, 0.0, 0.0]).double() / 4.5) < 1e-15


def test_the_only_model_that_helps_is_kept_bit_for_bit():
    value = 0.1 + 0.2
    assert step(3.0, [value, -2.0, 0.0, 0.0], [0, 1], start=-0.7).models.parameters["weight"].item() == value


@pytest.mark.parametrize(("keep", "expected"), [("previous", 0.0), ("trained", -1.0)])
def test_where_nothing_helps(keep, expected):
    found = step(3.0, [-2.0, -1.0, 7.0, 9.0], [1, 2], keep, client_id=1)
    assert found.models.parameters["weight"].item() == expected
    assert found.shares.tolist() == [0, 0, 0, 0]


# ---------------------------------------------------------------------- held-out samples
def padded(data, extra):
    index = torch.cat([torch.arange(len(data.mask)), torch.zeros(extra, dtype=torch.int64)])
    return ClientData(data.x, data.y, index, torch.cat([data.mask, torch.zeros(extra)]), data.client_id)


@pytest.mark.parametrize(("size", "count"), [(1, 0), (4, 0), (5, 1), (9, 1), (10, 2), (15, 3)])
def test_a_share_rounded_down_whatever_the_padding(size, count):
    ctx, data = make_context(most_samples=15), make_clients([size]).client(0)
    held = _held_out(ctx, data, 0.2)
    assert int(held.sum()) == count
    for extra in (3, 20):
        assert torch.equal(_held_out(ctx, padded(data, extra), 0.2), torch.cat([held, torch.zeros(extra) > 0]))


def test_the_same_in_every_round_and_others_for_other_clients():
    train = make_clients([30, 30])
    ctx = make_context(most_samples=30)
    one, other = (_held_out(ctx, train.client(client), 0.5) for client in (0, 1))
    assert torch.equal(one, _held_out(ctx._replace(round_idx=7), train.client(0), 0.5))
    assert not torch.equal(one, other)
    assert not torch.equal(one, _held_out(ctx._replace(seed=1), train.client(0), 0.5))


def test_unseen_clients_hold_nothing_out():
    data = make_clients([20], first_id=10).client(10)
    assert not _held_out(make_context(most_samples=5), data, 0.5).any()
