"""Secure sums around any algorithm whose server needs a sum of models or changes: what they cost, without secrecy.

Bonawitz et al. "Practical Secure Aggregation for Privacy-Preserving Machine Learning". CCS 2017.
https://doi.org/10.1145/3133956.3133982
Bell, Bonawitz, Gascón, Lepoint, Raykova. "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead". CCS 2020:
keys with some neighbours only. https://doi.org/10.1145/3372297.3417885

Symbols:
    x_i    -> Residues.residues, Residues.weight   round(w_i·Δ_i·2^f) mod 2^b, and w_i as an additional coordinate
    t      -> threshold                            share of the holders of each key that must be left
Deviations:
    Nothing is hidden: there are no keys and no masks, which change no sum. What the protocol costs remains: rounding,
    clamping, overflow, bits of numbers and keys, and rounds that are void since too many clients drop out.
    Clients send changes of models, not models, whose numbers are larger: a narrow range allows fine steps.
    Counters of batches take no fraction bits; the shares of a client's models are in [0, 1].
    Ours: around ClientPrivacy numbers are rounded towards zero, so that no message exceeds the bound that the noise
    assumes, and the step size is that for all T clients, independent of the cohort.
    t = 2/3 is ours. A client that drops out, and all clients of a void round, keep their old state, so that client
    and server agree on the sent messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.seeds import generator, uniforms
from lit_fed.core.types import Batch, Chosen, ClientData, ClientResult, Leaves, Message, Phase, Reduced, Tree
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedWork, own_work
from lit_fed.wrappers.deltas import delta_of, reference_of
from lit_fed.wrappers.secure.fixed_point import FixedPoint
from lit_fed.wrappers.secure.settings import SecureSum

__all__ = ["Residues", "SecureAverage"]


KEY_BITS = 256
"""Bits of a public key, and of a share of a secret."""


class Residues(NamedTuple):
    """A client's message value: integers below 2^32, in L parts each."""

    residues: Any  # for each leaf of the algorithm's message [L, ...] float64
    weight: Tensor  # [L] float64


@dataclass(frozen=True)
class SecureAverage(AlgorithmWrapper):
    """Clients send integers; the server decodes the algorithm's average from their sum.

    Sums of integers are exact in any order, so blocks and ranks change no bit.
    """

    settings: SecureSum

    def phases(self, ctx: Context, client_ids: Tensor) -> list[Phase]:
        """The algorithm's phases; a client drawn several times sends one message, which counts the draws."""
        phases = []
        for phase in self.inner.phases(ctx, client_ids):
            ids, counts = phase.client_ids.unique(return_counts=True)
            if len(ids) < len(phase.client_ids):
                draws = torch.zeros(ctx.num_clients, dtype=torch.int64, device=ids.device).index_add(0, ids, counts)
                phase = phase._replace(client_ids=ids, draws=draws)
            phases.append(phase)
        return phases

    # ------------------------------------------------------------------ at a client
    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, Leaves]:
        """The changes times their weight and the weight itself, as integers; the message counts once."""
        changes = delta_of(message.value, reference_of(self.inner, self.broadcast_view(ctx, shared), message.value))
        points = self._points(ctx, shared, changes)
        weight = message.weight.double() * (1 if ctx.draws is None else ctx.draws[data.client_id])
        pairs = [(point, leaf.flatten()) for point, leaf in zip(points, tree.leaves(changes), strict=True)]
        bounded = self.inner.hides_cohort
        parts = [
            *(point.encode(leaf, weight, towards_zero=bounded) for point, leaf in pairs),
            weight.round().to(torch.int64).view(1),
        ]
        flat = torch.cat(parts)
        *limbs, of_weight = points[0].split(flat).split([len(part) for part in parts], dim=1)
        sent = [
            # non-finite values stay non-finite, so that later checks find them
            torch.where(leaf.isfinite(), limb.view(-1, *leaf.shape), leaf)
            for limb, leaf in zip(limbs, tree.leaves(changes), strict=True)
        ]
        value = Residues(tree.rebuild(message.value, sent), of_weight[:, 0])
        beyond = torch.stack([(leaf.abs() > point.largest).sum() for point, leaf in pairs]).sum()
        metrics = {"secure/clamped_share": (beyond.double() / (len(flat) - 1)).float()}  # short, so that sums are exact
        counts, metrics = self._counts(ctx, data.client_id, metrics)
        numbers = 1 + self._num_sent(ctx, shared, message.value)
        keys = 2 * KEY_BITS * (1 + self._num_partners(ctx))  # two public keys, and two shares for each partner
        bits = counts * self.settings.modulus_bits * numbers + keys
        return message._replace(value=value, weight=counts, bits_up=bits), memory, metrics

    def _counts(self, ctx: Context, client_id: Tensor, metrics: Leaves) -> tuple[Tensor, Leaves]:
        """1, or 0 for a client that drops out, [] float64; metrics with the share of dropouts."""
        counts = (~self._drops_out(ctx, client_id)).double()
        if self.settings.dropout_fraction:
            void = torch.full_like(counts, float(self._is_void(ctx)))
            gone = torch.ones_like(counts) - self._present(ctx).double().mean()
            metrics = metrics | {"secure/dropped_share": gone.float(), "secure/void_share": void}
        return counts, metrics

    def client_init(self, ctx: Context, shared: Tree, state: Tree, data: ClientData, losses: Any) -> Tree:
        """The algorithm's work; if clients may drop out, with the state that they return to."""
        work = super().client_init(ctx, shared, state, data, losses)
        return WrappedWork(work, state, getattr(work, "optimizer", ())) if self._may_lose(ctx) else work

    def client_step(self, ctx: Context, shared: Tree, work: Tree, batch: Batch) -> Tree:
        if not self._may_lose(ctx):
            return super().client_step(ctx, shared, work, batch)
        stepped = super().client_step(ctx, shared, own_work(work), batch)
        return WrappedWork(stepped, work.memory, getattr(stepped, "optimizer", ()))

    def client_final(self, ctx: Context, shared: Tree, work: Tree, data: ClientData) -> ClientResult:
        """The algorithm's result; a client whose message is lost keeps its old state."""
        if not self._may_lose(ctx):
            return super().client_final(ctx, shared, work, data)
        result, lost = super().client_final(ctx, shared, own_work(work), data), self._drops_out(ctx, data.client_id)
        if self._is_void(ctx):
            lost = torch.ones_like(lost)
        state = tree.map_leaves(lambda new, old: torch.where(lost, old, new), result.state, work.memory)
        return result._replace(state=state)

    # ------------------------------------------------------------------ at the server
    def server_step(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> Tree:
        """The algorithm's step on the average of the remaining clients; a void round changes nothing."""
        is_sum = bool(len(self._cohort(ctx)) and tree.leaves(reduced.value))
        if is_sum and self._is_void(ctx):
            return shared
        return super().server_step(ctx, shared, reduced, client_ids)

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Tree]:
        """The average of the messages and the sum of their weights, from the sum of the integers."""
        points, heard = self._points(ctx, shared, reduced.value.residues), self.broadcast_view(ctx, shared)
        limbs = [leaf.flatten(1) for leaf in tree.leaves(reduced.value.residues)] + [reduced.value.weight[:, None]]
        total = points[0].join(torch.cat(limbs, dim=1) * reduced.weight)
        *sums, of_weight = total.split([limb.shape[1] for limb in limbs])
        weight = of_weight[0].double()
        means = [
            (point.decode(part) / weight.clamp(min=1)).view(leaf.shape[1:])
            for point, part, leaf in zip(points, sums, tree.leaves(reduced.value.residues), strict=True)
        ]
        mean = tree.rebuild(reduced.value.residues, means)
        value = tree.map_leaves(lambda new, old: old.double() + new, mean, reference_of(self.inner, heard, mean))
        return Reduced(value, weight), shared.own if self.has_server_state else ()

    # ------------------------------------------------------------------ known to both
    def _cohort(self, ctx: Context) -> Tensor:
        """The clients of a phase, [m] int64, ascending."""
        present = ctx.present
        return torch.arange(ctx.num_clients, device=ctx.lr.device) if present is None else present.nonzero()[:, 0]

    def _num_partners(self, ctx: Context) -> int:
        """Number of clients with which each one shares keys."""
        others, neighbours = len(self._cohort(ctx)) - 1, self.settings.neighbours
        return others if neighbours is None else min(neighbours, others)

    def _points(self, ctx: Context, shared: Tree, values: Tree) -> list[FixedPoint]:
        """Fixed-point format of each leaf of the algorithm's message; integers take no fraction bits."""
        num_messages = len(self._cohort(ctx)) if ctx.draws is None else int(ctx.draws.sum())
        if self.inner.hides_cohort:  # a client's participation must not change the rounding of other messages
            num_messages = ctx.num_clients
        most_weight = ctx.most_samples if ctx.weighting == "samples" else 1
        point = self.settings.point(max(num_messages, 1), max(most_weight, 1))
        whole = point._replace(fraction_bits=0, clip_range=point.clip_range * 2.0**point.fraction_bits)
        bits = math.floor(math.log2(point.clip_range)) + point.fraction_bits  # of a share in [0, 1]
        share = point._replace(fraction_bits=bits, clip_range=1.0)
        models = tree.models(self.broadcast_view(ctx, shared))
        counters = {name for one in models[:1] for name, leaf in one.buffers.items() if not leaf.is_floating_point()}
        paths = [path.split("/") for path, _ in tree.items(values)]

        def point_of(path: list[str]) -> FixedPoint:
            if path[-2:-1] == ["buffers"] and path[-1] in counters:
                return whole
            return share if isinstance(values, Chosen) and path[0] == "taken" else point

        return [point_of(path) for path in paths]

    def _num_sent(self, ctx: Context, shared: Tree, value: Tree) -> int:
        """Number of values of a message that leave the client, d, without those that a codec omits."""
        of_one = tree.map_leaves(lambda leaf: torch.empty(leaf.shape, dtype=torch.uint8, device="meta"), value)
        left_out: int = self.inner.numbers_left_out(self.broadcast_view(ctx, shared))
        return tree.bits(of_one) // 8 - left_out

    def _may_lose(self, ctx: Context) -> bool:
        """Whether messages of a phase may be lost."""
        return bool(self.settings.dropout_fraction) and ctx.phase != "adapt"

    def _drops_out(self, ctx: Context, client_id: Tensor) -> Tensor:
        """Whether a client drops out of a phase, [] bool."""
        drawn = uniforms(ctx.seed, ctx.round_idx, client_id, f"secure/dropout/{ctx.phase}", 1)[0]
        return drawn < self.settings.dropout_fraction

    def _present(self, ctx: Context) -> Tensor:
        """Whether each client of a phase is still present, [m] bool."""
        cohort = self._cohort(ctx)
        if not len(cohort):
            return torch.zeros_like(cohort, dtype=torch.bool)
        return ~torch.func.vmap(lambda client_id: self._drops_out(ctx, client_id))(cohort)

    def _is_void(self, ctx: Context) -> bool:
        """Whether of some client and its partners, beside each other on a ring drawn anew, too few are left."""
        partners, present = self._num_partners(ctx), self._present(ctx)
        needed = max(1, math.ceil(self.settings.threshold * (partners + 1) - 1e-9))  # robust to decimal fractions
        if partners == len(present) - 1:
            return int(present.sum()) < needed
        order = generator(ctx.seed, ctx.round_idx, 0, f"secure/ring/{ctx.phase}").permutation(len(present))
        ring = present[torch.from_numpy(order).to(present.device)].int()
        held = torch.stack([ring.roll(step) for step in range(-(partners // 2), partners // 2 + 1)])
        return int(held.sum(0).min()) < needed
