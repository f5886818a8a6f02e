"""Whatever makes a network gets the sizes of the data that it asks for."""

from functools import partial

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from lit_fed.errors import ConfigError
from lit_fed.models import MLP
from lit_fed.models.base import Network, build_network
from lit_fed.models.sizes import call_with_sizes, size_names


class Plain(nn.Module):
    def __init__(self, in_features, num_classes, hidden=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(in_features, hidden), nn.Linear(hidden, num_classes))

    def forward(self, x):
        return self.layers(x)


def called(**sizes):
    return sizes


def both(shape, outputs):
    return shape, outputs


def by_name(in_channels, out_features, width=3):
    return in_channels, out_features, width


def test_sizes_by_name():
    layers = build_network(Plain, (1, 8, 8), torch.float32, 10).layers
    assert (layers[1].in_features, layers[1].out_features, layers[2].out_features) == (64, 8, 10)
    assert build_network(partial(Plain, hidden=3), (4,), torch.float32, 2).layers[1].out_features == 3
    assert call_with_sizes(by_name, (3, 8, 8), 5, base=Network) == (3, 5, 3)
    assert call_with_sizes(partial(by_name, out_features=7), (3, 8, 8), 5, base=Network) == (3, 7, 3)
    assert size_names(Plain) == {"in_features", "num_classes"}


def test_functions_of_two_parameters_and_networks_of_lit_fed_take_both_in_order():
    assert call_with_sizes(both, (3, 8), 5, base=Network) == ((3, 8), 5)
    assert call_with_sizes(lambda *sizes: sizes, (3, 8), 5, base=Network) == ((3, 8), 5)
    assert call_with_sizes(MLP, (4,), 5, base=Network).layers[-1].out_features == 5


def test_open_options_get_the_number_of_classes():
    assert call_with_sizes(called, (3, 8), 5, base=Network) == {"num_classes": 5}
    assert build_network(resnet18, (3, 32, 32), torch.float32, 5).fc.out_features == 5


def test_a_module_without_sizes_is_taken_as_it_is():
    assert isinstance(build_network(lambda: nn.Linear(4, 2), (4,), torch.float32, 2), nn.Linear)


def unknown(depth, num_classes, width):
    """Not called."""


@pytest.mark.parametrize(
    ("network", "shape", "parts"),
    [
        (unknown, (4,), ["unknown needs depth, width", "--model.network.depth VALUE", "input_shape", "num_classes"]),
        (by_name, (4,), ["by_name needs in_channels", "samples [4] have no channels"]),
        (lambda: 3, (4,), ["gives int", "nn.Module is wanted"]),
        (partial(Plain, hidden=-1), (4,), ["Plain cannot be built for samples [4] and 2 outputs"]),
    ],
)
def test_what_is_missing_is_named(network, shape, parts):
    with pytest.raises(ConfigError) as refused:
        build_network(network, shape, torch.float32, 2)
    assert all(part in str(refused.value) for part in parts), refused.value
