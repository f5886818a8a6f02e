"""Interface of codecs: from a vector to the value that its receiver decodes, and the bits of the encoding.

Nothing is packed: a codec computes the decoded value, and counts the bits of an actual encoding.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.grids import NUMBER_BITS
from lit_fed.core.seeds import uniforms
from lit_fed.core.types import Leaves

__all__ = [
    "SMALLEST", "Chances", "Codec", "Encoded", "Feedback", "Scope", "encode_each", "if_any", "leaves_of",
    "vectors_of",
]  # fmt: skip

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.


Chances = Callable[[int], Tensor]
"""Gives so many random numbers in [0, 1), float64; the same ones whenever it is asked."""


class Encoded(NamedTuple):
    """The decoded value, and its cost."""

    decoded: Tensor  # of the shape and type of the input
    bits: Tensor  # [] float64


class Codec(ABC):
    """Base of everything that `--model.compression` accepts.

    Subclasses are frozen dataclasses of settings. `encode` is pure and runs under `torch.func.vmap`, so Python control
    flow may not depend on values of tensors. Scales are computed in float64, everything else in the type of the values.
    """

    randomness: ClassVar[Literal["none", "client", "common"]] = "none"
    """Random numbers that it uses: none, those of the client, or those shared by all clients."""

    adds_up: ClassVar[bool] = False
    """Whether all clients use the same positions and scales, so that what they send can be added up undecoded."""

    keeps_shape: ClassVar[bool] = False
    """Whether it takes tensors of any shape; others take vectors [d]."""

    @property
    def unbiased(self) -> bool:
        """Whether the decoded value is unbiased over the random numbers; then errors need no memory."""
        return False

    def relative_variance(self, count: int) -> float:
        """ω: the variance of the decoded vector [d] is at most ω·‖v‖²; 0 for biased codecs.

        Divided by 1 + ω, the decoded value is a contraction: on average it is nearer to the vector than 0 is.
        """
        return 0.0

    @abstractmethod
    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """The decoded value.

        Args:
            values: [d], or any shape if `keeps_shape`.
            chances: the random numbers declared by `randomness`.

        Raises:
            ConfigError: if the settings do not fit d.
        """

    def check_size(self, count: int, place: str) -> None:  # noqa: B027 - most settings fit any vector
        """Refuse settings that do not fit a vector.

        Args:
            count: d.
            place: name of the vector, for the message.

        Raises:
            ConfigError: naming setting, value and place.
        """


def if_any(scale: Tensor, bits: Tensor | float) -> Tensor:
    """Bits of an encoding with a leading scale: only the scale if it is 0, since nothing follows."""
    return NUMBER_BITS + torch.where(scale > 0, torch.as_tensor(bits, dtype=torch.float64, device=scale.device), 0.0)


Feedback = Literal["none", "ef14", "ef21"]
"""Treatment of a codec's error: dropped, added to the next change (EF14), or changes are encoded relative to the
server's estimate (EF21)."""

Scope = Literal["leaf", "whole"]
"""Unit that a codec encodes as one vector: each leaf of a model, or all of them."""

SMALLEST = 64
"""Numbers of a leaf below which it goes as it is: biases and normalisation are worth more than they cost."""


def vectors_of(leaves: Leaves, codec: Codec, scope: Scope) -> Leaves:
    """The vectors to encode from the parameters of M models, [M, ...] each, by name.

    Args:
        leaves: the parameters, leaves [M, ...].
        codec: if it keeps shapes it gets tensors, otherwise rows.
        scope: `leaf`, without leaves of fewer than `SMALLEST` numbers; `whole` joins all leaves of a model.
    """
    if scope == "whole":
        return {scope: torch.cat([leaf.flatten(1) for leaf in leaves.values()], 1)}
    large = {name: leaf for name, leaf in leaves.items() if leaf[0].numel() >= SMALLEST}
    return large if codec.keeps_shape else {name: leaf.flatten(1) for name, leaf in large.items()}


def leaves_of(vectors: Leaves, leaves: Leaves, scope: Scope) -> Leaves:
    """The parameters replaced by these vectors; the inverse of `vectors_of`."""
    if scope == "whole":
        parts = vectors[scope].split([leaf[0].numel() for leaf in leaves.values()], 1)
        return {name: part.view_as(leaf) for (name, leaf), part in zip(leaves.items(), parts, strict=True)}
    return {name: vectors[name].view_as(leaf) if name in vectors else leaf for name, leaf in leaves.items()}


def encode_each(function: Callable[..., Any], rows: tuple[Tensor, ...], stream: tuple[int, int, Tensor, str]) -> Any:
    """Apply a function to each of M models, with separate random numbers.

    Args:
        function: takes the random numbers and the rows of one model.
        rows: tensors [M, ...].
        stream: seed, round, client [] and purpose.

    Returns:
        The function's results, leaves [M, ...].
    """
    seed, round_idx, client_id, purpose = stream
    count = len(rows[0])

    def one(model_id: Tensor, *row: Tensor) -> Any:
        return function(lambda number: uniforms(seed, round_idx, model_id, purpose, number), *row)

    return torch.func.vmap(one)(client_id * count + torch.arange(count, device=client_id.device), *rows)
