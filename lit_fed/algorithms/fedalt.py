"""FedAlt and FedSim: some leaves are personal, and are trained alternately with the shared ones or together with them.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao. "Federated Learning with Partial Model Personalization". ICML 2022.
https://arxiv.org/abs/2204.03809, Algorithms 1 (server), 2 (LocalAlt) and 3 (LocalSim).

Symbols:
    u        -> shared.models              the shared part, leaves [1, ...]
    v_i      -> state.own                  the personal part of client i, leaves [1, ...]; never leaves the client
    τ_v, τ_u -> personal_epochs, solver    local work on v_i, then on u; in FedSim τ = τ_u steps for both
    γ_v, γ_u -> personal_lr, solver.lr     learning rates
    η_s      -> server_lr                  rate of the server's step
Deviations:
    τ_v counts passes, as in the authors' program, unless `personal_steps` is given; the program stops them after 1000
    steps.
    The program can regularise v_i by its norm or its distance to its start; neither is here.
    The mean over clients is uniform, as in the paper; the program weights clients by their numbers of batches (similar:
    `--model.weighting samples`). Running statistics are averaged with rate 1. For other server optimizers use
    FedAdam, FedAvgM, … with `--model.personal`.
    The program starts from a model of FedAvg (here `--model.start_from`), and tunes v_i afterwards.
    An unseen client trains v_i, from the initial one, as in a round while u is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, Participation, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.partial_models import (
    OWN,
    SHARED,
    KeptPart,
    Patterns,
    PersonalPart,
    SentPart,
    in_turn,
    named_leaves,
    names_of,
    rate_of,
    staged_run,
    staged_step,
)
from lit_fed.core.reduce import server_average
from lit_fed.core.types import Batch, ClientData, Phase, Reduced, Stage
from lit_fed.errors import ConfigError

__all__ = ["FedAlt", "FedSim"]


@dataclass(frozen=True)
class FedSim(PersonalPart):
    """Clients train personal and shared leaves together; the shared ones are averaged.

    Args:
        personal: patterns of names of the personal leaves or modules, or `head`, `body`, `norm`.
        personal_lr: their learning rate of the first round; null takes that of the solver.
        server_lr: rate of the server's step; 1 takes the average.
    """

    participation = Participation(weighting="uniform")

    personal: Patterns = ("head",)
    personal_lr: float | None = ranged(None, ">= 0")
    server_lr: float = ranged(1.0, "> 0")

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The personal leaves."""
        return named_leaves(ctx.task, self.personal, "--model.algorithm.personal")

    def shared_init(self, ctx: Context) -> SentPart:
        """The initial network; refuses a rate of the shared leaves that no other rate is a multiple of."""
        if self.personal_lr is not None and not ctx.solver.lr and not isinstance(self, FedAlt):
            raise ConfigError(
                f"--model.solver.lr is 0, and FedSim scales its steps to personal_lr {self.personal_lr}; give a rate > "
                "0, or FedAlt, which trains personal leaves in steps of their own"
            )
        return super().shared_init(ctx)

    def client_step(self, ctx: Context, shared: SentPart, work: Any, batch: Batch) -> Any:
        """Both from one gradient (Alg. 3): v_i ← v_i − γ_v ∇_v F_i(u_i, v_i), u_i ← u_i − γ_u ∇_u F_i(u_i, v_i)."""
        own, old = names_of(shared.own), work.models
        work = local_step(ctx, work, batch, moving=own if ctx.phase == "adapt" else None)
        if self.personal_lr is None:
            return work
        before, after = (tree.named(one.parameters, own) for one in (old, work.models))
        relative = rate_of(ctx._replace(lr=torch.ones_like(ctx.lr)), self.personal_lr)
        moved = tree.lerp(before, after, relative)  # a step is proportional to its rate
        return work._replace(models=work.models._replace(parameters=work.models.parameters | moved))

    def server_step(self, ctx: Context, shared: SentPart, reduced: Reduced, client_ids: Tensor) -> SentPart:
        """The step of Algorithm 1, u ← u − η_s · mean(u − u_i)."""
        mean = server_average(ctx, shared.models, reduced)
        if self.server_lr == 1:
            return shared._replace(models=mean)
        moved = tree.lerp(shared.models.parameters, mean.parameters, self.server_lr)
        return shared._replace(models=mean._replace(parameters=moved))


@dataclass(frozen=True)
class FedAlt(FedSim):
    """Clients train their personal leaves, then the shared ones, which are averaged.

    Args:
        personal_epochs: passes over the local samples for the personal leaves.
        personal_steps: local steps for them instead of passes.
    """

    personal_epochs: int = ranged(1, ">= 0")
    personal_steps: int | None = ranged(None, ">= 1")

    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        """One exchange: τ_v on the personal part, then τ_u on the shared one."""
        work = ctx.solver.work
        return (Phase("train", client_ids, in_turn(work, self.own_stage(ctx), Stage(SHARED, work.epochs, work.steps))),)

    def own_stage(self, ctx: Context) -> Stage:
        """τ_v, in passes unless steps are given."""
        return Stage(OWN, None if self.personal_steps else self.personal_epochs, self.personal_steps)

    def client_init(self, ctx: Context, shared: SentPart, state: KeptPart, data: ClientData, losses: None) -> LocalRun:
        """The received part with the personal one."""
        return staged_run(ctx, self.whole(ctx, shared, state))

    def client_step(self, ctx: Context, shared: SentPart, work: LocalRun, batch: Batch) -> LocalRun:
        """First v_i ← v_i − γ_v ∇_v F_i(u, v_i), then u_i ← u_i − γ_u ∇_u F_i(u_i, v_i) (Alg. 2)."""
        return staged_step(ctx, shared, work, batch, self.personal_lr)
