import math

import pytest
import torch

from lit_fed.metrics.outliers import outlier


@pytest.mark.parametrize(
    ("values", "floor", "expected"),
    [
        ([1, 2, 3e6], 0, (2, 3e6, 2)),
        ([1, 2, 2e6], 0, None),  # not beyond
        ([1, 3e6], 0, (1, 3e6, 1)),  # the median of two is the smaller
        ([3e6], 0, None),
        ([0, 0, 5], 0, None),  # nothing to compare with
        ([0, 0, 5], 1e-3, None),
        ([0, 1e-9, 5e4], 1e-3, (2, 5e4, 1e-3)),
        ([1, math.inf, 1], 0, (1, math.inf, 1)),
        ([1, math.nan, 1], 0, None),
    ],
)
def test_outlier(values, floor, expected):
    assert outlier(torch.tensor(values, dtype=torch.float64), floor) == expected
