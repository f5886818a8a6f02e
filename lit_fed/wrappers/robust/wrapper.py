"""Robust aggregation, and attacks to test it, around any algorithm whose server averages models or changes.

The rules are in `lit_fed.wrappers.robust.rules`, the attacks in `lit_fed.wrappers.robust.attacks`, each with its paper.

Symbols:
    X_i -> Rows          delta of the message of client i: all floating leaves of all M models, [d]
    A   -> rule          the aggregate of the rows X
    f   -> tolerated     clients of a round that may be malicious
Deviations:
    Messages with NaN or infinity are dropped first. If fewer are left than the rule needs, a round changes nothing.
    Clients have equal weights unless `--model.weighting samples` is given: the number of samples is only claimed.
    Ours: a client has one coefficient for all M models that it sends.
    Ours: if clients choose models, each model is aggregated over those who chose it. A model with too few messages is
    unchanged, and its weight is distributed over the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation
from lit_fed.core.context import Context
from lit_fed.core.seeds import generator
from lit_fed.core.types import Chosen, Leaves, Reduced, Tree
from lit_fed.errors import ClientError, ConfigError
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedShared, averages_statistics
from lit_fed.wrappers.deltas import map_parameter_trees, names_of_parameters, parameter_trees, reference_of
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted
from lit_fed.wrappers.robust.rules import Aggregate, Rule
from lit_fed.wrappers.robust.rules.base import Started
from lit_fed.wrappers.robust.rules.rows import Rows

__all__ = ["NEVER_JUDGED", "Judged", "RobustAverage"]

NEVER_JUDGED = -1.0

Starts = tuple[Leaves, ...]


class Judged(NamedTuple):
    """The server's memory of the clients' messages."""

    kept: Tensor  # [T] float64, used share of each client's last message; −1 for clients that never took part
    refused: Tensor  # [T] int64, number of non-finite messages of each
    skipped: Tensor  # [] int64, phases without a change, since too few messages were left
    start: Starts  # parameters of the rule's last result, leaves [M, ...] float64; () if the rule needs none


@dataclass(frozen=True)
class RobustAverage(AlgorithmWrapper):
    """The server sees every message, and uses the result of a rule as their average.

    Args:
        inner: the algorithm.
        rule: the rule; None: the average.
        attack: the messages of attackers; None: honest ones.
    """

    rule: Rule | None = None
    attack: Attack | None = None

    @property
    def message(self) -> MessageSpec:
        """The algorithm's; the server sees every message."""
        return self.inner.message._replace(reduce="stack")  # type: ignore[no-any-return]

    @property
    def participation(self) -> Participation:
        """The algorithm's; without rows nothing gives the shape of a message, so the server skips empty rounds."""
        return self.inner.participation._replace(steps_on_empty_rounds=False)  # type: ignore[no-any-return]

    has_server_state = True

    @property
    def drops_non_finite(self) -> bool:
        """With a rule."""
        return self.rule is not None

    # ------------------------------------------------------------------ what the server remembers
    def server_memory(self, ctx: Context, shared: Tree) -> Judged:
        """No message yet; refuses running statistics that would move by steps of fixed size."""
        device = ctx.lr.device
        if self.rule is not None and self.rule.takes_signs and averages_statistics(self.inner, ctx):
            raise ConfigError(
                f"--model.robust_aggregation {type(self.rule).__name__} moves all numbers by steps of one size, and "
                "running statistics of normalisation are none that could be; add --model.batch_norm local, or choose "
                "another rule"
            )
        kept = torch.full((ctx.num_clients,), NEVER_JUDGED, dtype=torch.float64, device=device)
        refused = torch.zeros(ctx.num_clients, dtype=torch.int64, device=device)
        start: Starts = ()
        if self.rule is not None and self.rule.starts_from_last:
            parts = 2 if self.inner.message.beside_models else 1
            start = tuple(_zeros(tree.models(shared)[0].parameters) for _ in range(parts))
        return Judged(kept, refused, refused.sum(), start)

    # ------------------------------------------------------------------ the server's step
    def server_step(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> Tree:
        """The algorithm's step on the result of the rule; without a result, only the memory changes."""
        if not tree.leaves(reduced.value):
            return super().server_step(ctx, shared, reduced, client_ids)
        reduced, own = self.decode(ctx, shared, reduced, client_ids)
        if not float(reduced.weight):
            return WrappedShared(self.inner_shared(shared), own)
        return WrappedShared(self.inner.server_step(ctx, self.inner_shared(shared), reduced, client_ids), own)

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Judged]:
        """The mean for the algorithm's server step: the reference plus the aggregated change."""
        judged: Judged = shared.own
        reference = self._reference(ctx, shared, tree.index(reduced.value, 0))
        values = self._attacked(ctx, reference, reduced.value, client_ids)
        counts = reduced.weight > 0
        broken = counts & ~Rows(values, reference).finite()
        if self.rule is None and broken.any():
            raise ClientError(
                int(client_ids[broken][0]), "client_final", ctx.round_idx,
                "it sent NaN or infinity; give --model.robust_aggregation, which drops such messages",
            )  # fmt: skip
        left = counts & ~broken
        refused = judged.refused.index_add(0, client_ids, broken.long())
        kept = judged.kept.index_fill(0, client_ids, 0.0)
        if not left.all():
            values, client_ids = tree.index(values, left), client_ids[left]
        weights = reduced.weight[left]
        if self.rule is not None and self.rule.weight_cap is not None:
            weights = weights.clamp(max=self.rule.weight_cap)
        start = self._laid_out(ctx, shared, reference, judged.start)
        judge = self._each_chosen if isinstance(reference, Chosen) else self._all
        found = judge(ctx, values, reference, weights, start)
        if found is None:
            nothing = Reduced(reference, torch.zeros((), dtype=torch.float64, device=weights.device))
            return nothing, judged._replace(kept=kept, refused=refused, skipped=judged.skipped + 1)
        mean, verdicts, change = found
        if judged.start:
            parts = parameter_trees(change, names_of_parameters(self.inner_shared(shared)))
            judged = judged._replace(start=tuple(old | new for old, new in zip(judged.start, parts, strict=True)))
        return mean, judged._replace(kept=kept.index_copy(0, client_ids, verdicts), refused=refused)

    def _reference(self, ctx: Context, shared: Tree, one: Tree) -> Tree:
        """The reference of any message, for all models in it, from one of them."""
        one = one._replace(taken=torch.ones_like(one.taken)) if isinstance(one, Chosen) else one
        return reference_of(self.inner, self.broadcast_view(ctx, shared), one)

    def _laid_out(self, ctx: Context, shared: Tree, reference: Tree, start: Starts) -> Tree:
        """The rule's starting point, a tree of changes like the messages; zero for leaves other than parameters."""
        if not start:
            return None
        names, zeros = names_of_parameters(self.inner_shared(shared)), _zeros(reference)
        return map_parameter_trees(lambda place, part: {name: start[place][name] for name in part}, zeros, names)

    def _attacked(self, ctx: Context, reference: Tree, values: Tree, client_ids: Tensor) -> Tree:
        """The values with the attackers' messages replaced."""
        if self.attack is None or ctx.attackers is None:
            return values
        attacks = ctx.attackers.to(client_ids.device)[client_ids]
        if not attacks.any():
            return values
        return self.attack.strike(
            Intercepted(values, reference, attacks, client_ids, ctx.seed, ctx.round_idx, f"attack/{ctx.phase}")
        )

    # ------------------------------------------------------------------ applying the rule
    def tolerated(self, num_messages: int, num_clients: int, num_attackers: int | None) -> int:
        """F among these messages: as set for the rule, else the share of attackers, a fifth if unknown.

        Args:
            num_messages: clients of the round, m.
            num_clients: T.
            num_attackers: attackers among these; None: unknown.
        """
        usual = num_messages // 5 if num_attackers is None else -(-num_attackers * num_messages // num_clients)
        return usual if self.rule is None else self.rule.against(usual)

    def _aggregate(self, ctx: Context, rows: Rows, weights: Tensor, start: Tree) -> Aggregate | None:
        """The rule's result for some rows; None if there are too few."""
        number = len(weights)
        if self.rule is None:
            return Aggregate(rows.combine(weights / weights.sum()), torch.ones_like(weights)) if number else None
        f = self.tolerated(number, ctx.num_clients, None if ctx.attackers is None else int(ctx.attackers.sum()))
        if number < max(self.rule.fewest_clients(f), 1):
            return None
        order = None
        if self.rule.bucket_size > 1:
            drawn = generator(ctx.seed, ctx.round_idx, 0, "robust/buckets").permutation(number)
            order = torch.from_numpy(drawn).to(weights.device)
        return self.rule.aggregate(rows, weights, Started(f, start, order))

    def _all(
        self, ctx: Context, values: Tree, reference: Tree, weights: Tensor, start: Tree
    ) -> tuple[Reduced, Tensor, Tree] | None:
        """The mean of messages with all models, the used shares [m], and the change."""
        found = self._aggregate(ctx, Rows(values, reference), weights, start)
        if found is None:
            return None
        return Reduced(tree.add(reference, found.change), weights.sum()), found.kept, found.change

    def _each_chosen(
        self, ctx: Context, values: Chosen, reference: Chosen, weights: Tensor, start: Chosen | None
    ) -> tuple[Reduced, Tensor, Tree] | None:
        """Aggregate each of the M models over the clients that sent it.

        A client's used share is the mean over its models; 0 for a model with too few messages.
        """
        kept, counted, found = torch.zeros_like(weights), torch.zeros_like(weights, dtype=torch.bool), []
        for place in range(values.taken.shape[1]):
            takers = (values.taken[:, place] > 0).nonzero()[:, 0]
            old, sent = tree.index(reference.models, place), _of_some(values.models, takers, place)
            begin = None if start is None else tree.index(start.models, place)
            one = self._aggregate(ctx, Rows(sent, old), weights[takers], begin) if len(takers) else None
            if one is not None:
                kept = kept.index_add(0, takers, one.kept)
                counted[takers] = True
            found.append((one, weights[takers].sum(), old, begin))
        total = weights[counted].sum()
        if not counted.any():
            return None
        shares = torch.stack([weight * 0 if one is None else weight / total for one, weight, _, _ in found])
        changes = [_zeros(old) if one is None else one.change for one, _, old, _ in found]
        told = [
            tree.scale(tree.add(old, change), share)
            for (_, _, old, _), change, share in zip(found, changes, shares, strict=True)
        ]
        last = [
            change if one is not None or begin is None else begin
            for (one, _, _, begin), change in zip(found, changes, strict=True)
        ]
        verdicts = kept / values.taken.sum(1).clamp(min=1)
        return Reduced(Chosen(tree.stack(told), shares), total), verdicts, Chosen(tree.stack(last), shares)


def _zeros(leaves: Tree) -> Tree:
    return tree.map_leaves(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), leaves)


def _of_some(models: Tree, clients: Tensor, place: int) -> Tree:
    """One model of the clients that sent it, leaves [k, ...]."""
    return tree.map_leaves(lambda leaf: leaf[clients, place], models)
