import pytest
import torch
from torch import nn
from torchvision import models

from lit_fed.errors import ConfigError
from lit_fed.models import MobileNetV2, ResNet18, ResNet34


def test_shapes_and_size_are_those_of_torchvision():
    network, theirs = MobileNetV2((3, 32, 32), 10), models.mobilenet_v2(num_classes=10)
    shapes = {name: leaf.shape for name, leaf in theirs.state_dict().items()}
    assert {name: leaf.shape for name, leaf in network.layers.state_dict().items()} == shapes
    assert sum(leaf.numel() for leaf in network.parameters()) == 2_236_682
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert network.eval()(torch.randn(1, 3, 33, 20)).shape == (1, 10)


@pytest.mark.parametrize(
    ("network", "theirs"),
    [(MobileNetV2, models.mobilenet_v2), (ResNet18, models.resnet18), (ResNet34, models.resnet34)],
    ids=["MobileNetV2", "ResNet18", "ResNet34"],
)
def test_same_weights_give_what_torchvision_gives(network, theirs):
    ours, theirs = network((3, 32, 32), 7), theirs(num_classes=7)
    assert sum(leaf.numel() for leaf in ours.parameters()) == sum(leaf.numel() for leaf in theirs.parameters())
    theirs.load_state_dict(ours.layers.state_dict())
    if network is MobileNetV2:  # dropout
        ours, theirs = ours.eval(), theirs.eval()
    x = torch.randn(2, 3, 32, 32)
    outputs = ours(x)
    assert outputs.shape == (2, 7)
    assert torch.equal(outputs, theirs(x))


def test_the_classifier_begins_as_a_linear_layer_does():
    torch.manual_seed(3)
    classifier = MobileNetV2((3, 32, 32), 10).requires_grad_(False).layers.classifier
    assert [type(layer) for layer in classifier] == [nn.Dropout, nn.Linear]
    assert classifier[0].p == 0.2
    bound = 1280**-0.5  # uniform; torchvision's own would be normal with 0.01 and biases of 0
    assert float(classifier[1].weight.abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(classifier[1].weight.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert float(classifier[1].bias.abs().min()) > 0


@pytest.mark.parametrize("network", [MobileNetV2, ResNet18, ResNet34])
@pytest.mark.parametrize("input_shape", [(3072,), (32, 32), (1, 32, 32), (4, 32, 32), (3, 0, 32), (3, 32, 0)])
def test_samples_that_are_no_coloured_images_are_refused(network, input_shape):
    with pytest.raises(ConfigError, match=rf"{network.__name__} reads images \[3, .*; (choose|they look)"):
        network(input_shape, 3)
