"""Personal parts: leaves of the network that stay with their client, around any algorithm that averages models.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization". ICML 2022.
https://arxiv.org/abs/2204.03809, Algorithms 2 (FedAlt) and 3 (FedSim). `--model.personal` puts `PersonalParts` around
the algorithm: FedAvg with `[head]` is FedPer (https://arxiv.org/abs/1912.00818) if training is `joint`, and FedRep
(https://arxiv.org/abs/2102.07078) if it is `alternating`.

Symbols:
    v_i -> state.personal  personal leaves of client i, leaves [M, ...]; never sent
    u   -> shared.inner    the algorithm's shared state without these leaves
    τ_v -> epochs          passes over the local samples for v_i, of `alternating`
    γ_v -> lr              learning rate for v_i
Deviations:
    The inner algorithm decides how u is averaged; the papers use FedAvg with a server optimizer.
    Each of M models has its own personal part: a mixture has personal heads on shared bodies.
    An unseen client has no personal part in the papers. Ours: the initial one, fitted as in a round while everything
    else is fixed, unless it is normalisation alone; BatchNorm statistics first take one pass over its samples.
    Trees of leaves beside models, such as control variates, are 0 at personal leaves: nothing is averaged there, so a
    client does not drift from an average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver, OptimizerState
from lit_fed.core.partial_models import (
    OWN,
    SHARED,
    Optimizers,
    in_turn,
    joined,
    leaf_order,
    measured,
    named_leaves,
    named_part,
    rate_of,
    whole_models,
)
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, LocalWork, ModelState, Phase, Stage, Tree
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedShared
from lit_fed.wrappers.deltas import shares_of

__all__ = ["PersonalParts", "PersonalState", "PersonalWork", "Training"]

Training = Literal["joint", "alternating"]


class PersonalState(NamedTuple):
    """A client's state."""

    inner: Any  # the algorithm's state of the client
    personal: ModelState  # v_i, leaves [M, ...]

    @property
    def mixture(self) -> Tensor:
        """Mixture weights of the client, [M], if the algorithm has some."""
        return self.inner.mixture  # type: ignore[no-any-return]


class PersonalWork(NamedTuple):
    """A client's phase."""

    inner: Any  # the algorithm's own work
    personal: ModelState  # v_i before the phase, leaves [M, ...]
    optimizer: Optimizers
    state: Any  # the algorithm's state of the client, in the phase `adapt`; else ()


@dataclass(frozen=True)
class PersonalParts(AlgorithmWrapper):
    """An algorithm whose clients keep some leaves of their models.

    The server and the wrappers around this one see models without these leaves. The inner algorithm's client functions
    receive a shared state that holds the client's own leaves.

    Args:
        inner: the algorithm.
        parts: patterns of names of leaves, or `head`, `body`, `norm`.
        training: `joint`, one step moves all leaves; `alternating`, personal leaves are trained ahead of the others.
        epochs: passes of the personal stage.
        lr: learning rate of the first round in the personal stage; None: that of the solver.
    """

    parts: tuple[str, ...] = ("head",)
    training: Training = "joint"
    epochs: int = 1
    lr: float | None = None

    has_server_state = True  # the initial personal leaves, for clients that have none yet

    def kept_names(self, ctx: Context) -> frozenset[str]:
        """Names of the personal leaves."""
        return named_leaves(ctx.task, self.parts, "--model.personal", may_be_all=False)

    # ------------------------------------------------------------------ start
    def shared_init(self, ctx: Context) -> WrappedShared:
        """The algorithm's without personal leaves, and the initial ones."""
        whole = self.inner.shared_init(ctx)
        names = self.kept_names(ctx)
        return WrappedShared(_without(whole, names, _names(whole)), tuple(named_part(tree.models(whole)[0], names)))

    def state_init(self, ctx: Context, shared: WrappedShared, data: ClientData) -> PersonalState:
        """The initial personal leaves; an unseen client takes BatchNorm statistics from its samples."""
        initial = ModelState(*shared.own)
        whole = tree.models(_whole(ctx, shared.inner, initial))[0]
        personal = measured(ctx, initial, named_part(whole, leaf_order(ctx.task.network)), data)
        return PersonalState(self.inner.state_init(ctx, _whole(ctx, shared.inner, personal), data), personal)

    def sent(self, ctx: Context, shared: WrappedShared, client_id: int) -> WrappedShared:
        """The algorithm's part; the initial personal leaves only for clients that have none."""
        inner, own = self.inner.sent(ctx, shared.inner, client_id), shared.own
        if client_id < ctx.num_clients and ctx.phase != "init":
            own = tree.map_leaves(lambda leaf: leaf.new_empty(0), own)
        return WrappedShared(inner, own)

    # ------------------------------------------------------------------ a round
    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        """The algorithm's phases; if personal and shared leaves alternate, its local work is the second stage."""
        phases: Sequence[Phase] = self.inner.phases(ctx, client_ids)
        if self.training == "joint":
            return phases
        return tuple(
            one._replace(work=_ahead_of(one.work, Stage(OWN, self.epochs), SHARED)) if one.work.is_training else one
            for one in phases
        )

    def shared_losses(self, ctx: Context, shared: Tree, batch: Batch) -> None:
        """No loss depends on the shared state alone."""

    def client_init(
        self, ctx: Context, shared: WrappedShared, state: PersonalState, data: ClientData, losses: None
    ) -> PersonalWork:
        """The algorithm's, with its losses under the client's own leaves."""
        inner = self._begun(ctx, _whole(ctx, shared.inner, state.personal), state.inner, data)
        optimizer = getattr(inner, "optimizer", ())
        optimizers = Optimizers(optimizer, optimizer if self._has_stages(ctx) else ())
        return PersonalWork(inner, state.personal, optimizers, state.inner if ctx.phase == "adapt" else ())

    def client_step(self, ctx: Context, shared: WrappedShared, work: PersonalWork, batch: Batch) -> PersonalWork:
        """The algorithm's step; each stage keeps its own leaves only, the personal one nothing else of the work."""
        whole = _whole(ctx, shared.inner, work.personal)
        if not self._has_stages(ctx):  # stages, if any, are the algorithm's
            stepped = self.inner.client_step(ctx, whole, _optimized(work.inner, work.optimizer.shared), batch)
            return work._replace(inner=stepped, optimizer=Optimizers(getattr(stepped, "optimizer", ()), ()))
        names = frozenset(_names(work.personal))
        fits = ctx.stage == OWN
        inner = _optimized(work.inner, work.optimizer.own if fits else work.optimizer.shared)
        if ctx.stage:
            solver = _PartSolver.of(ctx.solver, names if fits else frozenset(_names(whole)) - names)
            ctx = ctx._replace(solver=solver, lr=rate_of(ctx, self.lr) if fits else ctx.lr)
        stepped = self.inner.client_step(ctx, whole, inner, batch)
        optimizer = getattr(stepped, "optimizer", ())
        if fits:
            optimizers = work.optimizer._replace(own=optimizer)
            return work._replace(inner=_with_personal(inner, stepped, names), optimizer=optimizers)
        stepped = _with_personal(stepped, inner, names) if ctx.stage else stepped
        return work._replace(inner=stepped, optimizer=work.optimizer._replace(shared=optimizer))

    def client_final(self, ctx: Context, shared: WrappedShared, work: PersonalWork, data: ClientData) -> ClientResult:
        """The algorithm's result; the client keeps its personal leaves and sends the others."""
        names, inner = frozenset(_names(work.personal)), _optimized(work.inner, work.optimizer.shared)
        ctx, whole = ctx._replace(private=names), _whole(ctx, shared.inner, work.personal)
        result: ClientResult = self.inner.client_final(ctx, whole, inner, data)
        personal = work.personal if ctx.tunes else self._trained(inner, result, work.personal)
        if ctx.phase == "adapt" and not (ctx.tunes or self._inner_adapts(ctx)):  # its state follows the fitted leaves
            whole = _whole(ctx, shared.inner, personal)
            result = self.inner.client_final(ctx, whole, self._begun(ctx, whole, work.state, data), data)
        message = result.message._replace(value=_without(result.message.value, names, _names(whole)))
        kept = _zeroed(result.state, names, _names(whole))
        return ClientResult(message, PersonalState(kept, personal), result.metrics)

    def server_step(self, ctx: Context, shared: Tree, reduced: Any, client_ids: Tensor) -> Tree:
        return WrappedShared(self.inner.server_step(ctx, shared.inner, reduced, client_ids), shared.own)

    def _has_stages(self, ctx: Context) -> bool:
        """Whether the personal leaves have a stage of their own in a phase."""
        if ctx.phase == "adapt":
            return self._fits and not ctx.tunes
        return self.training == "alternating"

    @property
    def _fits(self) -> bool:
        """Whether an unseen client trains its personal leaves; normalisation alone is measured."""
        return self.parts != ("norm",)

    def _trained(self, work: Any, result: ClientResult, kept: ModelState) -> ModelState:
        """The personal leaves after a phase; those of a model that is not trained or not sent stay as they were."""
        chosen, sent = shares_of(result.message.value), tree.models(result.message.value)
        is_sent = sent and chosen is None and self.inner.message.kind == "models"
        found = sent if is_sent else tree.models(getattr(work, "models", None)) or sent
        if not found or not tree.leaves(kept):  # a client that sends no models keeps whole ones
            return kept
        if chosen is None and len(tree.leaves(found)[0]) != len(tree.leaves(kept)[0]):  # it adapts one of several
            chosen = result.state.mixture

        def choose(old: Tensor, new: Tensor) -> Tensor:
            return new if chosen is None else torch.where(chosen.view(-1, *[1] * (old.ndim - 1)) > 0, new, old)

        pairs = zip(kept, found[0], strict=True)
        return ModelState(*({name: choose(leaf, new[name]) for name, leaf in old.items()} for old, new in pairs))

    def _begun(self, ctx: Context, whole: Tree, state: Any, data: ClientData) -> Any:
        losses = self.inner.shared_losses(ctx, whole, data.batch)
        return self.inner.client_init(ctx, whole, state, data, losses)

    # ------------------------------------------------------------------ serving
    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """The algorithm's; an unseen client fits its personal leaves first."""
        work: LocalWork | None = self.inner.adapt_work(ctx, seen)
        if seen or not self._fits:
            return work
        of_round = ctx.solver.work
        own = Stage(OWN, of_round.epochs, of_round.steps) if self.training == "joint" else Stage(OWN, self.epochs)
        return _ahead_of(work or LocalWork(), own, "")

    def _inner_adapts(self, ctx: Context) -> bool:
        work = self.inner.adapt_work(ctx, False)
        return work is not None and work.trains

    @property
    def adapts_statistics(self) -> bool:
        """Whether unseen clients need samples for their running statistics."""
        return "norm" in self.parts

    def shared_outputs(self, ctx: Context, shared: Tree, x: Tensor) -> None:
        """No prediction depends on the shared state alone."""

    def log_prob(self, ctx: Context, shared: WrappedShared, state: PersonalState, x: Tensor, outputs: None) -> Tensor:
        """The algorithm's prediction under the client's own leaves, [B, C]."""
        whole = _whole(ctx, shared.inner, state.personal)
        own = self.inner.shared_outputs(ctx, whole, x)
        return self.inner.log_prob(ctx, whole, state.inner, x, own)  # type: ignore[no-any-return]

    def collaboration(self, ctx: Context, shared: WrappedShared, states: PersonalState) -> Tensor | None:
        return self.inner.collaboration(ctx, shared.inner, states.inner)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _PartSolver(LocalSolver):
    """A local solver that updates some leaves only, in every algorithm."""

    solver: LocalSolver = None  # type: ignore[assignment] # fields of a solver have defaults, so this has to have one
    moving: frozenset[str] = frozenset()

    @classmethod
    def of(cls, solver: LocalSolver, moving: frozenset[str]) -> _PartSolver:
        """The same solver for some leaves."""
        return cls(**{one.name: getattr(solver, one.name) for one in fields(LocalSolver)}, solver=solver, moving=moving)

    def step(
        self, *given: Any, moving: frozenset[str] | None = None, **options: Any
    ) -> tuple[ModelState, OptimizerState, Tensor]:
        moving = self.moving if moving is None else self.moving & moving
        return self.solver.step(*given, moving=moving, **options)

    def _clip(self, gradient: Leaves) -> Leaves:
        """Norm of the moving leaves, in a gradient that an algorithm computed itself."""
        moving = tree.named(gradient, self.moving)
        return gradient | super()._clip(moving) if moving else gradient


def _ahead_of(work: LocalWork, own: Stage, second: str) -> LocalWork:
    """Local work after a stage of personal leaves."""
    return in_turn(work, own, *([Stage(second, work.epochs, work.steps)] if work.is_training else []))


def _optimized(work: Any, optimizer: Any) -> Any:
    return work._replace(optimizer=optimizer) if hasattr(work, "optimizer") else work


# ---------------------------------------------------------------------- trees with and without personal leaves
def _names(value: Tree) -> list[str]:
    """Names of the leaves of its first models, parameters first."""
    return [name for part in tree.models(value)[0] for name in part]


def _mapped(value: Tree, of_models: Callable[[ModelState], ModelState], of_leaves: Callable[[Any], Any]) -> Tree:
    """The tree with its models, and its other dicts, replaced."""
    if isinstance(value, ModelState):
        return of_models(value)
    if isinstance(value, dict):
        return of_leaves(value) if value else value
    if isinstance(value, tuple | list):
        return tree.with_children(value, [_mapped(part, of_models, of_leaves) for part in value])
    return value


def _whole(ctx: Context, shared: Tree, personal: ModelState) -> Tree:
    """The algorithm's shared state with a client's personal leaves in its models, and zeros beside models."""
    known, network = set(_names(shared)), ctx.task.network

    def filled(leaves: dict[str, Any]) -> dict[str, Any]:
        return joined(network, leaves, tree.zeros_like(personal.parameters)) if leaves.keys() <= known else leaves

    def whole(one: ModelState) -> ModelState:
        """With the leaves of modules beside the network, which an algorithm may keep in its models."""
        models = whole_models(network, one, personal)
        return ModelState(
            *(
                part | {name: leaf for name, leaf in own.items() if name not in part}
                for part, own in zip(models, one, strict=True)
            )
        )

    return _mapped(shared, whole, filled)


def _without(value: Tree, names: frozenset[str], known: Sequence[str]) -> Tree:
    """The tree without personal leaves; `known` are the names of all leaves of a model."""

    def others(leaves: dict[str, Any]) -> dict[str, Any]:
        return {name: leaf for name, leaf in leaves.items() if name not in names}

    return _mapped(
        value, lambda one: ModelState(*map(others, one)), lambda d: others(d) if d.keys() <= set(known) else d
    )


def _zeroed(state: Tree, names: frozenset[str], known: Sequence[str]) -> Tree:
    """A client's state with zeros at the personal leaves of trees beside models."""

    def zeroed(leaves: dict[str, Any]) -> dict[str, Any]:
        if not leaves.keys() <= set(known):
            return leaves
        return {name: torch.zeros_like(leaf) if name in names else leaf for name, leaf in leaves.items()}

    return _mapped(state, lambda one: one, zeroed)


def _with_personal(value: Tree, source: Tree, names: frozenset[str]) -> Tree:
    """The tree with the personal leaves of models from another tree of its structure."""
    if isinstance(value, ModelState):
        pairs = zip(value, source, strict=True)
        return ModelState(*({n: new[n] if n in names else leaf for n, leaf in old.items()} for old, new in pairs))
    if isinstance(value, tuple | list):
        return tree.with_children(value, [_with_personal(*both, names) for both in zip(value, source, strict=True)])
    return value
