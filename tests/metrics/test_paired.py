"""Intervals of differences: coverage where clients, repetitions and noise differ, and values by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from lit_fed.metrics.paired import Difference, Units, difference, holm, mean_difference, weighted_mean
from lit_fed.system.packages import pd

RUNS = 600
"""Draws of each case: five standard errors of a rate of 5 % are 4.4 points."""


def gap_of(values, weight=None):
    """The difference of values [K, n] and zeros."""
    weight = np.ones_like(values) if weight is None else np.broadcast_to(weight, values.shape)
    return difference(weighted_mean(values, weight), weighted_mean(values * 0, weight))


@pytest.mark.parametrize("units", [10, 40])
@pytest.mark.parametrize("deviations", [(0, 0, 0), (0, 0.4, 0), (1, 0, 0), (1, 0.4, 0), (0, 0, 0.7)], ids=str)
def test_a_difference_of_zero_is_clear_in_about_five_percent(units, deviations):
    """Of clients and of repetitions, beside noise of each client in each repetition; clients have other weights.

    The noise may be at the expense of other clients, as in areas under curves of ranks.
    """
    of_units, of_repetitions, exchanged = deviations
    rng = np.random.default_rng([units, int(10 * of_units), int(10 * of_repetitions)])
    clear = 0
    for _ in range(RUNS):
        weight = np.exp(rng.normal(size=units) / 2)
        noise = rng.normal(size=(5, units)) / np.sqrt(weight)
        noise -= exchanged * noise.mean(1, keepdims=True)
        values = of_units * rng.normal(size=units) + of_repetitions * rng.normal(size=(5, 1)) + noise
        clear += gap_of(values, weight).is_clear
    assert 0.005 < clear / RUNS < 0.08


def test_one_half_of_the_clients_tells_the_other_half():
    """The halves' difference is 0, and its error is that of both."""
    rng, clear = np.random.default_rng(3), 0
    for _ in range(RUNS):
        values = rng.normal(size=40) + 0.4 * rng.normal(size=(5, 40))
        one, other = gap_of(values[:, :20]), gap_of(values[:, 20:])
        both = Difference(one.mean - other.mean, math.hypot(one.error, other.error), one.freedom + other.freedom)
        clear += both.is_clear
    assert 0.02 < clear / RUNS < 0.08


def test_of_one_repetition_it_is_the_interval_of_student():
    values = np.array([0.1, 0.4, -0.2, 0.3, 0.2])
    found = gap_of(values[None])
    wanted = stats.ttest_1samp(values, 0)
    assert found.p == pytest.approx(wanted.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(wanted.confidence_interval()))


def test_clients_that_all_shift_together_count_as_repetitions():
    """Without differences between clients it is the interval of the repetitions' means."""
    shifts = np.array([0.1, 0.3, 0.2, -0.1, 0.2])
    found = gap_of(np.repeat(shifts[:, None], 7, 1))
    assert found.p == pytest.approx(stats.ttest_1samp(shifts, 0).pvalue)


def test_clients_of_one_repetition_each_are_nested_in_it():
    """With other clients in each repetition, what they do alone is not counted twice."""
    rng = np.random.default_rng(0)
    values = np.full((4, 40), np.nan)
    for row in range(4):
        values[row, 10 * row : 10 * row + 10] = rng.normal(size=10)
    found = gap_of(values)
    means = np.nanmean(values, 1)
    assert found.error == pytest.approx(means.std(ddof=1) / 2)
    assert found.freedom == 3


def test_a_single_client_has_no_interval():
    found = gap_of(np.array([[0.3], [0.2]]))
    assert (found.mean, found.low, found.high) == (0.25, -math.inf, math.inf)
    assert not found.is_clear
    assert found.p == 1
    assert str(found) == "+25.00 [-inf, +inf]"


def test_equal_results_are_level_and_constant_ones_are_clear():
    same, other = np.full((3, 4), 0.5), np.full((3, 4), 0.4)
    weight = np.ones((3, 4))
    level = difference(weighted_mean(same, weight), weighted_mean(same, weight))
    assert (level.p, level.is_clear) == (1, False)
    apart = difference(weighted_mean(same, weight), weighted_mean(other, weight))
    assert apart.is_clear
    assert apart.p < 1e-6


def test_intervals_of_several_comparisons_are_wider():
    one = Difference(0.1, 0.04, 10.0)
    nine = one._replace(comparisons=9)
    assert one.is_clear
    assert not nine.is_clear
    assert nine.high - nine.mean == pytest.approx(0.04 * stats.t.ppf(1 - 0.05 / 18, 10))


def test_holm_is_that_of_the_definition():
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_the_influence_of_units_is_what_the_bootstrap_of_them_finds():
    """Errors by influence, of a weighted mean, and of drawing its clients again."""
    rng = np.random.default_rng(5)
    values, weight = rng.normal(size=(1, 200)), rng.integers(1, 9, size=200).astype(float)
    drawn = rng.integers(200, size=(4000, 200))
    means = (values[0][drawn] * weight[drawn]).sum(1) / weight[drawn].sum(1)
    assert gap_of(values, weight).error == pytest.approx(means.std(), rel=0.08)


def test_a_table_of_clients_is_paired_by_name_and_division():
    rows = [("x", "ann", 2, 0.5, 0.4), ("x", "bob", 1, 0.9, 0.6), ("y", "bob", 1, 0.8, 0.7), ("y", "ann", 2, 0.5, 0.6)]
    table = pd.DataFrame(rows, columns=["division", "client", "samples", "value", "other"])
    values, weight = np.array([[0.1, 0.3], [-0.1, 0.1]]), np.array([2.0, 1.0])
    assert mean_difference(table)[:3] == pytest.approx(gap_of(values, weight)[:3])
    units = weighted_mean(values, np.broadcast_to(weight, (2, 2)))
    assert isinstance(units, Units)
    assert units.parts.sum(1) == pytest.approx([0, 0])
