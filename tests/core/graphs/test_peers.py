from types import SimpleNamespace

import pytest
import torch

from lit_fed.core import tree
from lit_fed.core.graphs.peers import combine, draws, links, models_of, own_models, put_models, same_start
from lit_fed.core.graphs.topology import Ring, Star, adjacency
from lit_fed.core.types import ModelState


def models(*leading, dtype=torch.float32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    weight = torch.randn(*leading, 2, 3, generator=rng, dtype=dtype)
    return ModelState({"weight": weight}, {"mean": torch.rand(*leading, 2, generator=rng, dtype=dtype)})


def same(a, b):
    return all(torch.equal(one, other) for one, other in zip(tree.leaves(a), tree.leaves(b), strict=True))


def ctx(**fields):
    return SimpleNamespace(**({"seed": 0, "round_idx": 0, "num_clients": 4, "present": None} | fields))


def test_all_start_with_the_same():
    start = models()
    peers = same_start(start, 4)
    assert peers.parameters["weight"].shape == (4, 2, 3)
    assert same(peers.mean, start)
    assert all(same(tree.index(peers.each, client), start) for client in range(4))
    peers.parameters["weight"][0] = 0
    assert torch.equal(peers.parameters["weight"][1], start.parameters["weight"])


def test_own_models_and_those_of_unseen_clients():
    peers = put_models(same_start(models(), 3), torch.arange(3), models(3, seed=1))
    for client in range(3):
        assert same(own_models(peers, torch.tensor(client)), tree.index(models(3, seed=1), client))
    for client in (3, 100):
        assert same(own_models(peers, torch.tensor(client)), peers.mean)


def test_own_models_of_many_clients_at_once():
    peers = put_models(same_start(models(), 3), torch.arange(3), models(3, seed=1))
    found = torch.func.vmap(lambda client: own_models(peers, client))(torch.tensor([2, 0, 7]))
    one_by_one = [own_models(peers, torch.tensor(client)) for client in (2, 0, 7)]
    assert same(found, tree.map_leaves(lambda *leaves: torch.stack(leaves), *one_by_one))


def test_models_of_some_clients():
    peers = put_models(same_start(models(), 3), torch.arange(3), models(3, seed=1))
    found = models_of(peers, torch.tensor([2, 0, 9]))
    expected = tree.map_leaves(lambda leaf: leaf[[2, 0, 2]], models(3, seed=1))
    assert same(found, expected)


def test_combining_is_a_product_in_float64():
    rng = torch.Generator().manual_seed(2)
    matrix = torch.rand(2, 3, generator=rng, dtype=torch.float64)
    stacked = models(3)
    found = combine(matrix, stacked)
    assert found.parameters["weight"].dtype == torch.float32
    expected = torch.einsum("rt,tmd->rmd", matrix, stacked.parameters["weight"].double()).float()
    torch.testing.assert_close(found.parameters["weight"], expected)
    assert same(combine(torch.eye(3, dtype=torch.float64), stacked), stacked)


def test_new_models_of_some_clients():
    peers = same_start(models(), 4)
    new = models(2, seed=1)
    found = put_models(peers, torch.tensor([1, 3]), new)
    assert same(tree.index(found.each, 1), tree.index(new, 0))
    assert same(tree.index(found.each, 3), tree.index(new, 1))
    assert same(tree.index(found.each, 0), models())
    assert same(tree.index(peers.each, 1), models())  # the old ones stay
    torch.testing.assert_close(found.mean.parameters["weight"], found.parameters["weight"].mean(0))
    assert found.mean.parameters["weight"].dtype == torch.float32


def test_new_models_are_mixed():
    new = models(4, dtype=torch.float64, seed=1)
    matrix = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.float64)
    found = put_models(same_start(models(dtype=torch.float64), 4), torch.arange(4), new, matrix)
    weight = new.parameters["weight"]
    torch.testing.assert_close(found.parameters["weight"][0], (weight[0] + weight[1]) / 2)
    torch.testing.assert_close(found.parameters["weight"][2:], weight[2:])
    torch.testing.assert_close(found.mean.parameters["weight"], weight.mean(0))
    torch.testing.assert_close(found.mean.buffers["mean"], new.buffers["mean"].mean(0))


def test_neighbours_that_take_part():
    edges = adjacency(Star(), 4, 0, 0)
    assert [float(links(ctx(), edges, torch.tensor(client))) for client in range(4)] == [3, 1, 1, 1]
    present = torch.tensor([True, True, False, True])
    there = ctx(present=present)
    assert [float(links(there, edges, torch.tensor(client))) for client in (0, 1, 3)] == [2, 1, 1]
    assert torch.func.vmap(lambda client: links(ctx(), edges, client))(torch.arange(6)).dtype == torch.float64
    ring = torch.func.vmap(lambda client: links(ctx(), adjacency(Ring(), 5, 0, 0), client))(torch.arange(5))
    assert ring.tolist() == [2.0] * 5


def test_random_numbers_of_a_client_in_a_round():
    first = draws(ctx(), "gossip", 3, torch.tensor(1))
    assert first.shape == (3,)
    assert first.dtype == torch.float64
    assert bool(((first >= 0) & (first < 1)).all())
    assert torch.equal(first, draws(ctx(), "gossip", 3, torch.tensor(1)))


@pytest.mark.parametrize("other", [(ctx(round_idx=1), "gossip", 1), (ctx(seed=1), "gossip", 1), (ctx(), "noise", 1),
                                   (ctx(), "gossip", 2)])  # fmt: skip
def test_other_rounds_seeds_purposes_and_clients_draw_others(other):
    context, purpose, client = other
    assert not torch.equal(draws(context, purpose, 3, torch.tensor(client)), draws(ctx(), "gossip", 3, torch.tensor(1)))


def test_unseen_clients_share_numbers_and_blocks_of_clients_do_not_matter():
    assert torch.equal(draws(ctx(), "gossip", 3, torch.tensor(4)), draws(ctx(), "gossip", 3, torch.tensor(50)))
    clients = torch.tensor([3, 0, 4])
    together = torch.func.vmap(lambda client: draws(ctx(), "gossip", 3, client))(clients)
    assert torch.equal(together, torch.stack([draws(ctx(), "gossip", 3, client) for client in clients]))
