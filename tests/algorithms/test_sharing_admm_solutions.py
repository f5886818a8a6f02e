import numpy as np
import pytest
import torch

from lit_fed.algorithms.sharing_admm import _lasso_solution, _ridge_solution, regularised_solution


@pytest.fixture
def system():
    """Least squares of 20 rows; the third feature is 0 everywhere."""
    A = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A[:, 2] = 0
    b = torch.randn(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return A.T @ A, A.T @ b


def test_ridge(system):
    gram, linear = system
    weight = torch.tensor([1.0, 2.0, 0.0, 0.5, 0.0], dtype=torch.float64)
    x = _ridge_solution(gram, linear, weight)
    np.testing.assert_allclose(gram @ x - linear + weight * x, np.zeros(5), atol=1e-13)
    assert float(x[2]) == 0


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_lasso(system, scale):
    """The gradient is balanced by the penalty where an entry is not 0, and within it elsewhere."""
    gram, linear = system
    weight = scale * torch.tensor([1.0, 2.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    x = _lasso_solution(gram, linear, weight, torch.ones(5, dtype=torch.float64), 2000)
    slope = gram @ x - linear
    active = x != 0
    np.testing.assert_allclose((slope + weight * x.sign())[active], np.zeros(int(active.sum())), atol=1e-10)
    assert (slope.abs() <= weight + 1e-12)[~active].all()
    assert float(x[2]) == 0
    assert float(x[4]) != 0


def test_the_last_entry_has_no_penalty(system):
    gram, linear = system
    weight = torch.tensor([2.0, 2.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    zero = torch.zeros(5, dtype=torch.float64)
    assert torch.equal(regularised_solution("ridge", gram, linear, 2.0, zero, 1), _ridge_solution(gram, linear, weight))
    lasso = regularised_solution("lasso", gram, linear, 2.0, zero, 9)
    assert torch.equal(lasso, _lasso_solution(gram, linear, weight, zero, 9))
    assert not torch.equal(lasso, regularised_solution("lasso", gram, linear, 2.0, zero, 2))
