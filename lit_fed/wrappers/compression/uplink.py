"""Fewer bits: clients send encoded changes, around any algorithm that averages models.

The codecs are in `codecs/`, each with its paper; error feedback is in `codecs/feedback.py`.

Symbols:
    Δ_i -> news        what is new in a client's message, of its parameters alone
    Q   -> codec       what the server decodes of an encoded change
    e_i -> memory      EF14: what client i has not told yet; EF21: what the server knows of Δ_i
    ḡ   -> shared.own  EF21: the mean of what the server knows of all T clients
Deviations:
    A component of a mixture, and a leaf of a model, is a vector of its own (`leaf`); leaves of less than 64 numbers go
    as they are, and so do running statistics.
    Ours: with a memory an unbiased codec is scaled down by 1 + ω, where ω bounds its relative variance; as it stands
    it would not contract, and errors would grow.
    Ours: in EF21 clients weigh as in the algorithm, and absent ones count with what the server knows of them.
    Ours: of a component that a client does not send, it keeps what it has not told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Chosen, ClientData, Message, Reduced, Tree
from lit_fed.wrappers.base import Around
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded
from lit_fed.wrappers.compression.codecs.feedback import ef14, ef21
from lit_fed.wrappers.compression.codecs.vectors import Scope, encode_each, leaves_of, vectors_of
from lit_fed.wrappers.deltas import (
    known,
    names_of_parameters,
    news,
    parameter_trees,
    tell,
    with_parameter_trees,
)
from lit_fed.wrappers.fedbn import LocalNorm

__all__ = ["Compressed", "Feedback", "sent_leaves"]

Feedback = Literal["none", "ef14", "ef21"]
"""What becomes of what a codec loses: nothing; it is told later (EF14); or the next change is told from it (EF21)."""

Leaves = dict[str, Tensor]


class SentPart(NamedTuple):
    """What became of one tree of parameters, whose vectors are [M, ...] each."""

    told: Leaves  # what is decoded, float64
    memory: Leaves  # what is kept
    saved: Tensor  # [] float64, bits
    lost: Tensor  # [] float64, squared error of what was encoded
    squared: Tensor  # [] float64, its squared norm


@dataclass(frozen=True)
class Compressed(Around):
    """Clients send encoded changes of their parameters.

    Args:
        inner: the algorithm.
        codec: encodes them.
        feedback: what becomes of what it loses.
        scope: what is encoded as one vector.
    """

    codec: Codec
    feedback: Feedback = "none"
    scope: Scope = "leaf"

    @property
    def remembers_clients(self) -> bool:
        """With error feedback."""
        return self.feedback != "none"

    @property
    def remembers_rounds(self) -> bool:
        """With EF21, whose server knows something of every client."""
        return self.feedback == "ef21"

    def client_memory(self, ctx: Context, shared: Tree, data: ClientData) -> tuple[Leaves, ...]:
        """Nothing has been told, and nothing is known: zeros for each vector of each tree of parameters."""
        leaves = sent_leaves(self.inner, ctx, tree.models(shared)[0].parameters)
        zeros = tree.zeros_like(vectors_of(leaves, self.codec, self.scope))
        return tuple(tree.zeros_like(zeros) for _ in range(2 if self.inner.sends_beside_models else 1))

    def server_memory(self, ctx: Context, shared: Tree) -> tuple[Leaves, ...]:
        """ḡ = 0, in float64."""
        leaves = sent_leaves(self.inner, ctx, tree.models(shared)[0].parameters)
        vectors = vectors_of(leaves, self.codec, self.scope)
        return (tree.map_leaves(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), vectors),)

    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, dict[str, Tensor]]:
        """The message that the server decodes, with what it costs."""
        value, heard = message.value, self.heard(ctx, shared)
        of_old = known(self.inner, heard, value)
        changes = news(value, of_old)
        names = names_of_parameters(heard)
        parts = parameter_trees(changes, names)
        taken = value.taken if isinstance(value, Chosen) else None
        sent = []
        for place, part in enumerate(parts):
            leaves = sent_leaves(self.inner, ctx, part)
            kept = memory[place] if self.remembers_clients else None
            sent.append(self._sent(ctx, leaves, kept, taken, data.client_id, f"{ctx.phase}/{place}"))
        encoded = iter([part | one.told for part, one in zip(parts, sent, strict=True)])
        told = with_parameter_trees(changes, encoded, names)
        plain = torch.full_like(message.weight, tree.bits(value)) if message.bits_up is None else message.bits_up
        saved, lost, squared = (torch.stack(each).sum() for each in list(zip(*sent, strict=True))[2:])
        metrics = {  # in float32, whose mean over clients does not depend on their order
            "compression/error": (lost / torch.where(squared > 0, squared, 1.0)).float(),
            "comm/compression_up": (plain / (plain - saved)).float(),
        }
        message = message._replace(value=tell(value, of_old, changes, told), bits_up=plain - saved)
        return message, tuple(one.memory for one in sent), metrics

    def _sent(
        self, ctx: Context, leaves: Leaves, kept: Leaves | None, taken: Tensor | None, client_id: Tensor, stream: str
    ) -> SentPart:
        """One tree of parameters, leaves [M, ...], of which the models with `taken` = 1, [M], are sent; None: all."""
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
                saved = taken * saved
                if kept is not None:
                    memory[name] = torch.where(mask, memory[name], kept[name])
            squares = [one.square().sum() for one in (lost, wanted)]
            numbers = numbers + torch.stack([saved.sum(), *squares])
        return SentPart(leaves_of(told, leaves, self.scope), memory, *numbers)

    def _whose(self, client_id: Tensor) -> Tensor:
        """Whose random numbers decide: the client's, or those of client 0 for all."""
        return client_id if self.codec.randomness == "client" else torch.zeros_like(client_id)

    def _encode_one(self, chances: Chances, news: Tensor, *kept: Tensor) -> tuple[Encoded, Tensor, Tensor]:
        """What is sent of one vector, what was to be sent, and what is kept."""

        def encode(values: Tensor) -> Encoded:
            sent = self.codec.encode(values, chances)
            variance = self.codec.relative_variance(values.numel()) if kept else 0.0
            return sent._replace(decoded=sent.decoded / (1 + variance)) if variance else sent

        if self.feedback == "none":
            return encode(news), news, news
        later = self.feedback == "ef14"
        sent, new = (ef14 if later else ef21)(encode, kept[0], news)
        return sent, kept[0] + news if later else news - kept[0], new

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Tree]:
        """With EF21 the mean of what is known of all clients, to which these have added; else what there is."""
        if not self.remembers_rounds:
            return reduced, ()
        server, names = self.inside(shared), names_of_parameters(self.inside(shared))
        of_old = known(self.inner, server, reduced.value)
        changes = news(reduced.value, of_old)
        (part,) = parameter_trees(changes, names)
        leaves = sent_leaves(self.inner, ctx, part)
        share = reduced.weight / ctx.total_weight
        added = vectors_of(leaves, self.codec, self.scope)
        mean = {name: old + share * added[name] for name, old in shared.own[0].items()}
        told = with_parameter_trees(changes, iter([part | leaves_of(mean, leaves, self.scope)]), names)
        return reduced._replace(value=tree.add(of_old, told)), (mean,)


def sent_leaves(algorithm: Any, ctx: Context, leaves: Leaves) -> Leaves:
    """The parameters that clients send: without normalisation that they keep."""
    while isinstance(algorithm, Around):
        if isinstance(algorithm, LocalNorm):
            return {name: leaf for name, leaf in leaves.items() if name not in ctx.task.norm_names}
        algorithm = algorithm.inner
    return leaves
