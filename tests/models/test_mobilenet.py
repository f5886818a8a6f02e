import pytest
import torch
import torchvision
from torch import nn

from lit_fed.errors import ConfigError
from lit_fed.models import MobileNetV2


def test_shapes_and_size_are_those_of_torchvision():
    network, theirs = MobileNetV2((3, 32, 32), 10), torchvision.models.mobilenet_v2(num_classes=10)
    shapes = {name: leaf.shape for name, leaf in theirs.state_dict().items()}
    assert {name: leaf.shape for name, leaf in network.layers.state_dict().items()} == shapes
    assert sum(leaf.numel() for leaf in network.parameters()) == 2_236_682
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert network.eval()(torch.randn(1, 3, 33, 20)).shape == (1, 10)


def test_same_weights_give_what_torchvision_gives():
    network, theirs = MobileNetV2((3, 32, 32), 4).eval(), torchvision.models.mobilenet_v2(num_classes=4).eval()
    theirs.load_state_dict(network.layers.state_dict())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(x), theirs(x))


def test_the_classifier_begins_as_a_linear_layer_does():
    torch.manual_seed(3)
    classifier = MobileNetV2((3, 32, 32), 10).requires_grad_(False).layers.classifier
    assert [type(layer) for layer in classifier] == [nn.Dropout, nn.Linear]
    assert classifier[0].p == 0.2
    bound = 1280**-0.5  # uniform; torchvision's own would be normal with 0.01 and biases of 0
    assert float(classifier[1].weight.abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(classifier[1].weight.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert float(classifier[1].bias.abs().min()) > 0


@pytest.mark.parametrize("input_shape", [(3072,), (32, 32), (1, 32, 32), (4, 32, 32), (3, 0, 32)])
def test_samples_that_are_no_coloured_images_are_refused(input_shape):
    with pytest.raises(ConfigError, match=r"MobileNetV2 reads images \[3, height >= 1, width >= 1\], .*; choose"):
        MobileNetV2(input_shape, 3)
