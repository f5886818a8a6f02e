import pytest
import torch

from lit_fed.clients import choose_trainer
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, CharLSTM, LeafCNN, LeNet5, Linear, MobileNetV2

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("network", "on_cpu", "on_gpu"),
    [
        (Linear((3000,), 10), "vectorized", "vectorized"),  # large, but with a gradient in closed form
        (MLP((64,), 10, (200,)), "vectorized", "graphed"),  # 15,010 parameters
        (MLP((64,), 10, (300,)), "sequential", "graphed"),  # 22,510 parameters
        (LeafCNN((1, 28, 28), 10, dropout=0.0), "sequential", "graphed"),
        (LeafCNN((1, 28, 28), 10, dropout=0.5), "sequential", "sequential"),
        (MobileNetV2((3, 32, 32), 10, dropout=0.0), "sequential", "sequential"),  # BatchNorm: no step is replayed
        (CharLSTM((5,), 10), "sequential", "sequential"),
    ],
)
def test_auto_looks_at_network_and_device(network, on_cpu, on_gpu):
    assert choose_trainer("auto", network, CPU).name == on_cpu
    assert choose_trainer("auto", network, GPU).name == on_gpu


@pytest.mark.parametrize(("memory_format", "last"), [("auto", True), ("channels_last", True), ("contiguous", False)])
def test_replayed_images_have_their_channels_last(memory_format, last):
    chosen = choose_trainer("auto", LeNet5((1, 16, 16), 3), GPU, memory_format)
    assert (chosen.name, chosen.channels_last) == ("graphed", last)


@pytest.mark.parametrize("name", ["sequential", "vectorized", "debug"])
def test_a_named_trainer_is_taken(name):
    assert choose_trainer(name, Linear((4,), 2), CPU).name == name


def test_a_named_trainer_that_cannot_train_the_network_is_refused():
    with pytest.raises(ConfigError, match=r"vectorized cannot train a network with dropout.*sequential"):
        choose_trainer("vectorized", LeafCNN((1, 28, 28), 10, dropout=0.5), CPU)


def test_a_name_that_there_is_not_is_refused():
    with pytest.raises(
        ConfigError, match=r"client_trainer is vectorised; choose auto, sequential, vectorized, graphed or debug"
    ):
        choose_trainer("vectorised", Linear((4,), 1), torch.device("cpu"))
