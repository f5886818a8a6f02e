import pytest
import torch

from lit_fed.algorithms.clustered_fl import DivisionRule, _mean_and_longest, _one_cluster, divide
from lit_fed.core import tree
from lit_fed.core.graphs.similarity import inner_products
from lit_fed.core.types import ModelState

RULE = DivisionRule(0.1, 0.5, False, 2, None, "single")


def clusters(num_clients, most=4, remembers=True):
    initial = ModelState({"w": torch.zeros(1, 2, dtype=torch.float64)}, {})
    return _one_cluster(initial, most, num_clients, remembers=remembers)


def updates(*rows):
    return {"w": torch.tensor(rows, dtype=torch.float64)}


FOUR = updates([1, 0], [-1, 0.1], [1, 0.1], [-1, -0.2])
EQUAL = torch.ones(4, dtype=torch.float64)


def divided(rows=FOUR, weight=EQUAL, **fields):
    return divide(clusters(len(weight)), rows, weight, RULE._replace(**fields)).cluster.tolist()


def test_a_cluster_is_divided_between_opposite_updates():
    assert divided() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"mean_norm_below": 0.0},
        {"max_norm_above": 1.1},
        {"min_cluster_size": 4},
        {"gamma_max": 1.0},
        {"mean_norm_below": 0.0, "relative": True},
    ],
    ids=str,
)
def test_what_keeps_it_together(fields):
    assert divided(**fields) == [0, 0, 0, 0]


@pytest.mark.parametrize("fields", [{"min_cluster_size": 3}, {"gamma_max": 0.9}, {"relative": True}], ids=str)
def test_what_does_not(fields):
    assert divided(**fields) == [0, 1, 0, 1]


def test_the_mean_is_weighted():
    rows = updates([1, 0], [-3, 0], [1, 0], [-3, 0])
    assert divided(rows) == [0, 0, 0, 0]
    assert divided(rows, torch.tensor([3.0, 1, 3, 1], dtype=torch.float64)) == [0, 1, 0, 1]


def test_new_clusters_wait_for_the_next_round():
    """Directions of 0°, 40°, 180° and 220°: the first round parts the pairs, the next ones their members."""
    angles = torch.tensor([0.0, 40.0, 180.0, 220.0], dtype=torch.float64).deg2rad()
    rows = {"w": torch.stack([angles.cos(), angles.sin()], dim=1)}
    rule = RULE._replace(mean_norm_below=2.0, min_cluster_size=1)
    found = divide(clusters(4), rows, EQUAL, rule)
    assert found.cluster.tolist() == [0, 0, 1, 1]
    found = divide(found, rows, EQUAL, rule)
    assert found.cluster.tolist() == [0, 2, 1, 3]
    assert found.splits.parent.tolist() == [0, 0, 1]


@pytest.mark.parametrize("most", [2, 3])
def test_no_more_clusters_than_there_is_room_for(most):
    rule, found = RULE._replace(mean_norm_below=9.0, max_norm_above=0.0, min_cluster_size=1), clusters(4, most)
    for _ in range(5):
        found = divide(found, FOUR, EQUAL, rule)
    assert int(found.cluster.max()) == most - 1


def test_what_is_remembered():
    found = divide(clusters(4), FOUR, EQUAL, RULE)
    assert found.splits.parent.tolist() == [0, -1, -1]
    assert found.splits.side[0].tolist() == [1, 2, 1, 2]
    assert torch.equal(found.splits.updates["w"][0], FOUR["w"])
    forgetful = divide(clusters(4, remembers=False), FOUR, EQUAL, RULE)
    assert torch.equal(forgetful.cluster, found.cluster)
    assert not any(leaf.numel() for leaf in tree.leaves(forgetful.splits))


def test_updates_that_are_not_finite_divide_nobody():
    rows = {"w": FOUR["w"].clone()}
    for wrong in (torch.nan, torch.inf):
        rows["w"][2, 0] = wrong
        assert divided(rows) == divided(rows, relative=True) == [0, 0, 0, 0]


def test_products_over_all_leaves():
    rng = torch.Generator().manual_seed(0)
    vectors = {"w": torch.randn(3, 2, 2, generator=rng), "b": torch.randn(3, 1, generator=rng)}
    flat = torch.cat([leaf.flatten(1) for leaf in vectors.values()], dim=1).double()
    torch.testing.assert_close(inner_products(vectors), flat @ flat.T)


def test_lengths_from_products():
    rows, weight = FOUR["w"], torch.tensor([1.0, 2.0, 0.0, 5.0], dtype=torch.float64)
    mean, longest = _mean_and_longest(rows @ rows.T, weight)
    torch.testing.assert_close(mean, (weight @ rows / 8).norm())
    torch.testing.assert_close(longest, rows.norm(dim=1).max())
    assert float(_mean_and_longest(rows @ rows.T, 0 * weight)[0]) == 0
