"""Networks: plain modules built from the sizes of the data."""

from lit_fed.models.base import Network
from lit_fed.models.char_lstm import CharLSTM
from lit_fed.models.cnn import CNN2, FedEMCNN, LeafCNN
from lit_fed.models.lenet import LeNet5
from lit_fed.models.linear import Linear
from lit_fed.models.mlp import MLP
from lit_fed.models.mobilenet import MobileNetV2
from lit_fed.models.resnet import ResNet18, ResNet34

__all__ = [
    "CNN2",
    "MLP",
    "CharLSTM",
    "FedEMCNN",
    "LeNet5",
    "LeafCNN",
    "Linear",
    "MobileNetV2",
    "Network",
    "ResNet18",
    "ResNet34",
]
