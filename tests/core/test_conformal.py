"""Thresholds beside NumPy, sets and intervals by hand, and coverage by its law."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import betabinom

from lit_fed.core import conformal
from lit_fed.core.forecasting import Quantiles
from lit_fed.core.likelihood import OwnLoss
from lit_fed.core.positive_numbers import LogNormal, Poisson
from lit_fed.core.targets import Binary, Multiclass, MultiLabel, Regression, Sequences, VectorRegression
from lit_fed.errors import ConfigError


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_thresholds_are_those_of_numpy(coverage):
    rng = np.random.default_rng(0)
    for n in [*range(1, 130), 999]:
        scores = rng.normal(size=n).round(1)  # with ties
        per_cent = round(100 * coverage)
        k = -(-(n + 1) * per_cent // 100)
        wanted = np.sort(scores)[k - 1] if k <= n else math.inf
        assert conformal.threshold(torch.from_numpy(scores), coverage) == wanted
        assert (n >= conformal.fewest(coverage)) == math.isfinite(wanted)


def test_ranks_by_hand():
    """9 of 9 and 18 of 19: 10·0.9 is 9 in decimals, and a little more in binary."""
    numbers = torch.arange(1, 20, dtype=torch.float64)
    assert [conformal.threshold(numbers[:n], 0.9) for n in (8, 9, 10, 19)] == [math.inf, 9, 10, 18]


def test_a_score_that_is_not_a_number_is_the_largest():
    scores = torch.tensor([*range(18), math.nan], dtype=torch.float64)
    assert conformal.threshold(scores, 0.9) == 17
    assert conformal.threshold(scores, 0.95) == math.inf


def test_sets_of_classes():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04], [0.34, 0.33, 0.33]])
    target, y = Multiclass(3), torch.tensor([1, 0, 2])
    scores = conformal.nonconformity(target, p.log(), y)
    assert torch.allclose(scores, torch.tensor([0.7, 0.1, 0.67], dtype=torch.float64), atol=1e-6)
    held = conformal.sets(p.log(), torch.tensor([0.75, 0.5, 0.6], dtype=torch.float64))
    assert held.tolist() == [[True, True, False], [True, False, False], [False, False, False]]
    every = conformal.sets(p.log(), torch.full((3,), math.inf, dtype=torch.float64))
    assert every.all()
    assert conformal.sizes(target, p.log(), torch.tensor([0.75, 0.5, 0.6], dtype=torch.float64)).tolist() == [2, 1, 0]


def test_one_logit_has_two_classes():
    log_prob = Binary().mix(torch.ones(1), torch.tensor([[[0.0]], [[math.log(9.0)]]]))
    scores = conformal.nonconformity(Binary(), log_prob, torch.tensor([0, 0]))
    assert torch.allclose(scores, torch.tensor([0.5, 0.9], dtype=torch.float64))
    assert conformal.sets(log_prob, torch.tensor([0.5, 0.5], dtype=torch.float64)).sum(1).tolist() == [2, 1]


def test_intervals_are_in_the_units_of_the_labels():
    target = Regression().standardised((100.0, 10.0))
    prediction, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0.3, -1.0])
    assert torch.allclose(conformal.nonconformity(target, prediction, y), torch.tensor([3.0, 20.0]).double())
    lower, upper = conformal.intervals(target, prediction, torch.tensor([5.0, math.inf], dtype=torch.float64))
    assert lower.tolist() == [95, -math.inf]
    assert upper.tolist() == [105, math.inf]


def mixed(target, outputs):
    return target.mix(torch.ones(1), torch.tensor(outputs)[:, None, None])


def test_counts_and_amounts_end_at_zero():
    counts = mixed(Poisson(), [math.log(2.0), math.log(50.0)])
    lower, upper = conformal.intervals(Poisson(), counts, torch.tensor([4.0, 4.0], dtype=torch.float64))
    assert torch.allclose(torch.stack([lower, upper]), torch.tensor([[0.0, 46.0], [6.0, 54.0]]).double(), atol=1e-4)
    assert torch.allclose(
        conformal.nonconformity(Poisson(), counts, torch.tensor([5.0, 40.0])), torch.tensor([3.0, 10.0]).double(),
        atol=1e-4,
    )  # fmt: skip
    amounts = mixed(LogNormal(), [math.log(8.0)])
    factor = conformal.nonconformity(LogNormal(), amounts, torch.tensor([4.0]))
    assert torch.allclose(factor, torch.tensor([math.log(2.0)]).double())
    lower, upper = conformal.intervals(LogNormal(), amounts, factor)
    assert torch.allclose(torch.cat([lower, upper]), torch.tensor([4.0, 16.0]).double())
    lower, upper = conformal.intervals(LogNormal(), amounts, torch.tensor([math.inf], dtype=torch.float64))
    assert (lower.tolist(), upper.tolist()) == ([0], [math.inf])


@pytest.mark.parametrize(
    "target",
    [Sequences(30), MultiLabel(3), VectorRegression(2), Quantiles(levels=(0.1, 0.5, 0.9)), OwnLoss()],
    ids=lambda one: type(one).__name__,
)
def test_other_labels_are_refused(target):
    with pytest.raises(ConfigError, match=r"--model.conformal is 0.9, and labels are .*; leave it out"):
        conformal.check_target(target, 0.9)


@pytest.mark.parametrize("target", [Binary(), Multiclass(3), Regression(), Poisson(), LogNormal()])
def test_classes_and_numbers_are_not(target):
    conformal.check_target(target, 0.9)


def test_a_description_says_what_an_infinite_threshold_is():
    found = conformal.described(Poisson(), 0.9, {"a": (2.0, True), "b": (math.inf, False)})
    assert found["sets"]["thresholds"] == {"a": 2.0, "b": None}
    assert found["sets"]["own_threshold"] == {"a": True, "b": False}
    assert found["sets"]["rule"] == "max(0, value - threshold) to value + threshold"
    assert conformal.described(Poisson(), None, {}) == {}


@pytest.mark.parametrize(("n", "m"), [(9, 40), (30, 40), (57, 20)])
def test_exchangeable_samples_are_covered_as_often_as_the_law_says(n, m):
    """The number of m samples is BetaBinomial(m, k, n + 1 − k): at least 95 % of 2,000 clients within its limits."""
    scores = torch.rand(2000, n + m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covered = np.array([(own[n:] <= conformal.threshold(own[:n], 0.9)).sum() for own in scores])
    k = conformal.rank(n, 0.9)
    law = betabinom(m, k, n + 1 - k)
    within = (covered >= law.ppf(0.025)) & (covered <= law.ppf(0.975))
    assert within.mean() > 0.94
    error = law.std() / math.sqrt(len(covered))
    assert abs(covered.mean() - m * k / (n + 1)) < 3 * error  # a rank beside k is 6 errors away, or more
    assert m / (n + 1) > 6 * error


def test_the_chance_of_fewer_is_that_of_a_sum_of_beta_binomials():
    """Exact for one threshold; for several within a twentieth of the convolution where a limit may lie."""
    for later, held in ([40], [30]), ([5, 9, 20, 3], [20, 15, 57, 9]), ([1, 1, 2], [9, 9, 30]), ([1] * 24, [20] * 24):
        law = np.ones(1)
        for m, n in zip(later, held, strict=True):
            k = conformal.rank(n, 0.9)
            law = np.convolve(law, betabinom(m, k, n + 1 - k).pmf(np.arange(m + 1)))
        found = [conformal.chance_of_fewer(c, np.array(later), np.array(held), 0.9) for c in range(sum(later) + 1)]
        matters = law.cumsum() > 1e-4
        tolerance = 1e-9 if len(later) == 1 else 0.05
        np.testing.assert_allclose(np.array(found)[matters], law.cumsum()[matters], rtol=tolerance)
