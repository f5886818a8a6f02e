"""Outputs that do not fit the labels are an error before the training."""

from functools import partial

import pytest
import torch
from federated_round import MULTICLASS, facts
from torch import nn
from torchvision.models import resnet18

from lit_fed import FederatedModule
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, CharLSTM, LeNet5, MobileNetV2
from lit_fed.models.base import Network, build_network, call_with_sizes, check_outputs, size_names

FLOAT, TOKENS = torch.float32, torch.int64


class Normalised(nn.Module):
    """Statistics of the batch in evaluation too, and noise."""

    def __init__(self):
        super().__init__()
        self.norm, self.dense = nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)

    def forward(self, x):
        return self.dense(self.norm(x) + torch.randn(4))


@pytest.mark.parametrize(
    ("network", "input_shape", "input_type", "output_shape"),
    [
        (MLP((2, 2), 3), (2, 2), FLOAT, (3,)),
        (MLP((4,), 1), (4,), FLOAT, (1,)),
        (MobileNetV2((3, 32, 32), 10), (3, 32, 32), FLOAT, (10,)),
        (CharLSTM((5,), 7, hidden_size=4), (5,), TOKENS, (5, 7)),
        (Normalised(), (4,), FLOAT, (3,)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_networks_that_fit_are_left_as_they_are(network, input_shape, input_type, output_shape):
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    state = torch.get_rng_state()
    check_outputs(network, input_shape, input_type, output_shape)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(leaf, before[name]) for name, leaf in network.state_dict().items())


@pytest.mark.parametrize(
    ("network", "input_shape", "input_type", "output_shape", "parts"),
    [
        (
            CharLSTM((5,), 7, hidden_size=4),
            (5,),
            TOKENS,
            (7,),
            ["CharLSTM returns [B, 5, 7]", "it should return [B, 7]"],
        ),
        (CharLSTM((5,), 7, hidden_size=4), (5,), TOKENS, (2, 7), ["it should return [B, 2, 7]"]),
        (CharLSTM((5,), 7, hidden_size=4), (5,), FLOAT, (5, 7), ["CharLSTM reads tokens", "torch.float32"]),
        (MLP((5,), 7), (5,), FLOAT, (5, 7), ["MLP returns [B, 7]", "it should return [B, 5, 7]"]),
        (MLP((5,), 7), (5,), TOKENS, (7,), ["MLP cannot read samples [5] of torch.int64", "HuggingFaceCausalLM"]),
        (LeNet5((1, 16, 16), 3), (1, 20, 20), FLOAT, (3,), ["LeNet5 cannot read samples [1, 20, 20]"]),
    ],
)
def test_networks_that_do_not_fit(network, input_shape, input_type, output_shape, parts):
    with pytest.raises(ConfigError) as refused:
        check_outputs(network, input_shape, input_type, output_shape)
    for part in parts:
        assert part in str(refused.value)


class Fails(nn.Module):
    """A forward pass that raises, or gives no tensor."""

    def __init__(self, raised=None):
        super().__init__()
        self.dense, self.raised = nn.Linear(4, 3), raised

    def forward(self, x):
        if self.raised is not None:
            raise self.raised
        return {"logits": self.dense(x)}


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (ValueError("width 7"), r"Fails cannot read samples \[4\] of torch.float32 \(ValueError: width 7\); choose"),
        (KeyError("pixels"), r"\(KeyError: 'pixels'\); choose another --model\.network, or correct the data"),
        (AssertionError(), r"Fails cannot read samples .*AssertionError"),
        (None, r"Fails returns dict, not a tensor of outputs \[B, K\]; return only the outputs"),
    ],
    ids=str,
)
def test_a_forward_pass_that_fails_is_named(raised, message):
    with pytest.raises(ConfigError, match=message):
        check_outputs(Fails(raised), (4,), FLOAT, (3,))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            lambda shape, outputs: shape.pixels,
            r"--model\.network .*cannot be built for samples \[4\] and 3 outputs \(Attr",
        ),
        (lambda shape, outputs: LeNet5(shape, outputs), "LeNet5 reads images"),  # its own words
    ],
    ids=["any error", "an error of the network's own"],
)
def test_a_network_that_cannot_be_built_is_named(network, message):
    with pytest.raises(ConfigError, match=message):
        FederatedModule(network=network).build(facts(MULTICLASS, (4,)))


def test_a_module_is_checked_when_it_is_built():
    module = FederatedModule(network=CharLSTM)
    with pytest.raises(
        ConfigError, match=r"CharLSTM returns \[B, 5, 3\] for .*; for these labels it should return \[B, 3\]"
    ):
        module.build(facts(MULTICLASS, (5,), input_type=torch.int64))


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
        (by_name, (4,), ["by_name needs in_channels", "the samples are [4], without channels in front"]),
        (lambda: 3, (4,), ["returns int", "not an nn.Module"]),
        (partial(Plain, hidden=-1), (4,), ["Plain cannot be built for samples [4] and 2 outputs"]),
    ],
)
def test_what_is_missing_is_named(network, shape, parts):
    with pytest.raises(ConfigError) as refused:
        build_network(network, shape, torch.float32, 2)
    assert all(part in str(refused.value) for part in parts), refused.value
