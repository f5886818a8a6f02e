import pytest
import torch
import torchvision

from lit_fed.errors import ConfigError
from lit_fed.models import ResNet18, ResNet34


@pytest.mark.parametrize(
    ("network", "theirs"),
    [(ResNet18, torchvision.models.resnet18), (ResNet34, torchvision.models.resnet34)],
    ids=["18", "34"],
)
def test_same_weights_give_what_torchvision_gives(network, theirs):
    ours, theirs = network((3, 32, 32), 7), theirs(num_classes=7)
    assert sum(leaf.numel() for leaf in ours.parameters()) == sum(leaf.numel() for leaf in theirs.parameters())
    theirs.load_state_dict(ours.layers.state_dict())
    x = torch.randn(2, 3, 32, 32)
    outputs = ours(x)
    assert outputs.shape == (2, 7)
    assert torch.equal(outputs, theirs(x))


@pytest.mark.parametrize("network", [ResNet18, ResNet34])
@pytest.mark.parametrize("input_shape", [(3072,), (32, 32), (1, 32, 32), (3, 32, 0)])
def test_samples_that_are_no_coloured_images_are_refused(network, input_shape):
    with pytest.raises(ConfigError, match=rf"{network.__name__} reads images \[3, height >= 1, width >= 1\], .*; ch"):
        network(input_shape, 3)
