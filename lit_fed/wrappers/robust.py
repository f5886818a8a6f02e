"""Robust aggregation, and attacks to try it with, around any algorithm whose server averages models or changes.

The rules are in `lit_fed.core.aggregation`, the attacks in `lit_fed.core.attacks`, each with its paper.

Symbols:
    X_i -> Rows          what is new in the message of client i: all floating leaves of all M models, [d]
    A   -> rule          the change that the rows X amount to
Deviations:
    Messages with NaN or infinity are dropped first. Where fewer are left than the rule needs, a round changes nothing.
    Every client counts the same unless `--model.weighting samples` is given: its number of samples is what it claims.
    Ours: of models that clients choose, each is aggregated over those who chose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.aggregation import Aggregate, Rule
from lit_fed.core.aggregation.rows import Rows
from lit_fed.core.attacks.base import Attack, Intercepted
from lit_fed.core.context import Context
from lit_fed.core.errors import ClientError
from lit_fed.core.mixtures.e_step import Chosen
from lit_fed.core.types import Reduced, Tree
from lit_fed.wrappers.around import Around, Guarded
from lit_fed.wrappers.news import known

__all__ = ["Judged", "RobustAverage"]


class Judged(NamedTuple):
    """What the server remembers of the clients' messages."""

    kept: Tensor  # [T] float64, how much of each went in when the last round ended; NaN of those who took no part
    refused: Tensor  # [T] int64, in how many rounds what a client sent was no number
    skipped: Tensor  # [] int64, rounds that changed nothing, since too few messages were left
    start: Any  # the rule's last result, leaves [...] float64; () of rules that start from nothing


@dataclass(frozen=True)
class RobustAverage(Around):
    """The server sees every message, and takes what a rule makes of them for their average.

    Args:
        inner: the algorithm.
        rule: the rule; None: the average.
        attack: what attackers send; None: what they learnt.
    """

    rule: Rule | None = None
    attack: Attack | None = None

    reduce = "stack"

    @property
    def remembers_rounds(self) -> bool:
        """What each client's messages were worth."""
        return True

    def server_memory(self, ctx: Context, shared: Tree) -> Judged:
        """Nobody was judged."""
        device = ctx.lr.device
        kept = torch.full((ctx.num_clients,), torch.nan, dtype=torch.float64, device=device)
        refused = torch.zeros(ctx.num_clients, dtype=torch.int64, device=device)
        start: Tree = ()
        if self.rule is not None and self.rule.starts_from_last:
            start = tree.map_leaves(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), tree.models(shared)[0])
        return Judged(kept, refused, refused.sum(), start)

    def server_step(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> Tree:
        """The algorithm's, on what the rule makes of the messages; where it makes nothing, only the count of rounds."""
        if not tree.leaves(reduced.value):
            return super().server_step(ctx, shared, reduced, client_ids)
        reduced, own = self.decode(ctx, shared, reduced, client_ids)
        if not float(reduced.weight):
            return Guarded(self.inside(shared), own)
        return Guarded(self.inner.server_step(ctx, self.inside(shared), reduced, client_ids), own)

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Tree]:
        """The mean that the algorithm's server gets: what is known of the messages, and the change that is left."""
        judged: Judged = shared.own
        one = tree.index(reduced.value, 0)
        one = one._replace(taken=torch.ones_like(one.taken)) if isinstance(one, Chosen) else one
        of_old = known(self.inner, self.heard(ctx, shared), one)
        values = self._attacked(ctx, of_old, reduced.value, client_ids)
        finite = Rows(values, of_old).finite() & (reduced.weight > 0)
        if self.rule is None and not finite.all():
            raise ClientError(
                int(client_ids[~finite][0]), "client_final", ctx.round_idx,
                "it sent NaN or infinity; give --model.robust_aggregation, which drops such messages",
            )  # fmt: skip
        values, weights, ids = tree.index(values, finite), reduced.weight[finite], client_ids[finite]
        kept = torch.full_like(judged.kept, torch.nan).index_fill(0, client_ids, 0.0)
        refused = judged.refused.index_add(0, client_ids, (~finite).long())
        value: Tree
        if isinstance(of_old, Chosen):
            value, found, start = self._each_chosen(ctx, values, of_old, weights, judged.start)
        else:
            found = self._aggregate(ctx, Rows(values, of_old), weights, judged.start)
            value = None if found is None else tree.add(of_old, found.change)
            start = judged.start if found is None or judged.start == () else found.change
        if found is None:
            nothing = Reduced(of_old, torch.zeros((), dtype=torch.float64, device=weights.device))
            return nothing, judged._replace(kept=kept, refused=refused, skipped=judged.skipped + 1)
        own = Judged(kept.index_copy(0, ids, found.kept), refused, judged.skipped, start)
        return Reduced(value, weights.sum()), own

    def _attacked(self, ctx: Context, of_old: Tree, values: Tree, client_ids: Tensor) -> Tree:
        """The values with what attackers send."""
        if self.attack is None or ctx.attackers is None or not ctx.attackers[client_ids].any():
            return values
        return self.attack.strike(
            Intercepted(
                values, of_old, ctx.attackers[client_ids], client_ids, ctx.seed, ctx.round_idx, f"attack/{ctx.phase}"
            )
        )

    def tolerated(self, ctx: Context, num_messages: int) -> int:
        """f: attackers among so many clients, as many as are known to be there, else a fifth."""
        given = None if self.rule is None else getattr(self.rule, "num_attackers", None)
        if given is not None:
            return int(given)
        if ctx.attackers is None:
            return num_messages // 5
        return -(-int(ctx.attackers.sum()) * num_messages // ctx.num_clients)

    def _aggregate(self, ctx: Context, rows: Rows, weights: Tensor, start: Tree) -> Aggregate | None:
        """What the rule makes of some rows; None where these are too few."""
        if self.rule is None:
            return Aggregate(rows.combine(weights / weights.sum()), torch.ones_like(weights)) if len(weights) else None
        f = self.tolerated(ctx, len(weights))
        if len(weights) < max(self.rule.fewest(f), 1):
            return None
        return self.rule.aggregate(rows, weights, None if start == () else start, f)

    def _each_chosen(
        self, ctx: Context, values: Chosen, of_old: Chosen, weights: Tensor, start: Tree
    ) -> tuple[Chosen, Aggregate | None, Tree]:
        """Each of the M models over those who sent it, as the mean of messages of which a share holds it.

        A model of which too few were sent is one that nobody sent, so that the server keeps its own.
        """
        kept, told, shares, starts = torch.zeros_like(weights), [], [], []
        for place in range(values.taken.shape[1]):
            takers = values.taken[:, place] > 0
            old = tree.index(of_old.models, place)
            rows = Rows(tree.map_leaves(lambda leaf, here=takers, at=place: leaf[here, at], values.models), old)
            begin = () if start == () else tree.index(start, place)
            found = self._aggregate(ctx, rows, weights[takers], begin) if takers.any() else None
            share = weights.new_zeros(()) if found is None else weights[takers].sum() / weights.sum()
            change = tree.map_leaves(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), old)
            change = change if found is None else found.change
            if found is not None:
                kept[takers] += found.kept
            told.append(tree.scale(tree.add(old, change), share))
            shares.append(share)
            starts.append(begin if found is None else change)
        value, taken = Chosen(tree.stack(told), torch.stack(shares)), values.taken.sum(1).clamp(min=1)
        if not value.taken.any():
            return value, None, start
        return value, Aggregate((), kept / taken), start if start == () else tree.stack(starts)
