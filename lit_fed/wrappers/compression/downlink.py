"""Fewer bits on the way down: clients hold the last model that was decoded, and are sent how the server's differs.

Gruntkowska, Tyurin, Richtárik. "EF21-P and Friends: Improved Theoretical Communication Complexity for Distributed
Optimization with Bidirectional Compression". ICML 2023. https://arxiv.org/abs/2209.15218

Symbols:
    x      -> shared.inner           the server's models
    w      -> shared.own.parameters  what clients have decoded, from which they train: w <- w + Q(x - w)
Deviations:
    Here clients send models; what the server adds to x is their difference from w.
    A client that missed the last message is sent the whole model. Ours: who has heard what is kept for all clients.
    Running statistics, leaves of less than 64 numbers, and what an algorithm sends beside its models go as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import ClientData, ClientResult, ModelState, Reduced, Tree
from lit_fed.wrappers.base import Around, Guarded
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded
from lit_fed.wrappers.compression.codecs.vectors import Scope, encode_each, leaves_of, vectors_of
from lit_fed.wrappers.compression.uplink import sent_leaves
from lit_fed.wrappers.deltas import known, news, tell

__all__ = ["Broadcast", "CompressedBroadcast"]

NEVER = -2  # no message comes right after it


class Broadcast(NamedTuple):
    """What the server remembers of what it sent."""

    parameters: dict[str, Tensor]  # w, leaves [M, ...]
    saved: Tensor  # [] float64, bits that the last message saves
    number: Tensor  # [] int64, of the last message
    heard: Tensor  # [T] int64, number of the last message that each client heard


@dataclass(frozen=True)
class CompressedBroadcast(Around):
    """Clients hear encoded changes of the first shared models.

    Args:
        inner: the algorithm.
        codec: encodes them.
        scope: what is encoded as one vector.
    """

    codec: Codec
    scope: Scope = "leaf"

    @property
    def remembers_rounds(self) -> bool:
        """What was sent."""
        return True

    def server_memory(self, ctx: Context, shared: Tree) -> Broadcast:
        """The initial models, which nobody has heard yet."""
        parameters = tree.map_leaves(torch.clone, tree.models(shared)[0].parameters)
        zero = torch.zeros((), dtype=torch.int64)
        return Broadcast(parameters, zero.double(), zero, torch.full((ctx.num_clients,), NEVER))

    def heard(self, ctx: Context, shared: Guarded) -> Tree:
        """The algorithm's shared state with w in the place of x."""
        return _with_first(shared.inner, shared.own.parameters)[0]

    def told(self, own: Broadcast, client_id: int) -> Broadcast:
        """Which message the client heard last; w is what it hears already."""
        last = own.heard[client_id : client_id + 1]
        return own._replace(parameters={}, heard=last if len(last) else own.heard[-1:])

    def received(self, ctx: Context, sent: Guarded, client_id: int) -> Guarded:
        """The algorithm's, with w in its place."""
        inner, own = super().received(ctx, sent, client_id)
        return Guarded(inner, own._replace(parameters=tree.models(inner)[0].parameters))

    def client_final(self, ctx: Context, shared: Guarded, work: Any, data: ClientData) -> ClientResult:
        """The algorithm's; who heard the message before is sent an encoded one."""
        result = super().client_final(ctx, shared, work, data)
        last = shared.own.heard[data.client_id.clamp(max=len(shared.own.heard) - 1)]  # of all, or this one's
        bits = result.message.bits_down
        assert bits is not None
        bits = torch.where(last == shared.own.number - 1, bits - shared.own.saved, bits)
        return result._replace(message=result.message._replace(bits_down=bits))

    def server_step(self, ctx: Context, shared: Guarded, reduced: Reduced, client_ids: Tensor) -> Guarded:
        """The algorithm's, on models as far from x as those of clients are from w; then w <- w + Q(x - w)."""
        if tree.leaves(reduced.value):
            server, clients = (known(self.inner, one, reduced.value) for one in (shared.inner, self.heard(ctx, shared)))
            far = news(server, clients)
            moved = tree.map_leaves(lambda value, way: torch.where(way == 0, value, value + way), reduced.value, far)
            reduced = reduced._replace(value=moved)
        new = cast_like(self.inner.server_step(ctx, shared.inner, reduced, client_ids), shared.inner)
        told, saved = self._told(ctx, tree.models(new)[0].parameters, shared.own.parameters)
        number = shared.own.number
        return Guarded(new, Broadcast(told, saved, number + 1, shared.own.heard.index_fill(0, client_ids, int(number))))

    def _told(self, ctx: Context, new: dict[str, Tensor], old: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """What clients decode, and the bits that the message saves."""
        changes = news(new, old)
        sent = sent_leaves(self.inner, ctx, changes)  # others cost no bits that could be saved
        vectors, zero = vectors_of(sent, self.codec, self.scope), torch.zeros_like(ctx.lr, dtype=torch.int64)
        decoded, saved = {}, zero.double()

        def encode(chances: Chances, values: Tensor) -> Encoded:
            return self.codec.encode(values, chances)

        for name, vector in vectors.items():
            stream = (ctx.seed, ctx.round_idx, zero, f"broadcast/{ctx.phase}/{name}")
            one: Encoded = encode_each(encode, (vector,), stream)
            decoded[name] = one.decoded
            saved = saved + 8 * ctx.task.dtype.itemsize * vector.numel() - one.bits.sum()
        told: dict[str, Tensor] = tell(new, old, changes, changes | leaves_of(decoded, sent, self.scope))
        return told, saved


def _with_first(shared: Tree, parameters: dict[str, Tensor]) -> tuple[Tree, bool]:
    """The tree with these parameters in its first models, and whether it holds models."""
    if isinstance(shared, ModelState):
        return shared._replace(parameters=parameters), True
    if isinstance(shared, dict):
        values, found = _with_first(tuple(shared.values()), parameters)
        return dict(zip(shared, values, strict=True)), found
    if not isinstance(shared, tuple | list):
        return shared, False
    children, found = [], False
    for child in shared:
        new, here = (child, False) if found else _with_first(child, parameters)
        children.append(new)
        found = found or here
    return (type(shared)(*children) if hasattr(shared, "_fields") else type(shared)(children)), found
