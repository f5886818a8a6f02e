import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_fed.errors import ConfigError
from lit_fed.models.convolutions import pooled_convolutions


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
