"""Leaves of models as the vectors that codecs take, one for each model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from lit_fed.core.seeds import uniforms
from lit_fed.wrappers.compression.codecs.base import Codec

__all__ = ["SMALLEST", "Scope", "encode_each", "leaves_of", "vectors_of"]

Scope = Literal["leaf", "whole"]
"""What a codec takes for one vector: each leaf of a model, or all of them."""

SMALLEST = 64
"""Numbers of a leaf below which it goes as it is: biases and normalisation are worth more than they cost."""


def vectors_of(leaves: dict[str, Tensor], codec: Codec, scope: Scope) -> dict[str, Tensor]:
    """What is encoded of the parameters of M models, [M, ...] each, by name.

    Args:
        leaves: the parameters, leaves [M, ...].
        codec: it may take tensors as they are; others get rows.
        scope: `leaf` without those of less than `SMALLEST` numbers; `whole` joins all leaves of a model.
    """
    if scope == "whole":
        return {scope: torch.cat([leaf.flatten(1) for leaf in leaves.values()], 1)}
    large = {name: leaf for name, leaf in leaves.items() if leaf[0].numel() >= SMALLEST}
    return large if codec.keeps_shape else {name: leaf.flatten(1) for name, leaf in large.items()}


def leaves_of(vectors: dict[str, Tensor], leaves: dict[str, Tensor], scope: Scope) -> dict[str, Tensor]:
    """The parameters with these vectors in their place; the inverse of `vectors_of`."""
    if scope == "whole":
        parts = vectors[scope].split([leaf[0].numel() for leaf in leaves.values()], 1)
        return {name: part.view_as(leaf) for (name, leaf), part in zip(leaves.items(), parts, strict=True)}
    return {name: vectors[name].view_as(leaf) if name in vectors else leaf for name, leaf in leaves.items()}


def encode_each(function: Callable[..., Any], rows: tuple[Tensor, ...], stream: tuple[int, int, Tensor, str]) -> Any:
    """Apply a function to each of M models, with random numbers of its own.

    Args:
        function: takes the random numbers and the rows of one model.
        rows: tensors [M, ...].
        stream: seed, round, client [] and purpose.

    Returns:
        What it returns, leaves [M, ...].
    """
    seed, round_idx, client_id, purpose = stream
    count = len(rows[0])

    def one(model_id: Tensor, *row: Tensor) -> Any:
        return function(lambda number: uniforms(seed, round_idx, model_id, purpose, number), *row)

    return torch.func.vmap(one)(client_id * count + torch.arange(count, device=client_id.device), *rows)
