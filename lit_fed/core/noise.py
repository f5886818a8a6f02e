"""Privacy noise: normal numbers from a cryptographic stream under a `Secret`.

Known noise can be subtracted, so it must not follow from the training seed, which configurations, checkpoints and nodes
hold. The stream is AES-128 in counter mode. Its key and first counter follow from the secret and the purpose of the
numbers, so a run with the same secret repeats them on any number of ranks and after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_fed.core.seeds import SECRET_BYTES, Secret
from lit_fed.system.packages import optional_package

__all__ = ["protecting_normals"]

BITS_OF_UNIFORMS = 53


def protecting_normals(
    secret: Secret, round_idx: int, client_id: Tensor, purpose: str, count: int, step: Tensor | None = None
) -> Tensor:
    """Standard normal numbers of one client, reproducible only with the secret, [count] float64.

    Args:
        secret: key of the stream.
        round_idx: the round.
        client_id: [] int64; runs under `torch.func.vmap`.
        purpose: their use; each purpose has its own stream.
        count: number of values.
        step: the client's step, [].
    """
    step = torch.zeros_like(client_id) if step is None else step
    drawn: Tensor = _Drawn.apply(client_id, step, secret, round_idx, purpose, count)
    return drawn


class _Drawn(torch.autograd.Function):
    """The stream's numbers for ids and steps of any shape S, [S..., count]; tensor operations cannot draw them."""

    @staticmethod
    def forward(client_id: Tensor, step: Tensor, secret: Secret, round_idx: int, purpose: str, count: int) -> Tensor:
        pairs = zip(client_id.flatten().tolist(), step.flatten().tolist(), strict=True)
        names = [(purpose, round_idx, int(one), int(of_step)) for one, of_step in pairs]
        return _normals(secret, names, count).view(*client_id.shape, count).to(client_id.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves nothing: no gradient flows into random numbers."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, client_id: Tensor, step: Tensor, *rest: Any) -> tuple[Tensor, int]:
        """The numbers of each client of a batch, in the first dimension."""
        ids, steps = (
            one.movedim(dim, 0) if dim is not None else one.expand(info.batch_size, *one.shape)
            for one, dim in zip((client_id, step), in_dims[:2], strict=True)
        )
        return _Drawn.apply(ids, steps, *rest), 0


def _normals(secret: Secret, names: Sequence[tuple[int | str, ...]], count: int) -> Tensor:
    """Standard normal numbers of several streams, [len(names), count] float64, by Box and Muller's transform."""
    optional_package("cryptography", "lit-fed[privacy]", "privacy", "--model.privacy")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    pairs, words = -(-count // 2), bytearray()
    for name in names:
        derived = secret.derived(*name)
        cipher = Cipher(algorithms.AES(derived[:SECRET_BYTES]), modes.CTR(derived[SECRET_BYTES:]))
        words += cipher.encryptor().update(bytes(16 * pairs))
    if not words:
        return torch.zeros(len(names), count, dtype=torch.float64)
    drawn = torch.frombuffer(words, dtype=torch.int64).view(len(names), 2, pairs)
    whole = ((drawn >> (64 - BITS_OF_UNIFORMS)) & (2**BITS_OF_UNIFORMS - 1)).double()
    radius = whole[:, 0].add_(1).mul_(2.0**-BITS_OF_UNIFORMS).log_().mul_(-2).sqrt_()  # the numbers are in (0, 1]
    angle = whole[:, 1].mul_(2 * torch.pi * 2.0**-BITS_OF_UNIFORMS)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :count]
