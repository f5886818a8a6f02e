"""A few of the numbers, and 0 for the others: the largest ones, or ones drawn at random."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core.grids import NUMBER_BITS
from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded

__all__ = ["RandomK", "TopK"]


@dataclass(frozen=True)
class Sparse(Codec):
    """Base of codecs that send k of d numbers.

    Args:
        fraction: k as a share of d, rounded; at least one number is sent.
        k: number of values sent, instead of a share.
    """

    fraction: float = 0.01
    k: int | None = None

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, fraction="(0, 1]", k=">= 1")

    def check_size(self, count: int, place: str) -> None:
        """Refuse more numbers than there are."""
        if self.k is not None and self.k > count:
            name = type(self).__name__
            raise ConfigError(
                f"{name}.k is {self.k}, and {place} has {count} numbers; give at most {count}, or fraction"
            )

    def _num_sent(self, count: int) -> int:
        self.check_size(count, "the vector")
        return self.k or max(1, int(self.fraction * count + 0.5))


@dataclass(frozen=True)
class TopK(Sparse):
    """The k largest magnitudes, ties by position; biased, so it needs a memory of its errors.

    Stich, Cordonnier, Jaggi. "Sparsified SGD with Memory". NeurIPS 2018. https://arxiv.org/abs/1809.07599

    Args:
        fraction: k as a share of d, rounded; at least one number is sent.
        k: number of values sent, instead of a share.
    """

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """These numbers; each with its position, or a bit for each of the d that says whether it is sent."""
        count, size = values.numel(), values.abs()
        k = self._num_sent(count)
        decoded = torch.where(_largest(size, k), values, 0.0)
        bits = min(k * (NUMBER_BITS + (count - 1).bit_length()), count + NUMBER_BITS * k)
        return Encoded(decoded, torch.full((), bits, dtype=torch.float64, device=values.device))


@dataclass(frozen=True)
class RandomK(Sparse):
    """Numbers at k positions that all clients of a round share, times d/k: unbiased, and positions cost nothing.

    Args:
        fraction: k as a share of d, rounded; at least one number is sent.
        k: number of values sent, instead of a share.
    """

    randomness = "common"
    adds_up = True

    @property
    def unbiased(self) -> bool:
        """On average nothing is lost."""
        return True

    def relative_variance(self, count: int) -> float:
        """d/k − 1."""
        return count / self._num_sent(count) - 1

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """d/k·v at the positions of the k largest chances; they follow from the seed, so only numbers are sent."""
        count = values.numel()
        k = self._num_sent(count)
        decoded = torch.where(_largest(chances(count), k), values * (count / k), 0.0)
        return Encoded(decoded, torch.full((), NUMBER_BITS * k, dtype=torch.float64, device=values.device))


def _largest(keys: Tensor, k: int) -> Tensor:
    """Which of the keys [d] are the k largest, of equal ones the first, [d] bool."""
    least = keys.kthvalue(keys.numel() - k + 1).values
    above, equal = keys > least, keys == least
    return above | (equal & (equal.cumsum(0, dtype=torch.int32) <= k - above.sum(dtype=torch.int32)))
