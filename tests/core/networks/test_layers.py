import pytest
from federated_round import Scale
from torch import nn

from lit_fed.core.networks.layers import last_layers
from lit_fed.errors import ConfigError
from lit_fed.models import MLP


def named(network):
    """Names of all parameters and buffers."""
    return {name for name, _ in (*network.named_parameters(), *network.named_buffers())}


def test_layers_are_counted_from_the_end():
    network = MLP((4,), 2, (5, 6))
    assert last_layers(network, 0) == frozenset()
    assert last_layers(network, 1) == {"layers.5.weight", "layers.5.bias"}
    assert last_layers(network, 2) == {f"layers.{place}.{kind}" for place in (3, 5) for kind in ("weight", "bias")}
    assert last_layers(network, 3) == named(network)


def test_normalisation_is_a_layer_of_its_own():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    norm = {f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert last_layers(network, 1) == {"3.weight", "3.bias"}
    assert last_layers(network, 2) == {"3.weight", "3.bias", *norm}
    assert last_layers(network, 3) == named(network)


def test_buffers_without_parameters_go_with_the_layer_before():
    parts = nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)
    network = nn.Sequential(nn.BatchNorm1d(4, affine=False), *parts)
    assert last_layers(network, 1) == {"3.weight", "3.bias"}
    assert {name.split(".")[0] for name in last_layers(network, 2)} == {"0", "1", "2", "3"}
    network = nn.Sequential(*parts, nn.Linear(2, 1))
    assert {name.split(".")[0] for name in last_layers(network, 2)} == {"2", "3"}


def test_parameters_of_the_network_itself_are_a_layer():
    assert last_layers(Scale(), 1) == {"weight"}


def test_a_tied_parameter_belongs_to_its_first_owner():
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    assert last_layers(network, 1) == {"1.bias"}


def test_too_many_layers_are_refused():
    with pytest.raises(ConfigError, match=r"private_layers is 4, and MLP has 3 layers .* from 0 to 3"):
        last_layers(MLP((4,), 2, (5, 6)), 4)
