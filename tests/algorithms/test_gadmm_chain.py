import numpy as np
import pytest
import torch

from lit_fed.algorithms.gadmm import chain
from lit_fed.core.seeds import generator


def test_the_order_of_the_ids():
    found = chain(4, 0)
    assert found.order.tolist() == [0, 1, 2, 3]
    assert found.heads.tolist() == [True, False, True, False]
    assert found.edges.tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_one_client_has_no_neighbour():
    found = chain(1, 0, 3)
    assert found.order.tolist() == [0]
    assert found.heads.tolist() == [True]
    assert found.edges.tolist() == [[0], [1]]  # an unseen client hears of it


@pytest.mark.parametrize("draw", [0, 1, 5])
def test_the_nearest_client_that_is_left_comes_next(draw):
    places = generator(7, draw, 0, "places").random((9, 2))
    order = chain(9, 7, draw).order.tolist()
    assert order[0] == 0
    assert sorted(order) == list(range(9))
    for position in range(8):
        away = {one: np.linalg.norm(places[one] - places[order[position]]) for one in order[position + 1 :]}
        assert min(away, key=away.get) == order[position + 1]


def test_heads_and_edges_follow_the_order():
    order, heads, edges = chain(7, 0, 2)
    assert order[heads[order]].tolist() == order[::2].tolist()
    assert bool((edges[:-1] == edges[:-1].T).all())
    assert edges[:-1].sum() == 2 * 6
    assert all(edges[a, b] == 1 for a, b in zip(order[:-1].tolist(), order[1:].tolist(), strict=True))
    assert edges[-1].nonzero().flatten().tolist() == [int(order[-1])]
    assert not bool((edges[:-1] * (heads[:, None] == heads)).any())  # neighbours are in different groups


def test_draws_differ_and_repeat():
    drawn = {tuple(chain(8, 0, draw).order.tolist()) for draw in range(5)}
    assert len(drawn) == 5
    chain.cache_clear()
    assert {tuple(chain(8, 0, draw).order.tolist()) for draw in range(5)} == drawn
    assert torch.equal(chain(8, 0).order, torch.arange(8))
