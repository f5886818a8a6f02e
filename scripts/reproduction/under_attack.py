"""Network and division of the data of the published tables of attacks on MNIST."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from lit_fed.core.seeds import generator
from lit_fed.data import Partition
from lit_fed.models.base import Network

__all__ = ["AttackedCNN", "SortedPieces"]


class AttackedCNN(Network):
    """Two 3×3 convolutions, pooling, a dense layer, and dropout before and behind it; no ReLU behind the second one.

    Karimireddy, He, Jaggi. "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing". ICLR 2022.
    https://arxiv.org/abs/2006.09365, appendix on the experiments; where ReLU stands is that of PyTorch's own example
    when the authors took it over. With ReLU behind the second convolution too most of a client's gradients are zeros,
    and a median of them learns nothing: 1 instead of 59 % after 60 rounds of flipped signs.

    Args:
        input_shape: channels, height and width of one image.
        num_outputs: K.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(input_shape[0], 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(64 * ((input_shape[1] - 4) // 2) ** 2, 128), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(128, num_outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of images [B, C, H, W]."""
        return self.layers(x)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SortedPieces(Partition):
    """Samples are sorted by label and cut into as many pieces as there are clients, but for some who have all labels.

    In the published tables honest clients have a piece each, and attackers see all of the data.

    Args:
        of_all_labels: clients that get their part of the samples at random.
    """

    of_all_labels: tuple[int, ...] = ()

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Deal to those with all labels first, then sort and cut; see the base class."""
        shuffled = generator(seed, 0, 0, "partition").permutation(len(labels))
        parts = dict(zip(self.of_all_labels, np.array_split(shuffled, num_clients), strict=False))
        rest = shuffled[sum(map(len, parts.values())) :]
        others = [client for client in range(num_clients) if client not in self.of_all_labels]
        pieces = np.array_split(rest[np.argsort(labels[rest], kind="stable")], len(others))
        parts |= dict(zip(others, pieces, strict=True))
        return [np.sort(parts[client]) for client in range(num_clients)]
