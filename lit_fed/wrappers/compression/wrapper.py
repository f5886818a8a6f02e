"""Compression, around any algorithm that averages models: clients send encoded changes, and may receive encoded ones.

The codecs are in `codecs/`, each with its paper.

EF14: Stich, Cordonnier, Jaggi. "Sparsified SGD with Memory". NeurIPS 2018. https://arxiv.org/abs/1809.07599
EF21: Richtárik, Sokolov, Fatkhullin. "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
Feedback". NeurIPS 2021. https://arxiv.org/abs/2106.05203
Broadcast: Gruntkowska, Tyurin, Richtárik. "EF21-P and Friends: Improved Theoretical Communication Complexity for
Distributed Optimization with Bidirectional Compression". ICML 2023. https://arxiv.org/abs/2209.15218

Symbols:
    Δ_i -> delta       the change in a client's message, of its parameters alone
    Q   -> codec       the decoded value of an encoded change
    e_i -> memory      EF14: the part of Δ_i that client i has not sent yet; EF21: the server's estimate of Δ_i
    ḡ   -> shared.own  EF21: the mean of the server's estimates over all T clients
    x   -> shared.inner           broadcast: the server's models
    w   -> shared.own.parameters  broadcast: what clients have decoded, from which they train: w <- w + Q(x - w)
Deviations:
    Each component of a mixture, and each leaf of a model, is a separate vector (`leaf`). Leaves of fewer than 64
    numbers and running statistics are not encoded; nor are other broadcasts of an algorithm than its models.
    Ours: with a memory an unbiased codec is scaled down by 1 + ω, where ω bounds its relative variance; otherwise it
    would not contract, and errors would grow.
    Ours: in EF21 clients have the algorithm's weights, and absent ones count with the server's estimates.
    Ours: a client keeps its error of a component that it does not send.
    Broadcast: clients send models; the server adds their difference from w to x. A client that missed the last
    message receives the whole model. Ours: the server stores the number of the last message of each client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import ClientData, ClientResult, Leaves, Message, ModelState, Reduced, Tree
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedShared
from lit_fed.wrappers.compression.codecs.base import (
    Chances,
    Codec,
    Encoded,
    Feedback,
    Scope,
    encode_each,
    leaves_of,
    vectors_of,
)
from lit_fed.wrappers.deltas import (
    delta_of,
    map_parameter_trees,
    names_of_parameters,
    parameter_trees,
    reference_of,
    shares_of,
    with_delta,
)

__all__ = ["Broadcast", "Compressed", "CompressedBroadcast", "ef14", "ef21"]


def ef14(encode: Callable[[Tensor], Encoded], error: Tensor, delta: Tensor) -> tuple[Encoded, Tensor]:
    """Error feedback: a = e + Δ is encoded, and the error e becomes a − Q(a).

    The sum of all decoded messages and the last e equals the sum of all changes.

    Args:
        encode: Q.
        error: e, of the shape of Δ; 0 at first.
        delta: Δ.

    Returns:
        The decoded message, and the new e.
    """
    wanted = error + delta
    sent = encode(wanted)
    return sent, wanted - sent.decoded


def ef21(encode: Callable[[Tensor], Encoded], known: Tensor, delta: Tensor) -> tuple[Encoded, Tensor]:
    """EF21: the server's estimate g of a client's Δ becomes g + Q(Δ − g).

    Args:
        encode: Q.
        known: g, of the shape of Δ; 0 at first.
        delta: Δ.

    Returns:
        The decoded message, and the new g, which the server uses as Δ.
    """
    sent = encode(delta - known)
    return sent, known + sent.decoded


class SentPart(NamedTuple):
    """One encoded tree of parameters, whose vectors are [M, ...] each."""

    told: Leaves  # the decoded value, float64
    memory: Leaves  # what is kept
    saved: Tensor  # [] float64, bits
    lost: Tensor  # [] float64, squared error of the encoding
    squared: Tensor  # [] float64, its squared norm


@dataclass(frozen=True)
class Compressed(AlgorithmWrapper):
    """Clients send encoded changes of their parameters.

    Args:
        inner: the algorithm.
        codec: encodes its messages.
        feedback: treatment of its error.
        scope: unit that is encoded as one vector.
    """

    codec: Codec
    feedback: Feedback = "none"
    scope: Scope = "leaf"

    @property
    def has_client_state(self) -> bool:
        """With error feedback."""
        return self.feedback != "none"

    @property
    def has_server_state(self) -> bool:
        """With EF21, whose server keeps an estimate for every client."""
        return self.feedback == "ef21"

    def client_memory(self, ctx: Context, shared: Tree, data: ClientData) -> tuple[Leaves, ...]:
        """Zeros for each vector of each tree of parameters: nothing was sent yet."""
        zeros = tree.zeros_like(vectors_of(tree.models(shared)[0].parameters, self.codec, self.scope))
        return tuple(tree.zeros_like(zeros) for _ in range(2 if self.inner.message.beside_models else 1))

    def server_memory(self, ctx: Context, shared: Tree) -> tuple[Leaves, ...]:
        """ḡ = 0, in float64."""
        vectors = vectors_of(tree.models(shared)[0].parameters, self.codec, self.scope)
        return (tree.map_leaves(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), vectors),)

    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, Leaves]:
        """The decoded message, with its cost; messages without parameters are sent unchanged."""
        value, heard = message.value, self.broadcast_view(ctx, shared)
        reference = reference_of(self.inner, heard, value)
        changes = delta_of(value, reference)
        names = names_of_parameters(heard)
        parts = parameter_trees(changes, names)
        if not parts:
            return message, memory, {}
        taken = shares_of(value)
        sent = []
        for place, part in enumerate(parts):
            kept = memory[place] if self.has_client_state else None
            sent.append(self._sent(ctx, part, kept, taken, data.client_id, f"{ctx.phase}/{place}"))
        told = map_parameter_trees(lambda place, part: part | sent[place].told, changes, names)
        plain = torch.full_like(message.weight, tree.bits(value)) if message.bits_up is None else message.bits_up
        saved, lost, squared = (torch.stack(each).sum() for each in list(zip(*sent, strict=True))[2:])
        metrics = {  # in float32, whose mean over clients does not depend on their order
            "compression/error": (lost / torch.where(squared > 0, squared, 1.0)).float(),
            "comm/compression_up": (plain / (plain - saved)).float(),
        }
        message = message._replace(value=with_delta(value, reference, changes, told), bits_up=plain - saved)
        return message, tuple(one.memory for one in sent), metrics

    def _sent(
        self, ctx: Context, leaves: Leaves, kept: Leaves | None, taken: Tensor | None, client_id: Tensor, stream: str
    ) -> SentPart:
        """One tree of parameters, leaves [M, ...], of which the models with `taken` > 0, [M], are sent; None: all."""
        vectors = vectors_of(leaves, self.codec, self.scope)
        told, memory, numbers = dict(vectors), {}, torch.zeros(3, dtype=torch.float64, device=client_id.device)
        for name, vector in vectors.items():
            number, rows = vector[0].numel(), (vector,) if kept is None else (vector, kept[name].double())
            named = (ctx.seed, ctx.round_idx, self._whose(client_id), f"compression/{stream}/{name}")
            encoded, wanted, new = encode_each(self._encode_one, rows, named)
            told[name], lost, saved = encoded.decoded, encoded.decoded - wanted, 8 * ctx.task.dtype.itemsize * number
            saved = saved - encoded.bits
            if kept is not None:
                memory[name] = new.to(kept[name].dtype)
            if taken is not None:
                mask = taken.view(-1, *[1] * (vector.ndim - 1)) > 0
                told[name], lost, wanted = (torch.where(mask, one, 0.0) for one in (told[name], lost, wanted))
                saved = (taken > 0) * saved
                if kept is not None:
                    memory[name] = torch.where(mask, memory[name], kept[name])
            squares = [one.square().sum() for one in (lost, wanted)]
            numbers = numbers + torch.stack([saved.sum(), *squares])
        return SentPart(leaves_of(told, leaves, self.scope), memory, *numbers)

    def _whose(self, client_id: Tensor) -> Tensor:
        """The client whose random numbers are used: the client itself, or client 0 for all."""
        return client_id if self.codec.randomness == "client" else torch.zeros_like(client_id)

    def _encode_one(self, chances: Chances, delta: Tensor, *kept: Tensor) -> tuple[Encoded, Tensor, Tensor]:
        """The decoded vector, the vector to send, and the new memory."""

        def encode(values: Tensor) -> Encoded:
            sent = self.codec.encode(values, chances)
            variance = self.codec.relative_variance(values.numel()) if kept else 0.0
            return sent._replace(decoded=sent.decoded / (1 + variance)) if variance else sent

        if self.feedback == "none":
            return encode(delta), delta, delta
        later = self.feedback == "ef14"
        sent, new = (ef14 if later else ef21)(encode, kept[0], delta)
        return sent, kept[0] + delta if later else delta - kept[0], new

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Tree]:
        """With EF21, the mean of the updated estimates of all clients; otherwise the reduced value."""
        if not self.has_server_state:
            return reduced, ()
        server, names = self.inner_shared(shared), names_of_parameters(self.inner_shared(shared))
        reference = reference_of(self.inner, server, reduced.value)
        changes = delta_of(reduced.value, reference)
        parts = parameter_trees(changes, names)
        if not parts:  # as in `encode`
            return reduced, shared.own
        (leaves,) = parts
        share = reduced.weight / ctx.total_weight
        added = vectors_of(leaves, self.codec, self.scope)
        mean = {name: old + share * added[name] for name, old in shared.own[0].items()}
        told = map_parameter_trees(lambda _, part: part | leaves_of(mean, part, self.scope), changes, names)
        return reduced._replace(value=tree.add(reference, told)), (mean,)

    def numbers_left_out(self, heard: Tree) -> int:
        """Number of values omitted by a codec with positions common to all clients: of d it sends d/(1 + ω)."""
        left_out = 0
        for vector in vectors_of(tree.models(heard)[0].parameters, self.codec, self.scope).values():
            count = vector[0].numel()
            left_out += len(vector) * (count - round(count / (1 + self.codec.relative_variance(count))))
        return left_out * (2 if self.message.beside_models else 1)


NEVER = -2  # no message directly follows it


class Broadcast(NamedTuple):
    """The server's memory of its broadcasts."""

    parameters: Leaves  # w, leaves [M, ...]
    saved: Tensor  # [] float64, bits that the last message saves
    number: Tensor  # [] int64, of the last message
    heard: Tensor  # [T] int64, number of the last message that each client received


@dataclass(frozen=True)
class CompressedBroadcast(AlgorithmWrapper):
    """Clients receive encoded changes of the first shared models.

    Args:
        inner: the algorithm.
        codec: encodes its messages.
        scope: unit that is encoded as one vector.
    """

    codec: Codec
    scope: Scope = "leaf"

    @property
    def has_server_state(self) -> bool:
        """The broadcast models."""
        return True

    def server_memory(self, ctx: Context, shared: Tree) -> Broadcast:
        """The initial models, which no client has received yet."""
        parameters = tree.map_leaves(torch.clone, tree.models(shared)[0].parameters)
        zero = torch.zeros((), dtype=torch.int64)
        return Broadcast(parameters, zero.double(), zero, torch.full((ctx.num_clients,), NEVER))

    def broadcast_view(self, ctx: Context, shared: WrappedShared) -> Tree:
        """The algorithm's shared state with w in the place of x."""
        return _with_first(shared.inner, shared.own.parameters)[0]

    def client_view(self, own: Broadcast, client_id: int) -> Broadcast:
        """Number of the last message that the client received; w is in the broadcast already."""
        last = own.heard[client_id : client_id + 1]
        return own._replace(parameters={}, heard=last if len(last) else own.heard[-1:])

    def received(self, ctx: Context, sent: WrappedShared, client_id: int) -> WrappedShared:
        """The algorithm's, with w in its place."""
        inner, own = super().received(ctx, sent, client_id)
        return WrappedShared(inner, own._replace(parameters=tree.models(inner)[0].parameters))

    def client_final(self, ctx: Context, shared: WrappedShared, work: Any, data: ClientData) -> ClientResult:
        """The algorithm's part; clients that received the previous message get an encoded one."""
        result = super().client_final(ctx, shared, work, data)
        last = shared.own.heard[data.client_id.clamp(max=len(shared.own.heard) - 1)]  # of all clients, or of this one
        bits = result.message.bits_down
        assert bits is not None
        bits = torch.where(last == shared.own.number - 1, bits - shared.own.saved, bits)
        return result._replace(message=result.message._replace(bits_down=bits))

    def server_step(self, ctx: Context, shared: WrappedShared, reduced: Reduced, client_ids: Tensor) -> WrappedShared:
        """The algorithm's, on models as far from x as those of clients are from w; then w <- w + Q(x - w)."""
        if tree.leaves(reduced.value):
            server, clients = (
                reference_of(self.inner, one, reduced.value) for one in (shared.inner, self.broadcast_view(ctx, shared))
            )
            far = delta_of(server, clients)
            moved = tree.map_leaves(lambda value, way: torch.where(way == 0, value, value + way), reduced.value, far)
            reduced = reduced._replace(value=moved)
        new = cast_like(self.inner.server_step(ctx, shared.inner, reduced, client_ids), shared.inner)
        told, saved = self._told(ctx, tree.models(new)[0].parameters, shared.own.parameters)
        number = shared.own.number
        return WrappedShared(
            new, Broadcast(told, saved, number + 1, shared.own.heard.index_fill(0, client_ids, int(number)))
        )

    def _told(self, ctx: Context, new: Leaves, old: Leaves) -> tuple[Leaves, Tensor]:
        """The decoded broadcast, and the bits that it saves."""
        changes = delta_of(new, old)
        vectors, zero = vectors_of(changes, self.codec, self.scope), torch.zeros_like(ctx.lr, dtype=torch.int64)
        decoded, saved = {}, zero.double()

        def encode(chances: Chances, values: Tensor) -> Encoded:
            return self.codec.encode(values, chances)

        for name, vector in vectors.items():
            stream = (ctx.seed, ctx.round_idx, zero, f"broadcast/{ctx.phase}/{name}")
            one: Encoded = encode_each(encode, (vector,), stream)
            decoded[name] = one.decoded
            saved = saved + 8 * ctx.task.dtype.itemsize * vector.numel() - one.bits.sum()
        told: Leaves = with_delta(new, old, changes, changes | leaves_of(decoded, changes, self.scope))
        return told, saved


def _with_first(shared: Tree, parameters: Leaves) -> tuple[Tree, bool]:
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
    return tree.with_children(shared, children), found
