import pytest
import torch
from federated_round import MULTICLASS

from lit_fed.core import tree
from lit_fed.core.task import Task
from lit_fed.core.types import Batch
from lit_fed.errors import ConfigError
from lit_fed.models import CNN2, FedEMCNN, LeafCNN


@pytest.mark.parametrize(("input_shape", "flat"), [((1, 8, 8), 256), ((3, 9, 4), 128), ((1, 28, 28), 3136)])
def test_shapes(input_shape, flat):
    network = LeafCNN(input_shape, 3, hidden_size=16)
    assert network(torch.randn(2, *input_shape)).shape == (2, 3)
    assert network.classifier[1].in_features == flat


def test_size_for_handwritten_characters():
    network = LeafCNN((1, 28, 28), 62)
    expected = 25 * 32 + 32 + 25 * 32 * 64 + 64 + 3136 * 128 + 128 + 128 * 62 + 62
    assert sum(leaf.numel() for leaf in network.parameters()) == expected


@pytest.mark.parametrize("input_shape", [(8,), (8, 8), (1, 3, 8), (1, 8, 3)])
def test_samples_that_are_no_images_are_refused(input_shape):
    with pytest.raises(ConfigError, match=r"LeafCNN reads images .*; choose another"):
        LeafCNN(input_shape, 3)


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


@pytest.mark.parametrize(("input_shape", "flat"), [((1, 28, 28), 64 * 4 * 4), ((3, 16, 21), 128), ((1, 32, 24), 960)])
def test_shapes_of_fedem(input_shape, flat):
    network = FedEMCNN(input_shape, 3, hidden_size=5)
    assert network(torch.randn(2, *input_shape)).shape == (2, 3)
    assert network.classifier[1].in_features == flat


def test_size_of_fedem_is_that_of_the_official_code():
    expected = 25 * 32 + 32 + 25 * 32 * 64 + 64 + 1024 * 2048 + 2048 + 2048 * 62 + 62
    assert sum(leaf.numel() for leaf in FedEMCNN((1, 28, 28), 62).parameters()) == expected == 2_278_334


def test_fedem_drops_nothing():
    network, x = FedEMCNN((1, 16, 16), 3, hidden_size=5), torch.randn(2, 1, 16, 16)
    assert torch.equal(network.train()(x), network.eval()(x))


@pytest.mark.parametrize(("input_shape", "flat"), [((3, 32, 32), 128 * 2 * 2), ((1, 28, 28), 128), ((1, 22, 38), 384)])
def test_shapes_of_cnn2(input_shape, flat):
    network = CNN2(input_shape, 3)
    assert network(torch.randn(2, *input_shape)).shape == (2, 3)
    assert network.classifier[1].in_features == flat


def test_size_of_cnn2():
    expected = 9 * 3 * 128 + 128 + 2 * (9 * 128 * 128 + 128) + 512 * 10 + 10
    assert sum(leaf.numel() for leaf in CNN2((3, 32, 32), 10).parameters()) == expected


@pytest.mark.parametrize(
    ("network", "input_shape"),
    [(FedEMCNN, (256,)), (FedEMCNN, (1, 15, 16)), (FedEMCNN, (1, 16, 15)), (CNN2, (22, 22)), (CNN2, (3, 21, 32))],
)
def test_samples_too_small_for_the_others_are_refused(network, input_shape):
    with pytest.raises(ConfigError, match=rf"{network.__name__} reads images .*; choose another --model.network"):
        network(input_shape, 3)
