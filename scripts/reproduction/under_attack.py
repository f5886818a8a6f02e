"""Algorithm, network and division of the data of the published tables of attacks on MNIST."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, local_result, local_run
from lit_fed.core.context import Context
from lit_fed.core.seeds import generator
from lit_fed.core.types import ClientData, ClientResult
from lit_fed.data import Partition
from lit_fed.models.base import Network


@dataclass(frozen=True)
class WorkerMomentum(Algorithm[GlobalModels, dict[str, Tensor], LocalRun]):
    """Clients send the momentum of their changes, attackers what a round has changed.

    Karimireddy, He, Jaggi. "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing". ICLR 2022.
    https://arxiv.org/abs/2006.09365, Algorithm 2 with v ← βv + g in the place of m ← βm + (1 − β)g, as in the authors'
    code, in which those who flip signs or labels have no momentum.

    Args:
        beta: β; 0: no momentum.
    """

    beta: float = 0.9

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> dict[str, Tensor]:
        """No momentum yet."""
        return {name: torch.zeros_like(leaf) for name, leaf in shared.models.parameters.items()}

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: dict[str, Tensor], data: ClientData, losses: Any
    ) -> LocalRun:
        """From the shared model."""
        return local_run(ctx, shared.models, state)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """The model that is sent is v ← βv + Δ away from the shared one."""
        honest = 1.0 if ctx.attackers is None else 1.0 - ctx.attackers.to(data.client_id.device)[data.client_id].float()
        old, new = shared.models.parameters, work.models.parameters
        momentum = {name: self.beta * honest * v + (new[name] - old[name]) for name, v in work.extra.items()}
        sent = work.models._replace(parameters={name: leaf + momentum[name] for name, leaf in old.items()})
        return local_result(ctx, work, data, sent, momentum)


class KeptDropout(nn.Module):
    """Dropout of the same channels or units in every step of every client, other ones at each place in the batch.

    The authors' program puts the random numbers of its graphics card back after each worker and draws no others, so
    that each step takes the same ones: the first that curand has for the seed, one for each entry of a mask.

    Args:
        p: share of units that are 0.
        shape: of the mask of one sample; 1 where what lies along an axis is dropped together.
        seed: of the program.
        drawn: masks that the card has drawn before.
    """

    places = 32  # the published batches

    def __init__(self, p: float, shape: tuple[int, ...], seed: int, drawn: int = 0) -> None:
        super().__init__()
        chances = curand_uniforms(seed, self.places * math.prod(shape), drawn).reshape(self.places, *shape)
        self.mask = torch.from_numpy(chances <= 1 - p).float() / (1 - p)

    def forward(self, x: Tensor) -> Tensor:
        """The masked input [B, ...], of at most 32 samples; all of it where nothing is trained."""
        return x * self.mask[: len(x)].to(x) if self.training else x


def curand_uniforms(seed: int, count: int, drawn: int) -> np.ndarray:
    """The first number in (0, 1] of each of `count` threads of a graphics card, [count] float32, as PyTorch draws them.

    Philox4x32-10 (Salmon, Moraes, Dror, Shaw. "Parallel Random Numbers: As Easy as 1, 2, 3". SC 2011), whose key is the
    seed; the counter holds the thread in its upper half and how often the card has drawn in its lower half.

    Example:
        >>> curand_uniforms(0, 2, 0).tolist()
        [0.39904648065567017, 0.5166791677474976]
    """
    word, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    threads, zero = np.arange(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
    a, b, c, d = zero + np.uint64(drawn), zero, threads, zero
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint64)
    for _ in range(10):
        first, third = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = third >> half ^ b ^ key[0], third & word, first >> half ^ d ^ key[1], first & word
        key = (key + np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)) & word
    return (a * 2.0**-32 + 2.0**-33).astype(np.float32)


class AttackedCNN(Network):
    """Two 3×3 convolutions, pooling, a dense layer, and dropout before and behind it; no ReLU behind the second one.

    Karimireddy, He, Jaggi. "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing". ICLR 2022.
    https://arxiv.org/abs/2006.09365, appendix on the experiments; where ReLU stands is that of PyTorch's own example
    when the authors took it over. With ReLU behind the second convolution too most of a client's gradients are zeros,
    and a median of them learns nothing: 1 instead of 59 % after 60 rounds of flipped signs.

    Args:
        input_shape: channels, height and width of one image.
        num_outputs: K.
        masks: seed of the masks of dropout in the authors' program, which stay, and behind the convolutions take whole
            channels; None: of single units, drawn anew for every step.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, masks: int | None = None) -> None:
        super().__init__()
        side = (input_shape[1] - 4) // 2
        early, late = nn.Dropout(0.25), nn.Dropout(0.5)
        self.layers = nn.Sequential(
            nn.Conv2d(input_shape[0], 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2),
            early if masks is None else KeptDropout(early.p, (64, 1, 1), masks),
            nn.Flatten(), nn.Linear(64 * side**2, 128), nn.ReLU(),
            late if masks is None else KeptDropout(late.p, (128,), masks, 1),
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
