"""L2GD: personal models pulled towards their mean at random times; L2SGD with stochastic gradients, L2SGD+ with
variance reduction.

Hanzely, Richtárik. "Federated Learning of a Mixture of Global and Local Models". 2020.
https://arxiv.org/abs/2002.05516, Algorithms 1 and 2. It minimises 1/N Σ f_i(x_i) + λ/2N Σ ‖x_i − x̄‖².

Symbols:
    x_i     -> state.models   the model of client i, leaves [1, ...]
    x̄       -> shared.models  the mean model as of the last averaging, leaves [1, ...]
    λ, p, α -> prox_weight, communication_probability, solver.lr
    ξ       -> _coins         1: an averaging step, 0: a local step
    J_i     -> state.table    last gradient of each training sample of client i (L2SGD+), leaves [S, ...]; m of them
    Ψ_i     -> state.shift    λ(x_i − x̄) of its last averaging step (L2SGD+), leaves [1, ...]
Deviations:
    Ours: a round is `flips_per_round` flips of the coin, in place of the solver's epochs or steps; stochastic gradients
    take shuffled samples; only sampled clients take a round's steps, and x̄ is their mean.
    L2SGD+ draws one sample with replacement. Ours: a shuffled batch, over which ∇f_ij − J_ij is averaged. Clients keep
    J_i and Ψ_i, which the server does not need; an averaging step moves x̄, so each sends a new mean.
    Ours: an unseen client starts from x̄ and takes the solver's local work on f_i(x) + λ/2·‖x − x̄‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, LocalRun, Participation, Personal, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.seeds import generator
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError

__all__ = ["L2GD", "L2GDState", "L2SGDPlus", "VarianceReducedState"]


class L2GDState(NamedTuple):
    """A client's state."""

    models: ModelState  # x_i, leaves [1, ...]
    loss: Tensor  # [] mean loss of its last local steps; the metric of phases without any


@dataclass(frozen=True)
class L2GD(Personal[GlobalModels, L2GDState, LocalRun]):
    """Each coin flip is a gradient step of all clients on their models, or a step of all towards the mean.

    Args:
        communication_probability: p, the probability of an averaging step; 0 never averages, 1 takes no local step.
        prox_weight: λ, strength of the pull towards the mean.
        flips_per_round: flips of the coin in one round.
        gradient: `full` takes all local samples in a local step (L2GD), `stochastic` a batch (L2SGD).
        scaling: `paper` takes local steps of α/(N(1−p)) and averaging steps of γ = αλ/(Np), so the learning rate must
            be about N times that of other algorithms; `slides` omits N, for the sum over clients.
    """

    communication_probability: float = ranged(0.1, "[0, 1]")
    prox_weight: float = ranged(1.0, ">= 0")
    flips_per_round: int = ranged(1, "[1, 1000000]")
    gradient: Literal["full", "stochastic"] = "full"
    scaling: Literal["paper", "slides"] = "paper"

    participation = Participation(weighting="uniform", fills_in_absent=False)

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Noise covers one average a round; steps of the loss and of the penalty share a rate."""
        one_rate = {"client_lr": "moves all clients towards their mean at one rate"}
        reason = "averages the same clients several times a round with flips_per_round"
        return one_rate | {"privacy": reason} if self.flips_per_round > 1 else one_rate

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> L2GDState:
        """x_i starts as x̄, which is the same initial model for all."""
        return L2GDState(shared.models, torch.zeros((), dtype=ctx.task.dtype))

    def phases(self, ctx: Context, client_ids: Tensor) -> list[Phase]:
        """Consecutive local steps are one phase; the mean is requested only if a local step has changed it since."""
        self._check_pull(ctx)
        local = ctx.solver.work._replace(epochs=None, batch_size=0 if self.gradient == "full" else None)
        # except by chance: requests for the mean must not depend on the participants
        everyone = ctx.sampling_probability == 1 and sorted(client_ids.tolist()) == list(range(ctx.num_clients))
        known = everyone and (ctx.round_idx == 0 or self._coins(ctx, ctx.round_idx - 1)[-1])
        found: list[Phase] = []
        for position, (averaging, flips) in enumerate(groupby(self._coins(ctx, ctx.round_idx))):
            count = len(list(flips))
            names = self._averaging_names(count, known) if averaging else ["local"]
            work = LocalWork() if averaging else local._replace(steps=count)
            found += [Phase(f"{name}/{position}", client_ids, work) for name in names]
            known = averaging
        return found

    def _averaging_names(self, count: int, known: bool) -> list[str]:
        return ["average"] * (not known) + ["pull"] * count

    def _coins(self, ctx: Context, round_idx: int) -> list[bool]:
        draws = generator(ctx.seed, round_idx, 0, "l2gd").random(self.flips_per_round)
        return (draws < self.communication_probability).tolist()  # type: ignore[no-any-return]

    def _divisor(self, ctx: Context, probability: float) -> float:
        """Divisor of α in a step with this probability."""
        return probability * (ctx.num_clients if self.scaling == "paper" else 1)

    def _check_pull(self, ctx: Context) -> None:
        """Refuse γ > 1: an averaging step would overshoot the mean."""
        most = self._divisor(ctx, self.communication_probability)
        if 0 < most * (1 + 1e-9) < ctx.solver.rate * self.prox_weight:
            raise ConfigError(
                f"--model.algorithm.prox_weight is {self.prox_weight}, which throws models past their mean; give at "
                f"most {most / ctx.solver.rate:.4g}, or a --model.solver.lr of at most {most / self.prox_weight:.4g}"
            )

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: L2GDState, data: ClientData, losses: None
    ) -> LocalRun:
        """Local steps go on from x_i; an averaging step is x_i ← (1 − γ)x_i + γx̄."""
        run = local_run(ctx, state.models)
        if ctx.phase.startswith("pull"):
            gamma = ctx.lr * self.prox_weight / self._divisor(ctx, self.communication_probability)
            run = run._replace(models=tree.lerp(state.models, shared.models, gamma))
        return run._replace(loss=state.loss) if ctx.phase.startswith(("average", "pull")) else run

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """x_i ← x_i − α/(N(1 − p))·∇f_i(x_i)."""
        adapts = ctx.phase == "adapt"  # on the client's part of the objective
        lr = ctx.lr / self._divisor(ctx, 1.0 if adapts else 1 - self.communication_probability)
        penalty = Penalty(self.prox_weight, shared.models.parameters) if adapts else None
        return local_step(ctx._replace(lr=lr), work, batch, penalty=penalty)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Keep x_i; for averaging it is sent, and x̄ is returned."""
        loss, n = work.loss / work.steps.clamp(min=1), ctx.client_weight(data)
        message = Message(work.models, n) if ctx.phase.startswith("average") else Message((), n, 0 * n, 0 * n)
        return ClientResult(message, L2GDState(work.models, loss), {"loss": loss})

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """x̄ ← 1/N Σ x_i, which averaging steps do not change."""
        return super().server_step(ctx, shared, reduced, client_ids) if ctx.phase.startswith("average") else shared

    def sent(self, ctx: Context, shared: GlobalModels, client_id: int) -> GlobalModels:
        """Nothing for local steps."""
        return GlobalModels(ModelState({}, {})) if ctx.phase.startswith("local") else shared


class VarianceReducedState(NamedTuple):
    """A client's state in L2SGD+."""

    models: ModelState  # x_i, leaves [1, ...]
    loss: Tensor  # [] mean loss of its last local steps
    table: Leaves  # J_i, leaves [S, ...], S the training samples of the largest client
    shift: Leaves  # Ψ_i, leaves [1, ...]


@dataclass(frozen=True)
class L2SGDPlus(L2GD):
    """L2SGD with control variates for both kinds of steps, which converges to the minimiser at a constant rate.

    A client keeps a gradient for each of its training samples, which takes as much memory as that many models.

    Args:
        gradient: `stochastic` takes a batch in a local step, `full` all local samples.
    """

    gradient: Literal["full", "stochastic"] = "stochastic"

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """The table of gradients persists beyond the steps that example-level privacy protects."""
        reasons = {
            "noise_in_steps": "the samples' gradients",
            "personal_parts": "keeps gradients of whole models",
            "local_norm": "needs a gradient of each sample by itself",
        }
        return super().incompatible | reasons

    def shared_init(self, ctx: Context) -> GlobalModels:
        """x̄; networks without per-sample gradients are refused."""
        if not ctx.task.same_in_training:
            raise ConfigError(
                f"L2SGDPlus needs the gradient of each sample by itself, and {type(ctx.task.network).__name__} is "
                "another function for every batch or pass, by its BatchNorm, running statistics or dropout; choose a "
                "--model.network without these, or L2GD"
            )
        return super().shared_init(ctx)

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> Any:
        """x_i = x̄, J_i = 0 and Ψ_i = 0."""
        zeros, size = tree.zeros_like(shared.models.parameters), max(ctx.most_samples, 1)
        table = tree.map_leaves(lambda leaf: leaf.new_zeros(size, *leaf.shape[1:]), zeros)
        return VarianceReducedState(*super().state_init(ctx, shared, data), table, zeros)

    def _averaging_names(self, count: int, known: bool) -> list[str]:
        return ["average", "pull"] * count

    def client_init(self, ctx: Context, shared: GlobalModels, state: Any, data: ClientData, losses: None) -> Any:
        """An averaging step is x_i ← (1 − γ)x_i + γx̄ + α/N·((1/p − 1)Ψ_i − J̄_i); then Ψ_i ← λ(x_i − x̄) of before."""
        run = super().client_init(ctx, shared, state, data, losses)
        if not ctx.phase.startswith("pull"):
            return run._replace(extra=(state.table, state.shift, data.num_samples))
        known = tree.scale(state.shift, 1 / self.communication_probability - 1)
        step = tree.scale(
            tree.sub(known, _mean_gradient(state.table, data.num_samples)), ctx.lr / self._divisor(ctx, 1.0)
        )
        away = tree.sub(state.models.parameters, shared.models.parameters)
        models = run.models._replace(parameters=tree.add(run.models.parameters, step))
        extra = state.table, tree.scale(away, self.prox_weight), data.num_samples
        return run._replace(models=models, extra=extra)

    def client_step(self, ctx: Context, shared: GlobalModels, work: Any, batch: Batch) -> Any:
        """x_i ← x_i − α/N·((∇f_ij(x_i) − J_ij)/(1 − p) + J̄_i + Ψ_i), j in the batch; then J_ij ← ∇f_ij(x_i)."""
        if ctx.phase == "adapt":
            return super().client_step(ctx, shared, work, batch)
        (table, shift, num_samples), (loss, fresh) = work.extra, _each_gradient(ctx, work.models, batch)
        news = tree.map_leaves(lambda new, old: _masked(new - old[batch.index], batch), fresh, table)
        size, local = batch.mask.sum().clamp(min=1), 1 - self.communication_probability
        control = tree.scale(tree.add(_mean_gradient(table, num_samples), shift), local)
        gradient = tree.map_leaves(lambda new, rest: new.sum(0, keepdim=True) / size + rest, news, control)
        lr = ctx.lr / self._divisor(ctx, local)
        parameters, optimizer = ctx.solver.update(work.models.parameters, gradient, work.optimizer, lr)
        table = tree.map_leaves(lambda old, new: old.index_add(0, batch.index, new), table, news)
        return work._replace(
            models=work.models._replace(parameters=parameters), optimizer=optimizer,
            extra=(table, shift, num_samples),
            loss=work.loss + _masked(loss, batch).sum() / size, steps=work.steps + 1,
        )  # fmt: skip

    def client_final(self, ctx: Context, shared: GlobalModels, work: Any, data: ClientData) -> ClientResult:
        """As in L2GD; J_i and Ψ_i are kept."""
        result = super().client_final(ctx, shared, work, data)
        return result._replace(state=VarianceReducedState(work.models, result.state.loss, *work.extra[:2]))


def _mean_gradient(table: Leaves, num_samples: Tensor) -> Leaves:
    """J̄_i = 1/m·Σ_j J_ij, leaves [1, ...]."""
    m = num_samples.clamp(min=1)
    return {name: leaf.sum(0, keepdim=True) / m.to(leaf.dtype) for name, leaf in table.items()}


def _each_gradient(ctx: Context, models: ModelState, batch: Batch) -> tuple[Tensor, Leaves]:
    """Loss [B] and gradient, leaves [B, ...], of each sample: of B copies of the model on batches of one."""
    copies = tree.map_leaves(lambda leaf: leaf.expand(len(batch.mask), *leaf.shape[1:]), models)
    alone = Batch(*(part.unsqueeze(1) for part in batch))
    return ctx.task.value_and_grad(copies, alone)[:2]


def _masked(rows: Tensor, batch: Batch) -> Tensor:
    """The rows [B, ...] of samples, with 0 for padding."""
    return rows * batch.mask.to(rows.dtype).view(-1, *[1] * (rows.ndim - 1))
