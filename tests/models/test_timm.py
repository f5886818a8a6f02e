"""Networks of timm, of random weights and of weights in a file."""

import pytest
import torch

from lit_fed.core.networks.layers import drops_units
from lit_fed.core.networks.start import choose_trained
from lit_fed.errors import ConfigError
from lit_fed.models import Timm

pytest.importorskip("timm")

SMALL = {"name": "test_vit", "options": {"embed_dim": 8, "depth": 1, "num_heads": 2, "patch_size": 4}}


def make(shape=(1, 8, 8), num_outputs=3, **options):
    torch.manual_seed(1)
    return Timm(shape, num_outputs, **(SMALL | options)).eval()


def test_sizes_are_those_of_the_data_and_the_head_is_known():
    network = make()
    assert network(torch.rand(2, 1, 8, 8)).shape == (2, 3)
    assert network.head_names == {"layers.head.weight", "layers.head.bias"}
    choose_trained(network, "head")
    assert {name for name, leaf in network.named_parameters() if leaf.requires_grad} == network.head_names


def test_weights_of_a_file(tmp_path):
    path, network = str(tmp_path / "weights.pt"), make()
    torch.save(network.layers.state_dict(), path)
    torch.manual_seed(2)
    same, other = Timm((1, 8, 8), 3, weights=path, **SMALL), Timm((1, 8, 8), 5, weights=path, **SMALL)
    assert all(torch.equal(leaf, network.state_dict()[name]) for name, leaf in same.state_dict().items())
    assert other.layers.head.weight.shape == (5, 8)
    assert torch.equal(other.layers.pos_embed, network.layers.pos_embed)
    with pytest.raises(ConfigError, match=r"does not fit timm's test_vit \(of another shape: .*patch_embed"):
        make((3, 8, 8), weights=path)


def test_dropout_by_function_is_seen():
    assert not drops_units(make())
    assert drops_units(make(dropout=0.2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnett18", "options": {}}, "name is resnett18; give a network of timm, did you mean resnet18"),
        (
            {"options": {"growth_rate": 1}},
            r"timm's test_vit cannot be built \(TypeError: .* correct --model\.network\.name or --model\.",
        ),
        ({"options": {"dept": 1}}, "options has 'dept', which is not handed on to timm; did you mean depth"),
        ({"options": {"num_classes": 1}}, "options has num_classes, which the data set sets; leave it out"),
        (
            {"weights": "a.pt", "pretrained": True},
            "pretrained and --model.network.weights are both given; leave one ou",
        ),
        ({"weights": "a.bin"}, r"weights is a\.bin; give the path of a state dict, \.pt or \.pth"),
        ({"weights": "a.pt"}, r"weights a\.pt does not exist; give a file with a state dict"),
        ({"shape": (8,)}, r"timm's test_vit reads images .*, the samples are \[8\]; choose another --model\.network"),
        ({"dropout": -1.0}, r"--model\.network\.dropout is -1\.0; give a number in \[0, 1\)"),
    ],
)
def test_what_is_no_network(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)
