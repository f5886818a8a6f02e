import pytest
import torch
from federated_round import distance, flat, make_clients, make_context, make_task, perturbed, same_bits
from normalised import NormalisedMLP
from torch.func import vmap

from lit_fed.core import tree
from lit_fed.core.graphs.mixing import gossip, initial_peers, mixing_matrix, traffic
from lit_fed.core.graphs.peers import put_models
from lit_fed.core.graphs.topology import PathGraph, Star

CHAIN = mixing_matrix(PathGraph(), "metropolis", 4, 0, 0)


def context(present=None, **task):
    present = None if present is None else torch.tensor(present)
    return make_context(make_task(**task), num_clients=4, present=present)


def trained(peers, clients):
    """New models of some clients, leaves [C, M, ...]."""
    return perturbed(tree.index(peers.each, torch.tensor(clients)), 0.3, seed=7)


def test_a_common_start_is_the_tasks():
    ctx = context()
    peers = initial_peers(ctx, 2, common=True)
    for one in range(4):
        assert same_bits(tree.index(peers.each, one), ctx.task.init(2, 0))
    assert same_bits(peers.mean, ctx.task.init(2, 0))


def test_clients_may_start_apart():
    peers = initial_peers(context(network=NormalisedMLP), 2, common=False)
    rows = flat(peers.parameters).view(8, -1)
    assert (torch.cdist(rows, rows) + torch.eye(8) > 0.1).all()
    mean = tree.map_leaves(lambda leaf: leaf.double().mean(0).to(leaf.dtype), peers.each)
    assert distance(peers.mean, mean) < 1e-14
    again = initial_peers(context(network=NormalisedMLP), 2, common=False)
    assert same_bits(peers, again)


def test_all_train_and_mix():
    ctx = context(network=NormalisedMLP)
    peers = initial_peers(ctx, 2, common=False)
    models = trained(peers, [0, 1, 2, 3])
    after = gossip(ctx, peers, torch.arange(4), models, CHAIN)
    expected = tree.map_leaves(lambda leaf: torch.tensordot(CHAIN, leaf.double(), 1).to(leaf.dtype), models)
    assert distance(after.each, expected) < 1e-14
    assert distance(after.mean, tree.map_leaves(lambda leaf: leaf.double().mean(0).to(leaf.dtype), after.each)) < 1e-14


def test_what_an_absent_client_would_give_stays_at_home():
    ctx = context([True, True, False, True])
    peers = initial_peers(ctx, 2, common=False)
    models = trained(peers, [0, 1, 3])
    after = gossip(ctx, peers, torch.tensor([0, 1, 3]), models, CHAIN)
    assert same_bits(tree.index(after.each, 2), tree.index(peers.each, 2))
    assert distance(tree.index(after.each, 3), tree.index(models, 2)) < 1e-15  # its only neighbour is absent
    first, second = (tree.index(models, one) for one in (0, 1))
    half = tree.map_leaves(lambda a, b: (a + b) / 2, first, second)
    assert distance(tree.index(after.each, 0), half) < 1e-15


def test_running_statistics_may_be_left_out():
    peers = initial_peers(context(network=NormalisedMLP), 1, common=False)
    models = trained(peers, [0, 1, 2, 3])
    matrix = 3 * CHAIN - 2 * torch.eye(4, dtype=torch.float64)  # with negative entries
    kept, mixed = (put_models(peers, torch.arange(4), models, matrix, mix_buffers=flag) for flag in (False, True))
    assert same_bits(kept.buffers, models.buffers)
    assert same_bits(kept.parameters, mixed.parameters)
    assert distance(kept.buffers, mixed.buffers) > 1e-3


@pytest.mark.parametrize(
    ("present", "neighbours"), [(None, [3, 1, 1, 1]), ([True, True, False, True], [2, 1, 1, 1])], ids=str
)
def test_traffic_is_one_message_to_each_neighbour_present(present, neighbours):
    ctx = context(present)
    value = ctx.task.init(2, 0)
    ids = torch.arange(4)
    expected = [count * 2 * 5 * 64 for count in neighbours]
    assert [float(traffic(ctx, Star(0), value, one)) for one in ids] == expected
    assert vmap(lambda one: traffic(ctx, Star(0), value, one))(ids).tolist() == expected
    assert traffic(ctx, Star(0), value, ids[0]).dtype == torch.float64


def test_without_a_graph_a_message_goes_to_the_server():
    ctx = context([True, False, False, False])
    value = ctx.task.init(2, 0)
    found = vmap(lambda one: traffic(ctx, None, value, one))(torch.arange(4))
    assert found.tolist() == [2 * 5 * 64] * 4
    assert found.dtype == torch.float64


def test_an_unseen_client_has_some_traffic():
    ctx, unseen_client = context(), make_clients([3], first_id=9).client(9).client_id
    assert traffic(ctx, Star(0), ctx.task.init(1, 0), unseen_client).isfinite()
