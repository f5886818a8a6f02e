import pytest
import torch
from federated_round import BINARY, MULTICLASS, POSITIONS, REGRESSION, Tagger, make_task, same_bits
from torch import nn

from lit_fed.core.solvers.linear_models import check_linear_task, from_columns, to_columns, with_constant
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
