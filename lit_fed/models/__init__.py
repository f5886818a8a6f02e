"""Networks: plain modules built from the sizes of the data."""

from lit_fed.models.base import Network
from lit_fed.models.cnn import LeafCNN
from lit_fed.models.linear import Linear
from lit_fed.models.mlp import MLP

__all__ = ["MLP", "LeafCNN", "Linear", "Network"]
