"""Factors, adaptive bounds and their noise, as numbers."""

import math

import pytest
import torch

from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy.clipping import adapted_bound, clip_factor, noise_beside_counts

NORMS = torch.tensor([5.0, 0.5, 2.0, 1.0], dtype=torch.float64)


def next_bound(bound, expected=4, noise=0.0):
    bound = torch.tensor(bound, dtype=torch.float64)
    centred = ((bound >= NORMS).double() - 0.5).sum() + noise
    return float(adapted_bound(bound, centred / expected, 0.5, 0.2))


def test_factors():
    assert clip_factor(NORMS, 1.0).tolist() == [0.2, 1.0, 0.5, 1.0]
    assert clip_factor(torch.zeros(()), 1.0) == 1
    assert clip_factor(NORMS, math.inf).tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("bound", "expected"), [(0.1, 0.1105170918), (1.0, 1.0), (2.0, 1.9024588490), (5.0, 4.5241870902)]
)
def test_the_bound_follows_the_quantile(bound, expected):
    assert next_bound(bound) == pytest.approx(expected, abs=1e-10)


def test_trajectory():
    bound, seen = 0.1, {}
    for round_idx in range(1, 31):
        seen[round_idx] = bound = next_bound(bound)
    expected = {1: 0.11051709, 2: 0.12214028, 5: 0.16487213, 10: 0.27182818, 20: 0.63598195, 30: 1.04855697}
    assert {round_idx: round(seen[round_idx], 8) for round_idx in expected} == expected


def test_noise_and_absent_clients():
    assert next_bound(1.0, noise=1.0) == pytest.approx(0.9512294245, abs=1e-10)
    assert next_bound(2.0, expected=5) == pytest.approx(1.9215788783, abs=1e-10)  # uncentred: 1.9603973466


def test_shares_are_clamped():
    bound = torch.tensor(1.0, dtype=torch.float64)
    assert float(adapted_bound(bound, torch.tensor(7.0), 0.5, 0.2)) == pytest.approx(math.exp(-0.1))
    assert float(adapted_bound(bound, torch.tensor(-7.0), 0.5, 0.2)) == pytest.approx(math.exp(0.1))


@pytest.mark.parametrize(
    ("z", "cohort", "expected"),
    [
        (1.0, 100, 1.0050378153),
        (1.0, 50, 1.0206207262),
        (1.0, 20, 1.1547005384),
        (1.2, 120, 1.2060453783),
        (1.0, 11, 2.4003967926),
        (0.0, 10, 0.0),
    ],
)
def test_noise_of_models_beside_counts(z, cohort, expected):
    assert noise_beside_counts(z, cohort / 20) == pytest.approx(expected, abs=1e-10)


def test_counts_that_cost_everything():
    with pytest.raises(ConfigError, match=r"noise_multiplier 1 leaves nothing.*clip_count_noise above 0.5"):
        noise_beside_counts(1.0, 0.5)
