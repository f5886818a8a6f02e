"""Gains over training alone, by hand and by simulation."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from lit_fed.core.targets import Binary, Multiclass, Regression
from lit_fed.metrics.verdict import constant_scores, gain_of, in_words, mean_gain, probabilities


def test_the_interval_of_numbers_is_that_of_student():
    rng = np.random.default_rng(0)
    served, alone = rng.normal(1.0, 1.0, 12), rng.normal(0.0, 1.0, 12)
    found = gain_of(served, alone)
    wanted = stats.ttest_rel(served, alone).confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((wanted.low, wanted.high))
    assert (found.samples, found.said) == (12, "gains" if wanted.low > 0 else "cannot be told")


def test_the_interval_of_hits_is_that_of_agresti_and_min():
    served, alone = np.array([1.0] * 9 + [0.0] * 3), np.array([1.0] * 4 + [0.0] * 5 + [1.0] + [0.0] * 2)
    more, fewer, pairs = 5.5, 1.5, 14  # half a pair in each of four kinds
    centre, error = (more - fewer) / pairs, np.sqrt((more + fewer - (more - fewer) ** 2 / pairs) / pairs**2)
    found = gain_of(served, alone)
    assert found.interval == pytest.approx((4 / 12, centre - 1.959964 * error, centre + 1.959964 * error))


@pytest.mark.parametrize("number", [0, 1])
def test_a_client_without_two_samples_is_told_nothing(number):
    assert gain_of(np.full(number, 0.3), np.full(number, 0.1)).said == "cannot be told"


def test_intervals_hold():
    """Nil gains are called clear in at most about one client of twenty, of hits and of numbers."""
    rng = np.random.default_rng(1)
    clear = {"hits": 0, "numbers": 0}
    for _ in range(2000):
        alone = rng.random(15) < 0.7
        served = np.where(rng.random(15) < 0.3, rng.random(15) < 0.7, alone)
        clear["hits"] += gain_of(served.astype(float), alone.astype(float)).said != "cannot be told"
        clear["numbers"] += gain_of(rng.normal(size=15), rng.normal(size=15)).said != "cannot be told"
    assert clear["hits"] < 0.05 * 2000
    assert 0.035 * 2000 < clear["numbers"] < 0.065 * 2000


def test_the_mean_is_over_clients():
    found = mean_gain(np.array([2.0, 2.0, np.nan, 2.0, 4.0]))
    wanted = stats.ttest_1samp([2, 2, 2, 4], 0).confidence_interval(0.95)
    assert found == pytest.approx((2.5, wanted.low, wanted.high))


def test_a_constant_is_the_most_frequent_label_or_the_mean():
    trained, y = torch.tensor([2, 0, 2, 1]), torch.tensor([2, 1, 2])
    assert constant_scores(Multiclass(3), trained, y).tolist() == [1, 0, 1]
    assert constant_scores(Binary(), torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 1.0])).tolist() == [0, 1]
    values = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0])
    assert constant_scores(Regression(), *values).tolist() == [0, 4]
    in_tens = Regression().standardised((5.0, 10.0))  # of labels in tens
    assert constant_scores(in_tens, *values).tolist() == [0, 400]
    assert constant_scores(Regression(), values[0][:0], values[1]).isnan().all()


@pytest.mark.parametrize(
    ("metric", "alone", "constant", "said"),
    [
        (
            "accuracy",
            [0.5, 0.7],
            [0.7, 0.5],
            "accuracy 0.6, no better than 0.6 of always predicting a client's most frequ",
        ),
        ("accuracy", [0.5, 0.8], [0.7, 0.5], ""),
        ("mse", [2.0, 4.0], [3.0, 1.0], "mse 3, no better than 2 of always predicting a client's mean training label"),
        ("mse", [2.0, 1.0], [3.0, 1.0], ""),
        ("mse", [2.0, 9.0], [3.0, np.nan], ""),  # the second client has no training sample
        ("mse", [2.0, 9.0], None, ""),  # a table of an earlier version
    ],
)
def test_training_alone_no_better_than_a_constant_is_said(metric, alone, constant, said):
    each = {f"{metric}_alone": alone, f"{metric}_served": alone, "gain": [0.0, 0.0], "verdict": ["alone", "alone"]}
    first, *more = in_words(
        pd.DataFrame(each | ({} if constant is None else {f"{metric}_constant": constant}))
    ).splitlines()
    assert first.startswith(f"joining: {metric}")
    assert len(more) == bool(said)
    if said:
        assert more[0].startswith(f"training alone: {said}")
        assert more[0].endswith("give more --trainer.max_epochs, or other --model.solver.lr")


def test_a_client_with_few_samples_follows_the_others():
    rng = np.random.default_rng(0)
    others = [rng.normal(1.0, 1.0, 30) for _ in range(20)]
    few, none = probabilities([*others, np.array([-0.5])])[-1], probabilities([*others, np.zeros(0)])[-1]
    assert few > 0.9
    assert none > 0.9
    many = probabilities([*others, rng.normal(-1.0, 1.0, 200)])[-1]
    assert many < 0.01


def test_probabilities_are_calibrated():
    """Of clients with a probability near p, a share p truly gains."""
    rng = np.random.default_rng(0)
    chance, truth = [], []
    for _ in range(300):
        gains = rng.normal(0.3, 0.5, 20)
        chance.append(probabilities([rng.normal(gain, 2.0, rng.integers(4, 40)) for gain in gains]))
        truth.append(gains > 0)
    chance, truth = np.concatenate(chance), np.concatenate(truth)
    for low in (0.5, 0.7, 0.9):
        rows = (chance >= low) & (chance < low + 0.1)
        assert truth[rows].mean() == pytest.approx(chance[rows].mean(), abs=0.05)


def test_probabilities_by_a_client_alone_are_those_of_its_t():
    rng = np.random.default_rng(2)
    gains = [rng.normal(0.3, 1.0, number) for number in (9, 4, 1, 0)]
    found = probabilities(gains, pooled=False)
    wanted = [1 - stats.ttest_1samp(one, 0, alternative="greater").pvalue for one in gains[:2]]
    assert found.tolist() == pytest.approx([*wanted, 0.5, 0.5])


def test_nothing_is_known_of_a_single_client():
    assert probabilities([np.array([3.0, 4.0])]).tolist() == [0.5]


@pytest.mark.parametrize("sizes", [(6, 4, 1, 0, 9), (3, 2), (2, 1), (5, 5, 5)])
def test_probabilities_are_those_of_a_meta_analysis(sizes):
    """DerSimonian and Laird's variance between clients, and each client's normal posterior around the common mean."""
    rng = np.random.default_rng(3)
    gains = [rng.normal(mean, 1.0, number) for mean, number in zip((2.0, -1.0, 0.5, 0.0, 1.0), sizes, strict=False)]
    held = [one for one in gains if len(one)]
    noise = sum(((one - one.mean()) ** 2).sum() for one in held) / sum(len(one) - 1 for one in held)
    errors, means = [noise / len(one) for one in held], [one.mean() for one in held]
    fixed = np.average(means, weights=1 / np.array(errors))
    q = sum((mean - fixed) ** 2 / error for mean, error in zip(means, errors, strict=True))
    w = [1 / error for error in errors]
    between = max(0.0, (q - (len(held) - 1)) / (sum(w) - sum(one**2 for one in w) / sum(w)))
    w = [1 / (between + error) for error in errors]
    common, precision = np.average(means, weights=w), sum(w)
    wanted = []
    for one in gains:
        share = between / (between + noise / len(one)) if len(one) else 0.0
        mean = share * (one.mean() if len(one) else 0.0) + (1 - share) * common
        variance = (1 - share) * between + (1 - share) ** 2 / precision
        wanted.append(stats.norm.cdf(mean / np.sqrt(variance)))
    assert probabilities(gains).tolist() == pytest.approx(wanted)
