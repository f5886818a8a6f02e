"""L2GD: personal models pulled towards their mean, at random moments; L2SGD with stochastic gradients.

Hanzely, Richtárik. "Federated Learning of a Mixture of Global and Local Models". 2020.
https://arxiv.org/abs/2002.05516, Algorithm 1. It minimises 1/N Σ f_i(x_i) + λ/2N Σ ‖x_i − x̄‖².

Symbols:
    x_i     -> state.models   the model of client i, leaves [1, ...]
    x̄       -> shared.models  the mean model as of the last averaging, leaves [1, ...]
    λ, p, α -> prox_weight, communication_probability, solver.lr
    ξ       -> _coins         1: an averaging step, 0: a local step
Deviations:
    Ours: a round is `flips_per_round` flips of the coin, in place of the solver's epochs or steps; stochastic gradients
    take shuffled samples; only sampled clients take a round's steps, and x̄ is their mean. L2SGD+ is not offered.
    Ours: an unseen client starts from x̄ and takes `unseen_epochs` passes over f_i(x) + λ/2·‖x − x̄‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, LocalRun, Participation, Personal, local_run
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.seeds import generator
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError, check_settings

__all__ = ["L2GD", "L2GDState"]


class L2GDState(NamedTuple):
    """What a client keeps."""

    models: ModelState  # x_i, leaves [1, ...]
    loss: Tensor  # [] mean loss of its last local steps; the metric of phases without any


@dataclass(frozen=True)
class L2GD(Personal[GlobalModels, L2GDState, LocalRun]):
    """Each flip of a coin is a gradient step of all clients on their own models, or a step of all towards the mean.

    Args:
        communication_probability: p, the probability of an averaging step; 0 never averages, 1 takes no local step.
        prox_weight: λ, how strongly the models are held together.
        flips_per_round: flips of the coin in one round.
        gradient: `full` takes all local samples in a local step (L2GD), `stochastic` a batch (L2SGD).
        scaling: `paper` takes local steps of α/(N(1−p)) and averaging steps of γ = αλ/(Np), so that the learning rate
            has to be about N times that of other algorithms; `slides` leaves out N, for the sum over clients.
        unseen_epochs: passes over its training samples before a client is served that was not in training.
    """

    serving_settings = ("unseen_epochs",)

    communication_probability: float = 0.1
    prox_weight: float = 1.0
    flips_per_round: int = 1
    gradient: Literal["full", "stochastic"] = "full"
    scaling: Literal["paper", "slides"] = "paper"
    unseen_epochs: int = 1

    participation = Participation(weighting="uniform", fills_in_absent=False)

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Noise covers one average a round."""
        reason = "averages the same clients several times a round with flips_per_round"
        return {"privacy": reason} if self.flips_per_round > 1 else {}

    def __post_init__(self) -> None:
        numbers = {"communication_probability": "[0, 1]", "flips_per_round": "[1, 1000000]"}
        check_settings(self, numbers, prox_weight=">= 0", unseen_epochs=">= 0")

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> L2GDState:
        """x_i starts as x̄, which is the same initial model for all."""
        return L2GDState(shared.models, torch.zeros((), dtype=ctx.task.dtype))

    def phases(self, ctx: Context, client_ids: Tensor) -> list[Phase]:
        """Consecutive local steps are one phase; the mean is sent for only if a local step has changed it since."""
        self._check_pull(ctx)
        local = ctx.solver.work._replace(epochs=None, batch_size=0 if self.gradient == "full" else None)
        # by chance does not count: whether the mean is sent for must not tell who takes part
        everyone = ctx.sampling_probability == 1 and sorted(client_ids.tolist()) == list(range(ctx.num_clients))
        known = everyone and (ctx.round_idx == 0 or self._coins(ctx, ctx.round_idx - 1)[-1])
        found: list[Phase] = []
        for position, (averaging, flips) in enumerate(groupby(self._coins(ctx, ctx.round_idx))):
            count = len(list(flips))
            names = ["average"] * (not known) + ["pull"] * count if averaging else ["local"]
            work = LocalWork() if averaging else local._replace(steps=count)
            found += [Phase(f"{name}/{position}", client_ids, work) for name in names]
            known = averaging
        return found

    def _coins(self, ctx: Context, round_idx: int) -> list[bool]:
        draws = generator(ctx.seed, round_idx, 0, "l2gd").random(self.flips_per_round)
        return (draws < self.communication_probability).tolist()  # type: ignore[no-any-return]

    def _divisor(self, ctx: Context, probability: float) -> float:
        """What divides α in a step that is taken with this probability."""
        return probability * (ctx.num_clients if self.scaling == "paper" else 1)

    def _check_pull(self, ctx: Context) -> None:
        """Beyond γ = 1 an averaging step would throw the models past their mean."""
        most = self._divisor(ctx, self.communication_probability)
        if 0 < most * (1 + 1e-9) < ctx.solver.lr * self.prox_weight:
            raise ConfigError(
                f"--model.algorithm.prox_weight is {self.prox_weight}, which throws models past their mean; give at "
                f"most {most / ctx.solver.lr:.4g}, or a --model.solver.lr of at most {most / self.prox_weight:.4g}"
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
        models, optimizer, loss = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, lr, penalty=penalty)
        return LocalRun(models, optimizer, work.loss + loss.mean(), work.steps + 1)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """x_i stays with the client; to be averaged it is sent, and x̄ comes back."""
        loss, n = work.loss / work.steps.clamp(min=1), ctx.client_weight(data)
        message = Message(work.models, n) if ctx.phase.startswith("average") else Message((), n, 0 * n, 0 * n)
        return ClientResult(message, L2GDState(work.models, loss), {"loss": loss})

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """x̄ ← 1/N Σ x_i, which averaging steps do not change."""
        return super().server_step(ctx, shared, reduced, client_ids) if ctx.phase.startswith("average") else shared

    def sent(self, ctx: Context, shared: GlobalModels, client_id: int) -> GlobalModels:
        """Nothing for local steps."""
        return GlobalModels(ModelState({}, {})) if ctx.phase.startswith("local") else shared
