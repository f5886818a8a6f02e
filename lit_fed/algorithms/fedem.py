"""FedEM: clients as mixtures of M shared distributions, learned by federated expectation-maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Algorithm 1 (in detail Algorithm 2). Another algorithm of this name, federated EM with
compressed messages and variance reduction, is by Dieuleveut, Fort, Moulines, Robin (NeurIPS 2021).

Symbols:
    θ_m   -> shared.models        component m, leaves [M, ...]
    π_t   -> state.mixture        mixture weights of client t, [M], sum to 1; sent only if `average` needs them
    q_t   -> work.responsibility  posterior of the component of each local sample, [N, M], rows sum to 1
    θ_m,t -> work.models          component m after client t's local steps, leaves [M, ...]
    n_t   -> message.weight       samples of client t
Deviations:
    The authors leave clients that send only some components to future work. Ours: those with the largest weights
    (`min_weight`, `most_components`), each averaged over the clients that sent it, by `model.aggregation`.
    The paper averages a component over all clients by n_t, also over those that hardly use it. Its step is then
    proportional to its share of all samples: the leading component learns fastest, and two groups of clients may
    end up sharing one component. Ours, if the server may know π_t, are the weights of the exact M-step:
    θ_m <- Σ_t n_t π_tm θ_m,t / Σ_t n_t π_tm. `average: samples` is the paper's rule. Other first rounds: `start`.
    The components see the same batches in a local step; the authors' code shuffles for each (`shuffle_per_component`).
    The authors' code keeps momentum from round to round (`solver.persist_optimizer`; ours: until components are
    exchanged), fills in clients that were not sampled (`model.aggregation: stale_fill`) and updates an unseen client's
    weights at every evaluation; here an unseen client takes `em_steps` E-steps from uniform weights (the paper: one)
    each time it is served.
    Sequences: the paper's samples have one label each. Ours: ℓ is the mean loss of a sequence's L positions, in the
    local steps and, by default, in the E-step, which thus uses the L-th root of the text's likelihood. With
    `position_loss: sum` it uses the likelihood itself: one component generates the whole text, so p(y | x, θ_m) =
    Π_l p(y_l | x, θ_m) = exp(−L·ℓ) and q_m ∝ π_m·exp(−L·ℓ). Serving mixes each position in both cases:
    Σ_m π_m p(y_l | x, θ_m) is the probability of one label if the others are unknown. Losses are per position.
    The paper allows a different local solver for each client (Section 3.2): here rates, steps and batches may differ
    (`solver.client_lr`, `client_work`, `client_batch_size`), the optimizer may not.
    The authors' code weighs characters by inverse frequency, in the E-step too; here likelihoods are unweighted, unless
    `--model.loss CrossEntropy` has weights (`in_e_step`: exp(−weighted loss) is no likelihood, and q_t no posterior).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, MessageSpec, Participation
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.mixtures.e_step import (
    PositionLoss,
    average_chosen,
    batch_weights,
    choose,
    counted_rows,
    expectation,
    largest,
    num_factors,
    private_expectation,
)
from lit_fed.core.mixtures.starts import ASK, MixtureStart, Reported, StartedModels, under_way
from lit_fed.core.reduce import cast_like, server_average
from lit_fed.core.types import (
    Batch,
    ClientData,
    ClientResult,
    LocalWork,
    Message,
    ModelState,
    ModelsWithShare,
    Phase,
    Reduced,
)
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FedEM", "MixtureState", "MixtureWork", "StartedMixture"]

NUMBER = 64
"""Bits of a number that a client reports."""

LEAST_SHARE = 1e-3
"""Share of a component below which a server that rescales its step divides by this."""


class MixtureState(NamedTuple):
    """A client's state."""

    mixture: Tensor  # π_t, [M]


class StartedMixture(NamedTuple):
    """A client's state if the start exchanges components."""

    mixture: Tensor  # π_t, [M]
    exchanges: Tensor  # [] int64, number of exchanges that π_t and the optimizer have seen


class MixtureWork(NamedTuple):
    """A client's phase."""

    models: ModelState  # θ_m,t, leaves [M, ...]
    optimizer: OptimizerState
    mixture: Tensor  # π_t, [M]
    responsibility: Tensor  # q_t, [N, M]; 0 in padded rows
    loss: Tensor  # [] mean negative log-likelihood of the local samples under the received models and the old π_t
    share: Tensor  # [M] float64, weight of θ_m,t besides n_t
    report: dict[str, Tensor]  # report to the server during the start; {}: none
    exchanges: Tensor | None = None  # [] int64, number of exchanges that the optimizer has seen; None: none take place


@dataclass(frozen=True)
class AveragedComponents(Algorithm[Any, Any, MixtureWork]):
    """FedEM's settings; weights of clients in the average of a component, and the start of a run."""

    num_components: int = 3
    em_steps: int = 1
    refresh_mixture_at_eval: bool = False
    shuffle_per_component: bool = False
    min_weight: float = 0.0
    most_components: int | None = None
    position_loss: PositionLoss = "mean"
    average: Literal["auto", "samples", "responsibility", "rescaled"] = "auto"
    start: MixtureStart | None = None

    @property
    @abstractmethod
    def num_models(self) -> int:  # type: ignore[override]
        """M."""

    @property
    def message(self) -> MessageSpec:  # type: ignore[override]
        """In the paper every client sends every component, and all clients count in its average."""
        chooses = self.start is not None and self.start.chooses
        return MessageSpec(complete=not (self._by_responsibility or self._sends_some or chooses))

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Mixture weights and their sums over clients need separate noise."""
        return reasons_against(self)

    def settled(self, held: Collection[str]) -> Self:
        """`auto` becomes `samples` if the server may not know π_t or cannot use it."""
        ties = not {"privacy", "robust", "ef21", "average", "deployed"}.isdisjoint(held)
        return self if self.average != "auto" else replace(self, average="samples" if ties else "responsibility")

    def as_stored(self, stored: Mapping[str, Any]) -> Self:
        """Older checkpoints without this setting average by samples."""
        return self if self.average != "auto" else replace(self, average=stored.get("average", "samples"))

    @property
    def server_only(self) -> tuple[str, ...]:  # type: ignore[override]
        """The server's state for the start."""
        return ("kept",) if self._exchanges else ()

    @property
    def _by_responsibility(self) -> bool:
        """A single component is averaged by samples."""
        return self.average in ("auto", "responsibility") and self.num_models > 1

    @property
    def _sends_shares(self) -> bool:
        """Whether messages are `Chosen`, with components averaged separately."""
        return not self.message.complete and self.average != "rescaled"

    @property
    def _sends_some(self) -> bool:
        return self.min_weight > 0 or self.most_components is not None

    @property
    def _exchanges(self) -> bool:
        """Whether the server exchanges components in the start."""
        return self.start is not None and bool(self.start.reports)

    def _share(self, mixture: Tensor) -> Tensor:
        """Weights of a client's components besides its own weight, [M] float64: π_t, or 1 as in the paper."""
        by_use = self._by_responsibility or self.average == "rescaled"
        return (mixture if by_use else torch.ones_like(mixture)).double()

    def shared_init(self, ctx: Context) -> Any:
        """θ_m^0, with the state of the start."""
        shared = super().shared_init(ctx)
        if not self._exchanges:
            return shared
        none = torch.zeros((), dtype=torch.int64, device=ctx.lr.device)
        return StartedModels(shared.models, none, none - 1, self.start.memory(shared.models))  # type: ignore[union-attr]

    def _message(self, ctx: Context, shared: Any, work: MixtureWork, weight: Tensor) -> Message:
        """The components, with the weights for their average; during the start also the client's report."""
        down = torch.full_like(weight, tree.bits(shared.models, ctx.private)) if self._exchanges else None
        if ctx.phase == ASK:
            return Message(work.report, weight, torch.full_like(weight, NUMBER), down)
        message: Message = Message(work.models, weight, bits_down=down)
        if self._sends_shares:
            start = under_way(self.start, ctx, self.num_models)
            some = start is None or not start.chooses  # a start may choose components itself
            taken = work.share * (largest(work.mixture, self.most_components, self.min_weight) if some else 1)
            each = tree.bits(work.models, ctx.private) / self.num_models
            shares = tree.bits(work.mixture) if self._by_responsibility else self.num_models  # one bit for 0 or 1
            bits = (taken > 0).sum(dtype=torch.float64) * each + shares
            message = message._replace(value=choose(work.models, taken), bits_up=bits)
        elif self.average == "rescaled":
            message = message._replace(value=ModelsWithShare(_used(work, shared.models), work.share))
        if work.report:
            message = message._replace(value=Reported(message.value, work.report))
        return message

    def server_step(self, ctx: Context, shared: Any, reduced: Reduced, client_ids: Tensor) -> Any:
        """θ_m <- Σ_t n_t/n θ_m,t (Alg. 1, line 10), or by `average`, over the clients that sent θ_m."""
        start, report = under_way(self.start, ctx, self.num_models), {}
        if self.participation.steps_on_empty_rounds and not reduced.weight:
            return shared if start is None else start.exchanged(ctx, shared, shared.models, {})
        if start is not None and ctx.phase == ASK:
            return start.answered(shared, reduced.value)
        if start is not None and start.asks:  # each component is the model of one client: absent clients do not count
            ctx = ctx._replace(aggregation="renormalised")
        if isinstance(reduced.value, Reported):
            reduced, report = reduced._replace(value=reduced.value.value), reduced.value.report
        if self._sends_shares:
            models = average_chosen(ctx, shared.models, reduced, absent_alike=self._by_responsibility)
        elif self.average == "rescaled":
            alone = start is not None and start.chooses  # a step then depends on the component's clients only
            models = rescaled_average(ctx, shared.models, reduced, 0.0 if alone else LEAST_SHARE)
        else:
            models = server_average(ctx, shared.models, reduced)
        if start is None or not start.reports:
            return shared._replace(models=models)
        return start.exchanged(ctx, shared, models, report)


@dataclass(frozen=True)
class FedEM(AveragedComponents):
    """M component models learned by all clients together; each client learns its own mixture of them.

    Args:
        num_components: M.
        em_steps: E-steps of an unseen client before it is served; the paper takes one. If clients contradict each
            other, ten bring it level with seen clients: docs/results/when-mixtures-help.md.
        refresh_mixture_at_eval: let a seen client take one more E-step before it is served, since its
            weights were fitted to the models of its last round.
        shuffle_per_component: give each component its own order of batches, as the official code does.
        min_weight: minimum weight of a component that a client sends; it always sends the one with the largest weight.
        most_components: maximum number of components that a client sends, by largest weight; null: all.
        position_loss: loss of a sequence in the E-step: the `mean` over its positions, or their `sum`,
            the likelihood of the whole text.
        average: the weight of a client in the average of a component: its `samples`, as in the paper, or the number of
            them that the component explains, Σ_i q_im (`responsibility`), which reveals each π_t to the server.
            `rescaled` is by samples, and the server's step on a component is divided by the component's share of all
            samples, which needs only sums over clients. `auto` is `responsibility`, but `samples` under privacy, robust
            rules and attacks, with EF21 or averages that correct for absent clients, and for clients on separate
            machines: docs/results/fedem-starts.md.
        start: method of the first rounds, such as `Clustering`; null: exact EM from the first round.
    """

    serving_settings = ("em_steps", "refresh_mixture_at_eval")

    def __post_init__(self) -> None:
        most = f"[1, {self.num_components}]"
        check_settings(self, num_components=">= 1", em_steps=">= 1", min_weight="[0, 1]", most_components=most)
        if self.average == "rescaled" and self._sends_some:
            raise ConfigError(
                "--model.algorithm.average is rescaled, for which clients send all components; leave out "
                "--model.algorithm.min_weight and --model.algorithm.most_components, or give responsibility"
            )

    @property
    def num_models(self) -> int:  # type: ignore[override]
        return self.num_components

    @property
    def participation(self) -> Participation:  # type: ignore[override]
        """A try of `Restarts` ends with its last round, also without clients."""
        return Participation(steps_on_empty_rounds=self.start is not None and self.start.counts_empty_rounds)

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> MixtureState | StartedMixture:
        """π_t starts uniform."""
        uniform = torch.full((self.num_components,), 1 / self.num_components, dtype=ctx.task.dtype)
        return StartedMixture(uniform, shared.exchanges.clone()) if self._exchanges else MixtureState(uniform)  # type: ignore[attr-defined]

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """One phase; each component gets separate batches if requested."""
        streams = self.num_components if self.shuffle_per_component else 1
        start, work = under_way(self.start, ctx, self.num_models), ctx.solver.work._replace(batches_per_step=streams)
        if start is None:
            return (Phase("train", client_ids, work),)
        ask = (Phase(ASK, client_ids, LocalWork()),) if start.asks else ()
        return (*ask, Phase("train", client_ids, start.work(work)))

    def shared_losses(self, ctx: Context, shared: GlobalModels, batch: Batch) -> Tensor:
        """ℓ(θ_m; s) of each sample s under each received component, [B, M] (evaluation mode)."""
        return ctx.task.losses_of(shared.models, batch.x, batch.y)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: MixtureState, data: ClientData, losses: Tensor
    ) -> MixtureWork:
        """The E-step and the new mixture weights, both from the received components (Alg. 1, lines 5-6; Eq. 8-9)."""
        factors, mixture = num_factors(ctx.task, data, self.position_loss), mixture_of(shared, state)
        pi, q, negative_log_likelihood = private_expectation(ctx, mixture, losses, data, factors)
        unseen = data.client_id >= ctx.num_clients  # a seen client takes one E-step
        for _ in range(self.em_steps - 1 if ctx.phase == "adapt" else 0):
            more = expectation(pi, losses, counted_rows(ctx.task, data), factors)
            pi, q = (torch.where(unseen, new, old) for new, old in zip(more[:2], (pi, q), strict=True))
        optimizer = ctx.solver.init(shared.models)
        seen = getattr(state, "exchanges", None)
        work = MixtureWork(shared.models, optimizer, pi, q, negative_log_likelihood, self._share(pi), {}, seen)
        return opened(self, ctx, shared, work, mixture, losses, data, factors)

    def client_step(self, ctx: Context, shared: GlobalModels, work: MixtureWork, batch: Batch) -> MixtureWork:
        """A step of every component on its weighted loss (Alg. 1, line 7: LocalSolver(m, θ_m, q_t, S_t))."""
        weight, work = batch_weights(work.responsibility, batch), without_old_moments(ctx, shared, work)
        models, optimizer = ctx.solver.step_without_loss(
            ctx.task, work.models, work.optimizer, batch, ctx.lr, weight=weight
        )
        return work._replace(models=models, optimizer=optimizer)

    def client_final(self, ctx: Context, shared: GlobalModels, work: MixtureWork, data: ClientData) -> ClientResult:
        """Send the components with weight n_t, or n_t π_tm (Alg. 1, line 8); q_t stays at the client."""
        message, state = self._message(ctx, shared, work, ctx.client_weight(data)), MixtureState(work.mixture)
        if self._exchanges:
            seen = work.exchanges if ctx.phase == ASK else shared.exchanges  # type: ignore[attr-defined]
            state = StartedMixture(work.mixture, seen)  # type: ignore[assignment, arg-type]
        return ClientResult(message, state, {} if ctx.phase == ASK else {"loss": work.loss})

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """An E-step and no local steps: for unseen clients, and for seen ones if requested."""
        return LocalWork() if self.refresh_mixture_at_eval or not seen else None

    def log_prob(self, ctx: Context, shared: GlobalModels, state: MixtureState, x: Tensor, outputs: Tensor) -> Tensor:
        """Log Σ_m π_tm p(y | x, θ_m), [B, C]: probabilities are mixed, not logits."""
        return ctx.task.mix(mixture_of(shared, state), outputs)


def mixture_of(shared: Any, state: Any) -> Tensor:
    """π_t; uniform if it was fitted to the components before an exchange."""
    if not isinstance(state, StartedMixture):
        return state.mixture  # type: ignore[no-any-return]
    return torch.where(state.exchanges == shared.exchanges, state.mixture, 1 / len(state.mixture))


def without_old_moments(ctx: Context, shared: Any, work: MixtureWork) -> MixtureWork:
    """The work with a fresh optimizer, if the stored one predates an exchange of components."""
    if work.exchanges is None or not ctx.solver.persist_optimizer:
        return work
    kept = work.exchanges == shared.exchanges
    optimizer = tree.map_leaves(lambda leaf: torch.where(kept, leaf, 0), work.optimizer)
    return work._replace(optimizer=optimizer, exchanges=shared.exchanges)


def opened(
    algorithm: AveragedComponents, ctx: Context, shared: Any, work: MixtureWork, mixture: Tensor, losses: Tensor,
    data: ClientData, num_factors: int | Tensor,
) -> MixtureWork:  # fmt: skip
    """The work with the E-step of the start, during its rounds, from the old π_t."""
    start = under_way(algorithm.start, ctx, algorithm.num_models)
    if start is None:
        return work
    opening = pi, q, share = start.opening(ctx, shared, mixture, losses, data, num_factors)
    report = start.report(ctx, opening, losses, data, work.loss)
    share = algorithm._share(pi) if share is None else share.double()
    return work._replace(mixture=pi, responsibility=q, share=share, report=report)


def reasons_against(algorithm: AveragedComponents) -> dict[str, str]:
    """Features that averages and starts exclude → the reason and the fix, see `Algorithm.incompatible`."""
    start, reasons = algorithm.start, {"noise_in_steps_alone": "the mixture weights"}
    named = f"--model.algorithm.start {type(start).__name__}"
    other = "give --model.algorithm.start Annealing or null"
    if start is not None:
        reasons["noise_in_steps"] = f"{named}; give --model.algorithm.start null"
    if algorithm._sends_some:
        some = "averages a component over the clients that send it"
        fix = "leave out --model.algorithm.min_weight and --model.algorithm.most_components"
        reasons |= dict.fromkeys(("privacy", "ef21"), f"{some}; {fix}")
    if start is not None and start.chooses:
        told = f"lets each client choose which components it sends by {named}; {other}"
        reasons |= dict.fromkeys(("privacy", "deployment", "ef21"), told)
    if start is not None and start.reports:
        told = f"reports {start.reports} to the server by {named}; {other}"
        reasons |= dict.fromkeys(("privacy", "secure_sums", "robust", "deployment"), told)
        reasons["local_norm"] = f"exchanges components by {named}, whose normalisation clients would keep; {other}"
        reasons["personal_parts"] = f"exchanges components by {named}, whose personal parts clients would keep; {other}"
    if algorithm._by_responsibility or algorithm.average == "rescaled":
        weighs = "averages by mixture weights that each client sends; give --model.algorithm.average samples or auto"
        reasons |= dict.fromkeys(("privacy", "robust", "deployment"), weighs)
        reasons |= {"ef21": weighs} if algorithm._by_responsibility else {}
    return reasons


def _used(work: MixtureWork, received: ModelState) -> ModelState:
    """The trained components that the client uses, and the received values of the others."""

    def use(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(work.share.view(-1, *[1] * (old.ndim - 1)) > 0, new, old)

    return tree.map_leaves(use, work.models, received)  # type: ignore[no-any-return]


def rescaled_average(ctx: Context, models: ModelState, reduced: Reduced, least: float = LEAST_SHARE) -> ModelState:
    """The server's models plus their mean change, divided by each component's share of all samples.

    Args:
        ctx: the context.
        models: the server's models, leaves [M, ...].
        reduced: the mean of messages `ModelsWithShare`.
        least: minimum share to divide by; a component of share 0 is unchanged.
    """
    share = reduced.value.share.clamp(min=least)
    factor = torch.where(share > 0, 1 / share, 0.0)
    average = server_average(ctx, models, reduced._replace(value=reduced.value.models))

    def moved(new: Tensor, old: Tensor) -> Tensor:
        change: Tensor = (new.double() - old.double()) * factor.view(-1, *[1] * (old.ndim - 1))
        return old.double() + change

    return cast_like(tree.map_leaves(moved, average, models), models)  # type: ignore[no-any-return]
