import math

import pytest
import torch
from federated_round import distance, make_context
from torch.func import vmap

from lit_fed.core.graphs.neighbours import closest, greedy_neighbours, remember, stranger

ALL = torch.arange(3)
SEEN = torch.ones(3) > 0


def after(losses, rounds, tracking, momentum=0.6, ids=ALL):
    memory = stranger(3, torch.tensor(0))
    for _ in range(rounds):
        found = torch.tensor(losses, dtype=torch.float64)
        memory = remember(memory, ids, found, SEEN[: len(ids)], tracking, momentum)
    return memory


# ---------------------------------------------------------------------- tracked losses
@pytest.mark.parametrize(("rounds", "expected"), [(1, (1.2, 1.8)), (2, (1.68, 2.52)), (3, (1.872, 2.808))])
def test_moving_average_of_constant_losses(rounds, expected):
    found = after([2.0, 3.0, 1.0], rounds, "ema").tracked
    assert distance(found[:2], torch.tensor(expected, dtype=torch.float64)) < 1e-15


def test_corrected_average_and_sum_of_constant_losses():
    losses = torch.tensor([2.0, 3.0, 1.0], dtype=torch.float64)
    assert distance(after([2.0, 3.0, 1.0], 3, "corrected_ema").tracked, losses) < 1e-15
    assert distance(after([2.0, 3.0, 1.0], 3, "accumulated").tracked, 3 * losses) < 1e-15


def test_all_of_the_new_loss():
    memory = after([9.0, 9.0, 9.0], 2, "ema", 1.0)
    losses = torch.tensor([2.0, 3.0, 1.0], dtype=torch.float64)
    memory = remember(memory, ALL, losses, SEEN, "ema", 1.0)
    assert distance(memory.weights, torch.softmax(-losses, 0)) < 1e-15


def test_the_last_loss_of_others_counts_again():
    memory = after([2.0, 3.0, 1.0], 1, "accumulated")
    memory = remember(memory, torch.tensor([2]), torch.tensor([5.0]).double(), SEEN[:1], "accumulated", 0.6)
    assert memory.tracked.tolist() == [4.0, 6.0, 6.0]


def test_models_never_seen_have_no_weight():
    memory = after([50.0, 60.0], 1, "ema", ids=torch.tensor([0, 2]))
    assert memory.tracked.tolist() == [30.0, 0.0, 36.0]
    assert memory.weights[1] == 0
    assert float(memory.weights[2]) == pytest.approx(1 / (1 + math.exp(6)), abs=1e-15)


def test_a_loss_that_is_not_known_changes_nothing():
    seen = torch.tensor([True, False, True])
    memory = remember(stranger(3, torch.tensor(0)), ALL, torch.tensor([1.0, 9.0, 1.0]).double(), seen, "ema", 0.6)
    assert memory.known.tolist() == [0.6, 0.0, 0.6]
    assert memory.weights.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("tracking", ["ema", "corrected_ema", "accumulated"])
def test_who_saw_nothing_weighs_all_alike(tracking):
    memory = remember(stranger(3, torch.tensor(0)), ALL, torch.ones(3).double(), ~SEEN, tracking, 0.6)
    assert distance(memory.weights, torch.full((3,), 1 / 3, dtype=torch.float64)) < 1e-15
    assert memory.tracked.tolist() == [0, 0, 0]


# ---------------------------------------------------------------------- whom to ask
RANK = torch.tensor([3.0, 1.0, 2.0, 0.5, 4.0], dtype=torch.float64)


def ask(round_idx=0, client=0, rank=RANK, count=2, epsilon=0.0, include_self=True):
    ctx = make_context(round_idx=round_idx, num_clients=5)
    return greedy_neighbours(ctx, torch.tensor(client), rank, count, epsilon, include_self=include_self)


def test_the_greedy_take_the_lowest_rank_after_themselves():
    assert ask()[0].tolist() == [0, 3, 1]
    assert ask(client=3)[0].tolist() == [3, 1, 2]
    assert ask(include_self=False)[0].tolist() == [3, 1]
    assert ask(count=9)[0].tolist() == [0, 3, 1, 2, 4]
    assert ask(count=0)[0].tolist() == [0]


def test_who_cannot_be_asked():
    rank = RANK.masked_fill(torch.tensor([True, False, True, True, True]), torch.inf)
    for epsilon in (0.0, 1.0):
        ids, asked = ask(rank=rank, epsilon=epsilon)
        assert ids[:2].tolist() == [0, 1]
        assert asked.tolist() == [True, True, False]


def test_explorers_ask_anybody_once():
    counts = torch.zeros(5)
    for round_idx in range(400):
        ids, asked = ask(round_idx, epsilon=1.0)
        assert bool(asked.all())
        assert ids[0] == 0
        assert len(set(ids.tolist())) == 3
        counts[ids] += 1
    assert counts[0] == 400
    assert bool(((counts[1:] - 200).abs() < 40).all())  # four standard deviations


def test_one_coin_for_a_round():
    explored = sum(ask(round_idx, epsilon=0.3, count=1)[0][1] != 3 for round_idx in range(1000))
    assert abs(int(explored) - 1000 * 0.3 * 3 / 4) < 55


def test_ties_fall_at_random_and_alike_for_all_who_compute_them():
    firsts = {int(ask(round_idx, rank=torch.zeros(5).double())[0][1]) for round_idx in range(60)}
    assert firsts == {1, 2, 3, 4}
    ctx = make_context(num_clients=5)
    clients = torch.arange(5)
    together = vmap(lambda one: greedy_neighbours(ctx, one, RANK, 2, 0.5, include_self=True)[0])(clients)
    assert together.tolist() == [ask(client=one, epsilon=0.5)[0].tolist() for one in range(5)]


def test_an_unseen_client_stands_for_the_last():
    assert ask(client=7)[0][0] == 4


def test_closest():
    ids, asked = closest(torch.tensor([math.inf, 1.0, 1.0, -math.inf]), torch.tensor([0.0, 0.9, 0.1, 0.5]), 4)
    assert ids.tolist() == [3, 2, 1, 0]
    assert asked.tolist() == [True, True, True, False]
