from itertools import combinations

import pytest
import torch

from lit_fed.algorithms.clustered_fl import _separation, bipartition
from lit_fed.core.graphs.similarity import cosines


def similarities(n, seed):
    """Cosines of random vectors."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.nn.functional.normalize(torch.randn(n, 3, generator=rng, dtype=torch.float64), dim=1)
    return rows @ rows.T


def across(similarity, side):
    return float(similarity[side][:, ~side].max())


def best(similarity):
    """Smallest largest similarity across any division."""
    n = len(similarity)
    sides = (
        torch.zeros(n, dtype=torch.bool).index_fill(0, torch.tensor(some), True)
        for size in range(1, n)
        for some in combinations(range(1, n), size)
    )
    return min(across(similarity, side) for side in sides)


@pytest.mark.parametrize("n", range(2, 9))
def test_single_linkage_is_the_best_division(n):
    for seed in range(30):
        similarity = similarities(n, 100 * n + seed)
        side = bipartition(similarity)
        assert 0 < int(side.sum()) < n
        assert not side[0]
        assert across(similarity, side) == best(similarity)


def test_complete_linkage_often_is_not():
    worse = sum(
        across(similarity, bipartition(similarity, "complete")) > best(similarity)
        for similarity in (similarities(7, seed) for seed in range(100))
    )
    assert worse > 30


def joined(similarity, of_pairs):
    """The set without the first, after joining the two most similar sets again and again."""
    sets = [{one} for one in range(len(similarity))]
    while len(sets) > 2:
        one, other = max(
            combinations(range(len(sets)), 2),
            key=lambda pair: of_pairs(float(similarity[i, j]) for i in sets[pair[0]] for j in sets[pair[1]]),
        )
        sets[one] |= sets.pop(other)
    return [one not in sets[0] for one in range(len(similarity))]


@pytest.mark.parametrize(("kind", "of_pairs"), [("single", max), ("complete", min)])
def test_the_most_similar_sets_are_joined(kind, of_pairs):
    for seed in range(50):
        similarity = similarities(9, seed)
        assert bipartition(similarity, kind).tolist() == joined(similarity, of_pairs)


@pytest.mark.parametrize("kind", ["single", "complete"])
def test_names_of_clients_do_not_matter(kind):
    similarity = similarities(8, 0)
    order = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    side, moved = bipartition(similarity, kind), bipartition(similarity[order][:, order], kind)
    assert torch.equal(moved == moved[0], side[order] == side[order[0]])


def test_the_input_stays_as_it_is():
    similarity = similarities(5, 1)
    before = similarity.clone()
    bipartition(similarity)
    assert torch.equal(similarity, before)


@pytest.mark.parametrize("kind", ["single", "complete"])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_equal_similarities_are_divided_all_the_same(kind, n):
    sides = [bipartition(torch.full((n, n), value), kind) for value in (1.0, 1.0, 0.3)]
    assert 0 < int(sides[0].sum()) < n
    assert all(torch.equal(side, sides[0]) for side in sides)


def test_rounding_beyond_one_does_no_harm():
    similarity = torch.tensor([[1.0, 1.0 + 1e-15, -1.0], [1.0 + 1e-15, 1.0, -1.0], [-1.0, -1.0, 1.0]]).double()
    assert bipartition(similarity).tolist() == [False, False, True]


def test_the_diagonal_is_not_read():
    similarity = similarities(6, 2)
    assert torch.equal(bipartition(similarity.clone().fill_diagonal_(torch.nan)), bipartition(similarity))


def test_cosines_from_products():
    rows = torch.tensor([[3.0, 0.0], [1.0, 1.0], [0.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    half = 0.5**0.5
    expected = [[1, half, 0, -1], [half, 1, 0, -half], [0, 0, 0, 0], [-1, -half, 0, 1]]
    torch.testing.assert_close(cosines(rows @ rows.T), torch.tensor(expected, dtype=torch.float64))


def test_separation_is_that_of_the_most_similar_pair_across():
    similarity = torch.tensor([[1.0, 0.9, -0.5], [0.9, 1.0, 0.28], [-0.5, 0.28, 1.0]])
    assert _separation(similarity, torch.tensor([False, False, True])) == pytest.approx(0.36**0.5)
    assert _separation(torch.ones(2, 2) * 1.0001, torch.tensor([False, True])) == 0
