import math

import pytest
import torch
from federated_round import MULTICLASS, make_task
from torch import nn

from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear, Network


@pytest.mark.parametrize("input_shape", [(6,), (2, 3)])
@pytest.mark.parametrize(("hidden_sizes", "num_parameters"), [((), 21), ((5,), 35 + 18), ((5, 2), 35 + 12 + 9)])
def test_shapes(input_shape, hidden_sizes, num_parameters):
    network = MLP(input_shape, 3, hidden_sizes)
    assert network(torch.randn(4, *input_shape)).shape == (4, 3)
    assert network(torch.randn(0, *input_shape)).shape == (0, 3)
    assert sum(leaf.numel() for leaf in network.parameters()) == num_parameters


def test_relu_stands_between_layers_only():
    layers = MLP((6,), 3, (5, 2)).layers
    assert [type(layer) for layer in layers] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("hidden_sizes", [(0,), (5, -1)])
def test_layers_without_units_are_refused(hidden_sizes):
    with pytest.raises(ConfigError, match=r"--model\.network\.hidden_sizes is \[.*\]; give whole numbers >= 1"):
        MLP((6,), 3, hidden_sizes)


def test_models_at_once_give_what_each_gives():
    tasks = [
        make_task(MULTICLASS, network=lambda *sizes: MLP(*sizes, (5, 3)), model_axis=axis) for axis in ("loop", "vmap")
    ]
    models, x = tasks[0].init(3, 0), torch.randn(7, 4, dtype=torch.float64)
    looped, at_once = (task.outputs(models, x) for task in tasks)
    torch.testing.assert_close(at_once, looped, rtol=0, atol=1e-12)


@pytest.mark.parametrize("input_shape", [(6,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("num_outputs", [1, 4])
def test_shapes_of_linear(input_shape, num_outputs):
    network = Linear(input_shape, num_outputs)
    assert isinstance(network, Network)
    assert network(torch.randn(5, *input_shape)).shape == (5, num_outputs)
    assert network(torch.randn(0, *input_shape)).shape == (0, num_outputs)
    assert sum(leaf.numel() for leaf in network.parameters()) == num_outputs * (math.prod(input_shape) + 1)
