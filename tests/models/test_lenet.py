import pytest
import torch

from lit_fed.errors import ConfigError
from lit_fed.models import LeNet5


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("pixels", "flat"), [(28, 16 * 4 * 4), (32, 16 * 5 * 5)])
def test_shapes(channels, pixels, flat):
    network = LeNet5((channels, pixels, pixels), 10)
    assert network(torch.randn(2, channels, pixels, pixels)).shape == (2, 10)
    convolutions = 25 * channels * 6 + 6 + 25 * 6 * 16 + 16
    dense = flat * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10
    assert sum(leaf.numel() for leaf in network.parameters()) == convolutions + dense


def test_size_on_grey_images_of_32_pixels_is_the_well_known_one():
    assert sum(leaf.numel() for leaf in LeNet5((1, 32, 32), 10).parameters()) == 61_706


@pytest.mark.parametrize("input_shape", [(784,), (28, 28), (1, 15, 28), (1, 28, 15)])
def test_samples_that_are_no_images_are_refused(input_shape):
    with pytest.raises(ConfigError, match=r"LeNet5 reads images \[channels, height >= 16, width >= 16\], .*; choose"):
        LeNet5(input_shape, 3)
