from functools import partial

import pytest
import torch
from federated_round import MULTICLASS
from torch import nn
from torch.nn import functional as F

from lit_fed.core import tree
from lit_fed.core.task import Task
from lit_fed.core.types import Batch
from lit_fed.errors import ConfigError
from lit_fed.models import CNN2, FedEMCNN, LeafCNN, LeNet5
from lit_fed.models.cnn import pooled_convolutions


@pytest.mark.parametrize(
    ("build", "input_shape", "flat"),
    [
        *(
            (partial(LeafCNN, hidden_size=16), *one)
            for one in [((1, 8, 8), 256), ((3, 9, 4), 128), ((1, 28, 28), 3136)]
        ),
        *((partial(FedEMCNN, hidden_size=5), *one) for one in [((1, 28, 28), 1024), ((3, 16, 21), 128)]),
        (partial(FedEMCNN, hidden_size=5), (1, 32, 24), 960),
        *((CNN2, *one) for one in [((3, 32, 32), 512), ((1, 28, 28), 128), ((1, 22, 38), 384)]),
    ],
)
def test_shapes(build, input_shape, flat):
    network = build(input_shape, 3)
    assert network(torch.randn(2, *input_shape)).shape == (2, 3)
    assert network.classifier[1].in_features == flat


@pytest.mark.parametrize(
    ("network", "input_shape", "num_outputs", "expected"),
    [
        (LeafCNN, (1, 28, 28), 62, 25 * 32 + 32 + 25 * 32 * 64 + 64 + 3136 * 128 + 128 + 128 * 62 + 62),
        (FedEMCNN, (1, 28, 28), 62, 2_278_334),  # the official code's
        (CNN2, (3, 32, 32), 10, 9 * 3 * 128 + 128 + 2 * (9 * 128 * 128 + 128) + 512 * 10 + 10),
        (LeNet5, (1, 32, 32), 10, 61_706),
    ],
)
def test_number_of_parameters(network, input_shape, num_outputs, expected):
    assert sum(leaf.numel() for leaf in network(input_shape, num_outputs).parameters()) == expected


@pytest.mark.parametrize(
    ("network", "input_shape"),
    [
        *((LeafCNN, one) for one in [(8,), (8, 8), (1, 3, 8), (1, 8, 3)]),
        *((FedEMCNN, one) for one in [(256,), (1, 15, 16), (1, 16, 15)]),
        *((CNN2, one) for one in [(22, 22), (3, 21, 32)]),
        *((LeNet5, one) for one in [(784,), (28, 28), (1, 15, 28), (1, 28, 15)]),
    ],
)
def test_samples_that_are_no_images_are_refused(network, input_shape):
    with pytest.raises(
        ConfigError, match=rf"{network.__name__} reads images .*; (choose another --model.network|they look like)"
    ):
        network(input_shape, 3)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_impossible_dropout_is_refused(dropout):
    with pytest.raises(ConfigError, match=r"--model\.network\.dropout is .*; give a number in \[0, 1\)"):
        LeafCNN((1, 8, 8), 3, dropout=dropout)


@pytest.mark.parametrize("network", [LeafCNN, FedEMCNN])
def test_a_dense_layer_without_units_is_refused(network):
    with pytest.raises(ConfigError, match=r"--model\.network\.hidden_size is 0; give a whole number >= 1"):
        network((1, 16, 16), 3, hidden_size=0)


def test_dropout_acts_in_training_only():
    network, x = LeafCNN((1, 8, 8), 3, hidden_size=16), torch.randn(2, 1, 8, 8)
    network.eval()
    assert torch.equal(network(x), network(x))
    network.train()
    assert not torch.equal(network(x), network(x))


def test_models_at_once_give_what_each_gives():
    build = lambda: LeafCNN((1, 8, 8), 3, hidden_size=8, dropout=0.0)  # noqa: E731
    looped, at_once = (
        Task.create(build, MULTICLASS, dtype=torch.float64, model_axis=axis) for axis in ("loop", "vmap")
    )
    models = looped.init(2, 0)
    x, y = torch.randn(3, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 2, 1])
    batch = Batch(x, y, torch.arange(3), torch.ones(3))
    torch.testing.assert_close(at_once.outputs(models, x), looped.outputs(models, x), rtol=0, atol=1e-12)
    gradients = at_once.value_and_grad(models, batch), looped.value_and_grad(models, batch)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    assert tree.leaves(gradients[0][1])[0].shape == (2, 32, 1, 5, 5)


def test_fedem_drops_nothing():
    network, x = FedEMCNN((1, 16, 16), 3, hidden_size=5), torch.randn(2, 1, 16, 16)
    assert torch.equal(network.train()(x), network.eval()(x))


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("kernel_size", [3, 4])
def test_outputs_and_gradients_are_those_of_convolution_relu_and_pooling(kernel_size, padding):
    layers, num_features = pooled_convolutions("N", (2, 19, 15), (3, 4), kernel_size, padding)
    layers.double()
    assert [type(layer) for layer in layers] == 2 * [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
    x, leaves = torch.randn(5, 2, 19, 15, dtype=torch.float64), list(layers.parameters())
    expected = x
    for weight, bias in zip(leaves[::2], leaves[1::2], strict=True):
        expected = F.max_pool2d(F.conv2d(expected, weight, bias, padding=padding).relu(), 2)
    found = layers(x)
    assert torch.equal(found, expected)
    assert num_features == expected[0].numel()
    gradients = (torch.autograd.grad(outputs.square().sum(), leaves) for outputs in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("channels", "kernel_size", "padding", "smallest"), [((2, 2), 5, 2, 4), ((2, 2), 5, 0, 16), ((2, 2, 2), 3, 0, 22)]
)
def test_one_pixel_is_left_of_the_smallest_image(channels, kernel_size, padding, smallest):
    assert pooled_convolutions("N", (1, smallest, smallest), channels, kernel_size, padding)[1] == 2
    with pytest.raises(ConfigError, match=rf"N reads images \[channels, height >= {smallest}, width >= {smallest}\], "):
        pooled_convolutions("N", (1, smallest, smallest - 1), channels, kernel_size, padding)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("pixels", "flat"), [(28, 16 * 4 * 4), (32, 16 * 5 * 5)])
def test_shapes_of_lenet5(channels, pixels, flat):
    network = LeNet5((channels, pixels, pixels), 10)
    assert network(torch.randn(2, channels, pixels, pixels)).shape == (2, 10)
    convolutions = 25 * channels * 6 + 6 + 25 * 6 * 16 + 16
    dense = flat * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10
    assert sum(leaf.numel() for leaf in network.parameters()) == convolutions + dense
