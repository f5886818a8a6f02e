import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from lit_fed.core.solvers.linear_models import best_dual, logistic_root, margin_loss, margin_prox


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_losses():
    margins = numbers(-2.0, 0.25, 1.0, 3.0)
    assert margin_loss("hinge", margins).tolist() == [3.0, 0.75, 0.0, 0.0]
    np.testing.assert_allclose(margin_loss("logistic", margins), np.logaddexp(0, -margins.numpy()), atol=1e-15)


@pytest.mark.parametrize("slope", [0.0, 1e-3, 0.5, 30.0, 1e5])
def test_the_root_is_exact_wherever_it_lies(slope):
    roots = torch.linspace(-12, 40, 105, dtype=torch.float64)
    total = roots + slope * torch.sigmoid(roots)
    np.testing.assert_allclose(logistic_root(total, torch.full_like(total, slope)), roots, rtol=0, atol=1e-9)


def dual_objective(loss, beta, start, margin, curvature):
    value = beta if loss == "hinge" else -sum(p * np.log(p) for p in (beta, 1 - beta) if p > 0)
    return value - margin * (beta - start) - curvature / 2 * (beta - start) ** 2


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("margin", [-3.0, 0.4, 1.2, 5.0])
@pytest.mark.parametrize("curvature", [0.05, 1.0, 40.0])
def test_a_dual_step_reaches_the_maximum(loss, start, margin, curvature):
    found = float(best_dual(loss, numbers(start), numbers(margin), numbers(curvature)))
    assert 0 <= found <= 1
    best = minimize_scalar(
        lambda beta: -dual_objective(loss, beta, start, margin, curvature), bounds=(0, 1), method="bounded",
        options={"xatol": 1e-12},
    )  # fmt: skip
    assert dual_objective(loss, found, start, margin, curvature) >= -best.fun - 1e-12
    assert found == pytest.approx(best.x, abs=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("weight", [0.1, 1.0, 7.0])
def test_a_proximal_step_reaches_the_minimum(loss, weight):
    points = torch.linspace(-15, 5, 41, dtype=torch.float64)
    for point, found in zip(points.tolist(), margin_prox(loss, points, weight).tolist(), strict=True):

        def objective(a, point=point):
            return float(margin_loss(loss, numbers(a))) + weight / 2 * (a - point) ** 2

        best = minimize_scalar(objective, bounds=(point - 1, point + 1 / weight + 1), method="bounded")
        assert objective(found) <= best.fun + 1e-12
