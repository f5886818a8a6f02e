"""Every rule against numbers worked out by hand, against what it must equal, and under what must change nothing."""

import math

import pytest
import torch

from lit_fed.errors import ConfigError
from lit_fed.wrappers.robust import rules as aggregation
from lit_fed.wrappers.robust.rules import (
    Bulyan,
    CenteredClipping,
    GeometricMedian,
    Krum,
    MajorityVote,
    Median,
    NormBound,
    Rule,
    TrimmedMean,
)
from lit_fed.wrappers.robust.rules.base import Started
from lit_fed.wrappers.robust.rules.bulyan import selected
from lit_fed.wrappers.robust.rules.krum import krum_scores
from lit_fed.wrappers.robust.rules.rows import Rows, sorted_rows, squared_distances

R = torch.tensor(
    [(1, 2, 0), (1.2, 1.8, 0.1), (0.8, 2.2, -0.1), (1.1, 2.1, 0.2), (0.9, 1.9, -0.2), (10, -10, 5), (9, -9, 6)],
    dtype=torch.float64,
)
"""Five honest rows and two that are not."""

SAMPLES = torch.arange(10.0, 80.0, 10.0, dtype=torch.float64)
KNOWN = torch.tensor([5.0, -7.0, 3.0], dtype=torch.float64)
EVERY = [getattr(aggregation, name) for name in aggregation.__all__ if name not in ("Rule", "Aggregate")]
MOVES_ALONG = [Median(), TrimmedMean(), Krum(), GeometricMedian(), Bulyan(1), Krum(num_selected=3)]


def result(rule, rows=R, *, weights=None, f=2, last=None, order=None):
    """The change and the verdicts, of messages with two leaves that hold what is known and the rows."""
    values = {"a": (rows + KNOWN)[:, :2], "b": (rows + KNOWN)[:, 2:]}
    last = None if last is None else {"a": torch.tensor(last[:2]).double(), "b": torch.tensor(last[2:]).double()}
    weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights
    started = Started(rule.against(f), last, None if order is None else torch.tensor(order))
    found = rule.aggregate(Rows(values, {"a": KNOWN[:2], "b": KNOWN[2:]}), weights, started)
    return torch.cat([found.change["a"], found.change["b"]]), found.kept


def near(found, expected, tolerance=1e-9):
    assert torch.allclose(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance), found


MEAN = (3.4285714286, -1.2857142857, 1.5714285714)
WEIGHTED_MEAN = (4.9178571429, -3.3178571429, 2.5607142857)

LITERAL = [
    (Median(), {}, (1.1, 1.9, 0.1)),
    (Median(), {"weights": SAMPLES}, (1.2, 1.8, 0.2)),
    (Median(), {"rows": R[:6]}, (1.05, 1.95, 0.05)),
    (TrimmedMean(1), {}, (2.64, -0.24, 1.04)),
    (TrimmedMean(), {}, (1.1, 1.9, 0.1)),
    (TrimmedMean(2), {"weights": SAMPLES}, (1.1142857142857, 1.8875, 0.1428571428571)),
    (Krum(), {}, (1, 2, 0)),
    (Krum(num_selected=3), {}, (1, 2, 0)),
    (Krum(2, num_selected=3), {"weights": SAMPLES}, (0.99, 1.99, -0.02)),
    (GeometricMedian(iterations=1), {}, (2.1729064647, 0.4146996040, 0.7636855525)),
    (GeometricMedian(), {}, (1.2363036049, 1.6942020466, 0.1523024750)),
    (GeometricMedian(iterations=400), {}, (1.0893869738, 1.9019419592, 0.0584518948)),
    (GeometricMedian(iterations=1, start="zero"), {}, (1.4943147288, 1.3266499909, 0.3179076003)),
    (GeometricMedian(start="zero"), {}, (1.1554438351, 1.8268358090, 0.0912885426)),
    (GeometricMedian(), {"weights": SAMPLES}, (4.0192160961, -2.1044398853, 1.9868108692)),
    (GeometricMedian(2000), {"weights": SAMPLES}, (1.2030156304, 1.7669663189, 0.1154254145)),
    (Bulyan(1), {}, (1.1, 1.9, 0.1)),
    (Bulyan(), {"rows": torch.cat([R[:6], torch.tensor([[1.3, 2.3, 0.3]]).double()]), "f": 1}, (1, 2, 0)),
    (CenteredClipping(1.0), {}, (0.5053642065, 0.4486614546, 0.1075135773)),
    (CenteredClipping(1.0, iterations=3), {}, (1.1377209599, 1.3993985044, 0.1650968968)),
    (CenteredClipping(1.0), {"last": (1.0, 2.0, 0.0)}, (1.1581926020, 1.7858733269, 0.1028330632)),
    (NormBound(2.5), {}, (1.1808102913, 0.9620468515, 0.2713338450)),
    (NormBound(2.5), {"weights": SAMPLES}, (1.2818942003, 0.3181057997, 0.4343580383)),
    (Median(bucket_size=2), {"order": [3, 5, 0, 6, 2, 1, 4]}, (3, -0.8, 1.3)),
    (NormBound(1e300), {}, MEAN),
    (NormBound(1e300), {"weights": SAMPLES}, WEIGHTED_MEAN),
]


@pytest.mark.parametrize(
    ("rule", "told", "expected"), LITERAL, ids=lambda one: str(one) if isinstance(one, Rule) else ""
)
def test_numbers_worked_out_by_hand(rule, told, expected):
    near(result(rule, **told)[0], expected)


def test_scores_and_what_is_taken():
    squared = squared_distances(R @ R.T)
    near(krum_scores(squared, 2), (0.21, 0.39, 0.39, 0.36, 0.36, 492.35, 434.55))
    assert selected(squared, 1).tolist() == [0, 1, 3, 4, 5]
    honest = torch.cat([R[:6], torch.tensor([[1.3, 2.3, 0.3]]).double()])
    assert selected(squared_distances(honest @ honest.T), 1).tolist() == [0, 1, 2, 3, 4]


def test_majority_vote():
    votes = torch.tensor([(1, -1, 1), (1, 1, -1), (-1, -1, -1), (1, 0, 0)], dtype=torch.float64)
    change, kept = result(MajorityVote(0.5), 3 * votes)
    near(change, (0.5, -0.5, -0.5))
    near(kept, (2 / 3, 2 / 3, 2 / 3, 1 / 3))
    near(result(MajorityVote(1.0), votes[:2])[0], (1, 0, 0))
    near(result(MajorityVote(1.0), votes, weights=torch.tensor([1.0, 1.0, 5.0, 1.0]).double())[0], (-1, -1, -1))


COMPONENTS = torch.tensor([(1, 0, 0)] * 4 + [(0, 1, 0)] * 2, dtype=torch.float64)
"""Four clients train one component and two another."""


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (NormBound(1.0), (2 / 3, 1 / 3, 0)),
        (Median(), (1, 0, 0)),
        (TrimmedMean(1), (0.75, 0.25, 0)),
        (GeometricMedian(3), (0.9412, 0.0588, 0)),
        (Krum(1), (1, 0, 0)),
        (CenteredClipping(1.0), (2 / 3, 1 / 3, 0)),
    ],
)
def test_components_of_a_minority(rule, expected):
    near(result(rule, COMPONENTS, f=1)[0], expected, 1e-4)


def test_the_median_freezes_components_that_a_third_trains():
    near(result(Median(), torch.eye(3).double().repeat_interleave(2, 0))[0], (0, 0, 0))


@pytest.mark.parametrize("weights", [None, SAMPLES], ids=["uniform", "samples"])
@pytest.mark.parametrize("rule", [TrimmedMean(0), Krum(num_selected=7), CenteredClipping(1e300), NormBound(1e300)])
def test_what_is_the_mean(rule, weights):
    change, kept = result(rule, weights=weights)
    shares = torch.ones(7, dtype=torch.float64) if weights is None else weights
    near(change, shares @ R / shares.sum(), 1e-12)
    near(kept, torch.ones(7))
    within = result(NormBound(1e300, bucket_size=4), R[:4], weights=shares[:4])[0]
    near(within, shares[:4] @ R[:4] / shares[:4].sum(), 1e-12)


@pytest.mark.parametrize("rule", [cls() for cls in EVERY], ids=lambda one: type(one).__name__)
def test_equal_rows_and_their_order(rule):
    same = R[:1].expand(7, -1)
    change, kept = result(rule, same, f=1)
    expected = R[0].sign() * rule.server_lr if isinstance(rule, MajorityVote) else R[0]
    near(change, expected, 1e-12)
    assert kept.max() == 1
    assert kept.min() >= 0
    if isinstance(rule, Bulyan):  # two rows that are each other's closest tie at its end, and the first is taken
        return
    order = torch.tensor([4, 2, 6, 0, 1, 5, 3])
    whole, moved = result(rule, f=1), result(rule, R[order], f=1)
    near(moved[0], whole[0])
    near(moved[1], whole[1][order])


@pytest.mark.parametrize("rule", MOVES_ALONG, ids=lambda one: type(one).__name__)
def test_rules_move_along_with_rows(rule):
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows, way = torch.randn(7, 3, generator=rng).double(), 100 * torch.randn(3, generator=rng).double()
        near(result(rule, 3 * rows + way, f=1)[0], 3 * result(rule, rows, f=1)[0] + way, 1e-6)


@pytest.mark.parametrize("scale", [1e3, 1e100])
@pytest.mark.parametrize(
    "rule",
    [Median(), TrimmedMean(), Krum(), CenteredClipping(1.0, 3), NormBound(1.0), Bulyan(1), GeometricMedian(400)],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_rows_that_are_far_off_do_not_spoil_the_numbers(rule, scale):
    """Also in the last digits, which products of large numbers could take from small ones."""
    rows = torch.cat([R[:6], torch.full((1, 3), scale, dtype=torch.float64)])
    change, kept = result(rule, rows[[0, 1, 2, 3, 4, 6, 0]], f=1)
    assert change.norm() < 5
    assert kept[5] < 0.02


def test_verdicts():
    assert result(Krum())[1].tolist() == [1, 0, 0, 0, 0, 0, 0]
    near(result(NormBound(2.5))[1][[0, 5]], (1, 1 / 6))
    near(result(Median())[1], (0, 1 / 3, 0, 1 / 3, 1 / 3, 0, 0))
    assert result(TrimmedMean())[1][5:].sum() == 0
    assert result(Bulyan(1))[1][5:].tolist() == [0, 0]
    assert result(GeometricMedian())[1][5:].max() < 0.1
    kept = result(Krum(bucket_size=2), f=0, order=[3, 5, 0, 6, 2, 1, 4])[1]
    assert kept.sum() == 2
    assert {tuple(kept[list(pair)].tolist()) for pair in [(3, 5), (0, 6), (2, 1)]} == {(0.0, 0.0), (1.0, 1.0)}


def test_numbers_in_order():
    for rows in (1, 2, 3, 20, 33, 130):
        piece = torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows))
        before = piece.clone()
        assert torch.equal(torch.stack(sorted_rows(piece)), piece.sort(0).values)
        assert torch.equal(piece, before)


def test_whole_numbers_and_messages_that_are_no_numbers():
    values = {"w": torch.ones(3, 2), "count": torch.tensor([4, 9, 5])}
    values["w"][1, 0], values["w"][2, 1] = math.nan, math.inf
    rows = Rows(values, {"w": torch.zeros(2), "count": torch.tensor(1)})
    assert rows.finite().tolist() == [True, False, False]
    assert rows.select(torch.tensor([0])).combine(torch.ones(1).double())["count"] == 3
    assert rows.combine(torch.ones(3).double())["count"] == 4


@pytest.mark.parametrize(
    ("rule", "fewest"),
    [(Median(), 9), (TrimmedMean(2), 5), (Krum(), 11), (Krum(1), 5), (Krum(1, num_selected=8), 8), (Bulyan(), 19),
     (GeometricMedian(), 9), (NormBound(), 1), (CenteredClipping(), 1), (Krum(bucket_size=2), 21)],
    ids=str,
)  # fmt: skip
def test_fewest_clients_against_four(rule, fewest):
    assert rule.fewest_clients(rule.against(4)) == fewest


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (Median, {"bucket_size": 0}),
        (Median, {"weight_cap": 0}),
        (TrimmedMean, {"trim": -1}),
        (Krum, {"num_selected": 0}),
        (Krum, {"num_attackers": -1}),
        (Bulyan, {"num_attackers": -1}),
        (GeometricMedian, {"iterations": 0}),
        (GeometricMedian, {"smoothing": 0.0}),
        (CenteredClipping, {"clip_norm": 0.0}),
        (CenteredClipping, {"iterations": 0}),
        (CenteredClipping, {"start": "middle"}),
        (NormBound, {"clip_norm": math.nan}),
        (MajorityVote, {"server_lr": 0.0}),
    ],
    ids=str,
)
def test_settings_out_of_range(cls, settings):
    with pytest.raises(ConfigError, match=rf"--model.robust_aggregation.{next(iter(settings))} is"):
        cls(**settings)
