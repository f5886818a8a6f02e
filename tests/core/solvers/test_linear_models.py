import numpy as np
import pytest
import torch
from federated_round import BINARY, MULTICLASS, POSITIONS, REGRESSION, Tagger, make_task, same_bits
from scipy.optimize import minimize_scalar
from torch import nn

from lit_fed.core.solvers.linear_models import (
    best_dual,
    check_linear_task,
    from_columns,
    logistic_root,
    margin_loss,
    margin_prox,
    to_columns,
    with_constant,
)
from lit_fed.core.types import ModelState
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear, Network

KINDS = ("binary", "multiclass")


class Squared(Network):
    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.linear = nn.Linear(*input_shape, num_outputs)

    def forward(self, x):
        return self.linear(x).square()


class Scaled(Network):
    """The parameters have the right shapes, the wrong meaning."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_outputs, *input_shape))
        self.scale = nn.Parameter(torch.ones(num_outputs))

    def forward(self, x):
        return x @ self.weight.T * self.scale


class Unbiased(Network):
    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.linear = nn.Linear(*input_shape, num_outputs, bias=False)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("target", [BINARY, MULTICLASS], ids=lambda one: one.kind)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_networks_will_do(target, dtype):
    check_linear_task(make_task(target, dtype=dtype), "Mine", KINDS)


@pytest.mark.parametrize("network", [Squared, Scaled, Unbiased, MLP])
def test_other_networks_are_refused(network):
    with pytest.raises(ConfigError, match=rf"Mine trains linear models, and {network.__name__} is no affine map"):
        check_linear_task(make_task(MULTICLASS, network=network), "Mine", KINDS)


def test_networks_of_other_inputs_are_refused():
    with pytest.raises(ConfigError, match="these are sequences; give another"):
        check_linear_task(make_task(POSITIONS, network=Tagger), "Mine", KINDS)
    with pytest.raises(ConfigError, match="Mine learns binary and multiclass labels, and these are regression"):
        check_linear_task(make_task(REGRESSION), "Mine", KINDS)


def test_columns_hold_the_biases_last():
    task = make_task(MULTICLASS, network=lambda shape, outputs: Linear((2, 2), outputs))
    models, x = task.init(3, 0), torch.randn(5, 2, 2, dtype=torch.float64)
    columns = to_columns(models.parameters)
    assert columns.shape == (3, 3, 5)
    wanted = torch.einsum("bd,mkd->bmk", with_constant(x), columns)
    assert torch.allclose(task.outputs(models, x), wanted, rtol=0, atol=1e-14)
    assert same_bits(ModelState(from_columns(columns, models.parameters), {}), models)
    narrow = from_columns(columns, {name: leaf.float() for name, leaf in models.parameters.items()})
    assert {leaf.dtype for leaf in narrow.values()} == {torch.float32}
    assert with_constant(x, torch.tensor(False))[:, -1].tolist() == [0] * 5


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
