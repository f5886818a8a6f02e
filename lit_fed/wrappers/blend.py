"""Stacking: each client is served by a mixture of the predictions of several trained algorithms.

Wolpert. "Stacked Generalization". Neural Networks 5(2), 1992. Of predictive distributions: Yao, Vehtari, Simpson,
Gelman. "Using Stacking to Average Bayesian Predictive Distributions". Bayesian Analysis 13(3), 2018.
https://doi.org/10.1214/17-BA1091. With weights of each group around common ones: Yao, Pirš, Vehtari, Gelman. "Bayesian
Hierarchical Stacking". Bayesian Analysis 17(4), 2022.

    p_t(y | x) = Σ_k w_tk·p_k(y | x; client t)
    w_t  <- (a·w̄ + Σ_i q_i) / (a + n_t),  q_ik ∝ w_tk·p_k(y_i | x_i)   until it stays: the posterior mode of the weights
            on n_t samples that trained none of the candidates, with the prior w̄, worth a samples

Symbols:
    w_t   -> state.mixture     weights of client t, [K], sum to 1
    w̄     -> shared.prior      weights of the seen clients' samples together, [K]
    σ_k²  -> shared.spread     of real numbers: variance of the errors of candidate k; of two classes: the temperature
                               by which its logits are divided; else 1; [K]
    p_k   -> candidates        what candidate k predicts as it serves the client by itself
Deviations:
    `lit-fed blend` takes the a of a few that predicts held-out samples best, in place of a distribution of w_t.
    A seen client's weights are found once, on its validation samples. An unseen client has none: its training samples
    are divided into folds, and each candidate predicts a fold after it adapted to the others; then it adapts to all.
    Of real numbers, p_k is normal with a variance of each client, shrunk to σ_k² as by `PRIOR_ERRORS` errors.
    Weights below `LEAST` are 0.
    If a run is private, nothing is estimated from the samples of several clients: w̄ is uniform and worth one sample,
    temperatures are 1, and variances are shrunk to the client's mean over candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import Algorithm, MessageSpec, ranged
from lit_fed.core.context import Context
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.e_step import expectation
from lit_fed.core.targets import Binary, Multiclass, Regression, Target
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, Phase, Reduced, Stage, Tree
from lit_fed.errors import ConfigError
from lit_fed.wrappers.feature import Feature

__all__ = [
    "Blend",
    "BlendShared",
    "BlendState",
    "Candidate",
    "errors_of",
    "held_out",
    "negative_log_likelihood",
    "stacked",
    "why_not",
]

E_STEPS = 100
"""Steps to the weights of a client."""

PRIOR_ERRORS = 5.0
"""Errors that the common variance of a candidate counts for in the variance of a client."""


FOLDS = 5
"""Parts of a client's validation samples: each is predicted with weights of the others, for evidence."""

LEAST = 0.01
"""Weight below which a candidate does not serve a client: neither its predictions nor its exported program."""


@dataclass(frozen=True)
class Candidate:
    """A trained algorithm, and how clients adapt before it serves them.

    Args:
        algorithm: the algorithm.
        solver: the solver of the adaptation.
        serving: fine-tuning of the models that serve a client.
        name: name of its weights in tables and figures.
    """

    algorithm: Algorithm
    solver: LocalSolver
    serving: FineTuning = FineTuning()  # noqa: RUF009 - frozen
    name: str = ""

    @property
    def serves_without_samples(self) -> bool:
        """Whether it can serve a client that has none to adapt on; `Local` has no model for it."""
        adapts = type(self.algorithm).adapt_work is not Algorithm.adapt_work
        return bool(self.algorithm.without_samples) or not adapts

    @property
    def served(self) -> Any:
        """The algorithm with its fine-tuning."""
        if not self.serving.fine_tune_epochs:
            return self.algorithm
        from lit_fed.wrappers.serving.wrapper import FineTuned  # which may be absent

        return FineTuned(self.algorithm, self.serving)


class BlendShared(NamedTuple):
    """Shared state: that of each candidate, and what all clients' weights have in common."""

    each: tuple[Any, ...]
    prior: Tensor  # w̄, [K]
    spread: Tensor  # σ_k², or the temperature, [K]


class BlendState(NamedTuple):
    """A client's state."""

    each: tuple[Any, ...]  # its state under each candidate
    mixture: Tensor  # w_t, [K]


class NewState(NamedTuple):
    """State of an unseen client whose weights are to be found."""

    each: tuple[Any, ...]
    without: tuple[tuple[Any, ...], ...]  # [folds][K] states after adapting without each fold; () before
    mixture: Tensor  # w̄, [K]


class Kept(NamedTuple):
    """Work of a candidate that serves a seen client as it is."""

    state: Any


class BlendWork(NamedTuple):
    """A client's adaptation: the work of each candidate on all samples, and without each fold."""

    each: tuple[Any, ...]  # K
    without: tuple[tuple[Any, ...], ...]  # [folds][K]; () for a seen client
    mixture: Tensor  # [K]


@dataclass(frozen=True)
class Blend(Algorithm[BlendShared, Any, BlendWork]):
    """A mixture of finished runs for each client; `lit-fed blend` makes it, and no round trains it.

    Args:
        candidates: the algorithms of the runs, with their solvers.
        is_private: some run was private, so that only their owner may read files with results of clients.
        prior_weight: samples that the common weights count for in the weights of a client.
        folds: parts of an unseen client's training samples, each predicted after adapting to the others.
    """

    candidates: list[Candidate]
    is_private: bool = False
    prior_weight: float = ranged(1.0, ">= 0")
    folds: int = ranged(5, ">= 2")

    message = MessageSpec("nothing")
    serving_settings = ("prior_weight", "folds")

    @property
    def num_models(self) -> int:  # type: ignore[override]
        return len(self.candidates)

    @property
    def without_samples(self) -> str:  # type: ignore[override]
        return "the common weights of the blend" * any(one.serves_without_samples for one in self.candidates)

    @property
    def state_reads_data(self) -> bool:  # type: ignore[override]
        return any(one.served.state_reads_data for one in self.candidates)

    def contexts(self, ctx: Context) -> list[Context]:
        """The context of each candidate, with its solver and its rate of adaptation."""
        solvers = [one.solver.given for one in self.candidates]
        rates = [one.lr_in("adapt", ctx.round_idx, ctx.num_rounds).to(ctx.lr.device) for one in solvers]
        each = zip(solvers, rates, strict=True)
        return [ctx._replace(solver=solver, lr=rate * ctx.lr_factor) for solver, rate in each]

    # ------------------------------------------------------------------ start
    def shared_init(self, ctx: Context) -> BlendShared:
        """Untrained candidates without weights, which those of the runs replace."""
        each = zip(self.candidates, self.contexts(ctx), strict=True)
        zeros = torch.zeros(len(self.candidates), dtype=ctx.task.dtype)
        return BlendShared(tuple(one.served.shared_init(own) for one, own in each), zeros, zeros)

    def state_init(self, ctx: Context, shared: BlendShared, data: ClientData) -> BlendState | NewState:
        """The state under each candidate, with the common weights."""
        each = zip(self.candidates, self.contexts(ctx), shared.each, strict=True)
        states = tuple(one.served.state_init(own, part, data) for one, own, part in each)
        return NewState(states, (), shared.prior) if ctx.phase == "adapt" else BlendState(states, shared.prior)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """A round in which nothing changes."""
        return (Phase("keep", client_ids, LocalWork()),)

    def server_step(self, ctx: Context, shared: BlendShared, reduced: Reduced, client_ids: Tensor) -> BlendShared:
        """The same state.

        Raises:
            ConfigError: if the candidates are not those of runs.
        """
        if not shared.prior.any():
            raise ConfigError("Blend trains nothing: `lit-fed blend` makes it of finished runs; give another algorithm")
        return shared

    # ------------------------------------------------------------------ serving a client
    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """That of each candidate, as stages; an unseen client adapts as often without each fold."""
        works = [one.served.adapt_work(own, seen) for one, own in zip(self.candidates, self.contexts(ctx), strict=True)]
        if seen and not any(works):
            return None
        return self.staged(works, 0 if seen else self.folds)

    @property
    def tune_work(self) -> LocalWork | None:
        """That of each candidate, likewise; seen clients take no steps in the stages of folds."""
        works = [one.served.tune_work for one in self.candidates]
        return self.staged(works, self.folds) if any(works) else None

    def staged(self, works: list[LocalWork | None], folds: int) -> LocalWork:
        """The work of each candidate, and as often without each fold."""
        stages = tuple(
            Stage(f"{fold}/{k}/{name}", work.epochs, work.steps, work.is_whole)
            for fold in range(folds + 1)
            for k, whole in enumerate(works)
            for name, work in (LocalWork() if whole is None else whole).by_stage
            if work.trains
        )
        return LocalWork(stages=stages) if stages else LocalWork()

    def client_init(
        self, ctx: Context, shared: BlendShared, state: BlendState | NewState, data: ClientData, losses: None
    ) -> BlendWork:
        """Each candidate's start of adapting, on all samples, and for an unseen client without each fold."""
        seen, without = isinstance(state, BlendState), tuple[tuple[Any, ...], ...]()
        if isinstance(state, NewState):
            starts = state.without or (state.each,) * self.folds
            parts = ((one, self.outside(data, fold)) for fold, one in enumerate(starts, 1))
            without = tuple(self.begun(ctx, shared, one, part, seen=seen) for one, part in parts)
        return BlendWork(self.begun(ctx, shared, state.each, data, seen=seen), without, state.mixture)

    def begun(
        self, ctx: Context, shared: BlendShared, states: tuple[Any, ...], data: ClientData, *, seen: bool
    ) -> tuple[Any, ...]:
        """The work of each candidate; one that does not adapt, or is not tuned, keeps its state."""
        works: list[Any] = []
        for one, own, part, state in zip(self.candidates, self.contexts(ctx), shared.each, states, strict=True):
            work = one.served.tune_work if ctx.tunes else one.served.adapt_work(own, seen)
            if work is None or ctx.phase != "adapt":
                works.append(Kept(state))
                continue
            losses = one.served.shared_losses(own, part, data.batch) if one.served.reads_losses else None
            works.append(one.served.client_init(own, part, state, data, losses))
        return tuple(works)

    def client_step(self, ctx: Context, shared: BlendShared, work: BlendWork, batch: Batch) -> BlendWork:
        """A step of the candidate whose stage it is."""
        fold, k, name = ctx.stage.split("/", 2)
        if int(fold) > len(work.without):  # a seen client
            return work
        works, place = [list(one) for one in (work.each, *work.without)], int(k)
        if int(fold):
            batch = batch._replace(mask=batch.mask * (self.fold_of(batch.index) != int(fold)))
        own = self.contexts(ctx)[place]._replace(stage=name)
        algorithm, before = self.candidates[place].served, works[int(fold)][place]
        works[int(fold)][place] = algorithm.client_step(own, shared.each[place], before, batch)
        return work._replace(each=tuple(works[0]), without=tuple(map(tuple, works[1:])))

    def client_final(self, ctx: Context, shared: BlendShared, work: BlendWork, data: ClientData) -> ClientResult:
        """The states that serve the client, and the weights of an unseen one."""
        each = self.adapted(ctx, shared, work.each, data)
        without = tuple(
            self.adapted(ctx, shared, one, self.outside(data, fold)) for fold, one in enumerate(work.without, 1)
        )
        state: BlendState | NewState = BlendState(each, work.mixture)
        if without and not ctx.tunes and self.tune_work is not None:
            state = NewState(each, without, work.mixture)
        elif without:
            state = BlendState(each, self.weights(ctx, shared, without, data))
        return ClientResult(Message((), data.num_samples), state, {})

    def weights(self, ctx: Context, shared: BlendShared, without: tuple[Any, ...], data: ClientData) -> Tensor:
        """Weights of an unseen client by its samples, each predicted without its fold.

        Without samples they are the common ones, of the candidates that can serve such a client.
        """
        rows = self.fold_of(torch.arange(len(data.mask), device=data.mask.device))
        nothing = (None,) * len(self.candidates)
        outputs = [self.outputs(ctx, shared, states, data.x, nothing) for states in without]
        found = outputs[0]
        for fold, one in enumerate(outputs, 1):
            found = torch.where((rows == fold).view(-1, *[1] * (found.ndim - 1)), one, found)
        losses = negative_log_likelihood(ctx.task.target, found, data.y, data.mask, shared.spread)
        able = torch.tensor([one.serves_without_samples for one in self.candidates], device=losses.device)
        common = shared.prior * able
        weights = stacked(losses, data.mask, shared.prior, self.prior_weight)
        return torch.where(data.mask.sum() > 0, weights, common / common.sum())

    def adapted(self, ctx: Context, shared: BlendShared, works: tuple[Any, ...], data: ClientData) -> tuple[Any, ...]:
        """The state under each candidate after its work."""
        each = zip(self.candidates, self.contexts(ctx), shared.each, works, strict=True)
        return tuple(
            work.state if isinstance(work, Kept) else one.served.client_final(own, part, work, data).state
            for one, own, part, work in each
        )

    def shared_outputs(self, ctx: Context, shared: BlendShared, x: Tensor) -> tuple[Tree | None, ...]:
        each = zip(self.candidates, self.contexts(ctx), shared.each, strict=True)
        return tuple(one.served.shared_outputs(own, part, x) for one, own, part in each)

    def log_prob(self, ctx: Context, shared: BlendShared, state: BlendState, x: Tensor, outputs: Any) -> Tensor:
        """Log Σ_k w_tk·p_k(y | x), or the mean of the predictions."""
        found = self.outputs(ctx, shared, state.each, x, outputs)
        return ctx.task.mix(state.mixture, calibrated(ctx.task.target, found, shared.spread))

    def outputs(self, ctx: Context, shared: BlendShared, states: Any, x: Tensor, given: Any) -> Tensor:
        """What each candidate predicts, as outputs of a network, [B, K, ...]."""
        parts = zip(self.candidates, self.contexts(ctx), shared.each, states, given, strict=True)
        each = []
        for one, own, part, state, known in parts:
            known = one.served.shared_outputs(own, part, x) if known is None else known
            each.append(ctx.task.target.as_outputs(one.served.log_prob(own, part, state, x, known)))
        return torch.stack(each, 1)

    # ------------------------------------------------------------------ folds
    def fold_of(self, index: Tensor) -> Tensor:
        """The fold of each sample, from 1."""
        return index % self.folds + 1

    def outside(self, data: ClientData, fold: int) -> ClientData:
        """The samples without those of a fold."""
        index = torch.arange(len(data.mask), device=data.mask.device)
        return data._replace(mask=data.mask * (self.fold_of(index) != fold))

    # ------------------------------------------------------------------ clients on separate machines
    def sent(self, ctx: Context, shared: BlendShared, client_id: int) -> Tree:
        each = zip(self.candidates, self.contexts(ctx), shared.each, strict=True)
        return shared._replace(each=tuple(one.served.sent(own, part, client_id) for one, own, part in each))

    def received(self, ctx: Context, sent: Tree, client_id: int) -> BlendShared:
        each = zip(self.candidates, self.contexts(ctx), sent.each, strict=True)
        parts = tuple(one.served.received(own, part, client_id) for one, own, part in each)
        return sent._replace(each=parts)  # type: ignore[no-any-return]


def why_not(features: Iterable[Feature], target: Target, task: Task) -> str:
    """Why no blend serves a run, in words; "" if one does.

    Args:
        features: of the run.
        target: of the run.
        task: of the run.
    """
    if others := [type(one).__name__ for one in features if not (one.only_serves or one.acts_on_messages)]:
        return f"has {', '.join(others)}, which no blend serves; give runs without"
    if task.own is not None:
        return "trains a module by its own steps, which no blend serves; give runs whose network has none"
    if not isinstance(target, Binary | Multiclass | Regression):
        return f"has labels that are {target.name}; blends are made of classes and of single real numbers"
    return ""


def calibrated(target: Target, outputs: Tensor, spread: Tensor) -> Tensor:
    """Outputs [B, K, ...] whose logits are divided by the temperatures [K] of the candidates."""
    return outputs / spread.view(-1, *[1] * (outputs.ndim - 2)) if target.kind == "binary" else outputs


def errors_of(target: Target, outputs: Tensor, y: Tensor) -> Tensor:
    """−log p_k of each sample, [B, K], from outputs [B, K, ...]; of real numbers half the squared error."""
    return target.losses(outputs, target.for_models(y.unsqueeze(1), outputs))


def negative_log_likelihood(target: Target, outputs: Tensor, y: Tensor, mask: Tensor, spread: Tensor) -> Tensor:
    """−log p_k(y | x) of each sample of a client, [N, K], up to a constant.

    Args:
        target: the target.
        outputs: what each candidate predicts, [N, K, ...].
        y: labels [N, ...].
        mask: 1 for a sample, [N].
        spread: variance or temperature of each candidate, [K]; of variances 0: the client's mean over candidates.
    """
    errors = errors_of(target, calibrated(target, outputs, spread), y)
    if not target.continuous:
        return errors
    rows = mask.unsqueeze(1).to(errors)
    values = math.prod(y.shape[1:])
    squares = 2 * (errors * rows).sum(0) / values
    usual = torch.where(spread > 0, spread, squares.mean() / rows.sum().clamp(min=1))
    variance = (squares + PRIOR_ERRORS * usual).clamp(min=1e-30) / (rows.sum() + PRIOR_ERRORS)
    return errors / variance + values / 2 * variance.log()


def stacked(losses: Tensor, mask: Tensor, prior: Tensor, prior_weight: float | Tensor) -> Tensor:
    """Weights of the candidates for a client, [K]: the mode of their posterior, without those below `LEAST`.

    Args:
        losses: −log p_k of each sample, [N, K].
        mask: 1 for a sample, [N].
        prior: w̄, [K].
        prior_weight: samples that the prior counts for.

    Example:
        >>> losses, equal = torch.tensor([[0.1, 2.0], [0.2, 3.0]]), torch.tensor([0.5, 0.5])
        >>> [round(value, 2) for value in stacked(losses, torch.ones(2), equal, 1.0).tolist()]
        [0.82, 0.18]
    """
    number = mask.sum()
    weights = prior
    for _ in range(E_STEPS):
        found, _, _ = expectation(weights, losses, mask)
        weights = (prior_weight * prior + number * found) / (prior_weight + number).clamp(min=1e-30)
    weights = torch.where(number + prior_weight > 0, weights, prior)
    kept = weights * (weights >= weights.max().clamp(max=LEAST))
    return kept / kept.sum().clamp(min=1e-30)


def held_out(target: Target, outputs: Tensor, y: Tensor, prior: Tensor, spread: Tensor, strengths: Tensor) -> Tensor:
    """Losses of a client's samples, each under a blend by samples of the other folds, [S, n].

    Args:
        target: the target.
        outputs: of the candidates, [n, K, ...].
        y: labels, [n].
        prior: of the weights, [K].
        spread: variance or temperature of each candidate, [K].
        strengths: samples that the prior counts for, [S].
    """
    fold = torch.arange(len(y)) % FOLDS
    others = (fold != torch.arange(min(FOLDS, len(y))).unsqueeze(1)).to(outputs)  # [folds, n]

    def weights(strength: Tensor, mask: Tensor) -> Tensor:
        return stacked(negative_log_likelihood(target, outputs, y, mask, spread), mask, prior, strength)

    each = torch.vmap(torch.vmap(weights, (None, 0)), (0, None))(strengths, others)[:, fold]  # [S, n, K]
    rows = calibrated(target, outputs, spread).unsqueeze(1)  # [n, 1, K, ...]
    mixed = [torch.vmap(target.mix)(one, rows)[:, 0] for one in each]
    return torch.stack([target.score(one, y)[0] for one in mixed])
