import numpy as np
import pytest

from lit_fed.data.data_sets.subsample import check_subsample, draw_subsample
from lit_fed.errors import ConfigError


@pytest.mark.parametrize(
    ("total", "fraction", "expected"), [(100, 0.29, 29), (3597, 0.15, 539), (7, 1e-6, 1), (5, 1, 5)]
)
def test_size_of_a_share(total, fraction, expected):
    kept = draw_subsample(total, fraction, 0)
    assert kept.shape == (total,)
    assert kept.sum() == expected


def test_a_smaller_share_lies_in_a_larger_one():
    small, large = (set(np.flatnonzero(draw_subsample(50, fraction, 3))) for fraction in (0.2, 0.6))
    assert small < large
    assert small != set(np.flatnonzero(draw_subsample(50, 0.2, 4)))


def test_the_whole_range_of_seeds_is_taken():
    check_subsample(1.0, 2**32 - 1)
    with pytest.raises(ConfigError, match=f"--data.dataset.seed is {2**32}"):
        check_subsample(1.0, 2**32)
