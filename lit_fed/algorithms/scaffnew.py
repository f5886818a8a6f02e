"""Scaffnew: ProxSkip for federated learning, local steps with control variates and a random number between averages.

Mishchenko, Malinovsky, Stich, Richtárik. "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
Acceleration! Finally!". ICML 2022. https://arxiv.org/abs/2202.09357, Algorithm 2.

Symbols:
    x_t   -> shared.models   the mean at the last communication, leaves [1, ...]
    x̂_i   -> work.models, state.local  the model of client i ahead of the communication, leaves [1, ...]
    h_i   -> state.control   its control variate, leaves [1, ...]; Σ_i h_i = 0, and ∇f_i at the solution
    p     -> communication_probability
    θ_t   -> _steps          coins: the steps up to the first 1, at which all communicate
    γ     -> solver.lr
Deviations:
    A round covers the steps between two communications: a geometric number, 1/p on average, instead of the solver's
    epochs or steps. The coins follow from the seed and the round. fl-sim flips one coin for all the local
    steps of a round, and takes a fixed number of them.
    In the paper all clients take part. Ours: sampled ones start from x_t, are averaged, and renew their h_i, so that
    Σ_i h_i stays 0; the theorem covers full participation only. A client drawn twice would change that sum once and
    the mean twice, so `data.client_sampling: size` is refused.
    With `model.weighting: samples` the mean is weighted, Σ_i n_i h_i = 0, and the solution is that of all samples.
    The paper takes plain SGD. With momentum or Adam x̂_i moves further than γ times its gradients, and h_i overshoots.
    Changes of the mean by codecs, noise or robust rules leave Σ_i h_i ≠ 0, which moves the solution.
    Running statistics of BatchNorm are averaged like parameters, and have no control variates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, Participation, local_result, local_run, local_step
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.seeds import generator
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["Scaffnew", "SkippedState"]


class SkippedState(NamedTuple):
    """A client's state."""

    control: dict[str, Tensor]  # h_i, leaves [1, ...]
    local: dict[str, Tensor]  # x̂_i of its last round, leaves [1, ...]
    received: Tensor  # [] int64, round whose x_t the client has already


@dataclass(frozen=True)
class Scaffnew(Algorithm[GlobalModels, SkippedState, LocalRun]):
    """Gradient steps corrected by estimates of the clients' drift; most averages are skipped.

    Args:
        communication_probability: p; the best is 1/√κ for the condition number κ of the losses. 1 is FedSGD.
    """

    communication_probability: float = 0.1

    participation = Participation(weighting="uniform", fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = {
        "size_sampling": "keeps control variates with the sum 0, in which the change of each counts once",
        "client_lr": "keeps control variates with the sum 0, which takes one rate",
        "local_norm": "has control variates that would steer a client's own normalisation by the means of the others",
    }

    def __post_init__(self) -> None:
        in_range = 0 < self.communication_probability <= 1
        check_settings(self, communication_probability=(in_range, "a number in (0, 1]"))

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> SkippedState:
        """h_i = 0."""
        parameters = shared.models.parameters
        return SkippedState(tree.zeros_like(parameters), parameters, torch.zeros((), dtype=torch.int64))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, Phase]:
        """Local steps up to the first communication; then control variates with the new mean."""
        work = ctx.solver.work._replace(epochs=None, steps=self._steps(ctx))
        return Phase("train", client_ids, work), Phase("control", client_ids, LocalWork())

    def _steps(self, ctx: Context) -> int:
        """Flips of the coin up to the first 1 (line 2)."""
        coins = generator(ctx.seed, ctx.round_idx, 0, "scaffnew")
        return int(coins.geometric(self.communication_probability))

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: SkippedState, data: ClientData, losses: None
    ) -> LocalRun:
        """x̂_i <- x_t."""
        return local_run(ctx, shared.models, state)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """x̂_i <- x̂_i − γ(g_i(x̂_i) − h_i) (line 6)."""
        shift = Penalty(linear=tree.scale(work.extra.control, -1.0))
        return local_step(ctx, work, batch, penalty=shift)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send x̂_i (line 8); then h_i <- h_i + p/γ·(x_{t+1} − x̂_i) (line 12)."""
        state, weight = work.extra, ctx.client_weight(data)
        down = torch.full_like(weight, tree.bits(shared, ctx.private))
        if ctx.phase == "control":
            away = tree.sub(shared.models.parameters, state.local)
            rate = torch.where(ctx.lr > 0, self.communication_probability / ctx.lr, 0.0)
            received = torch.full_like(state.received, ctx.round_idx + 1)
            new = SkippedState(tree.add(state.control, tree.scale(away, rate)), state.local, received)
            return ClientResult(Message((), weight, 0 * weight, down), new, {})
        down = down * (state.received != ctx.round_idx)
        return local_result(ctx, work, data, state=state._replace(local=work.models.parameters), down=down)

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """x_{t+1} <- 1/n·Σ_i x̂_i."""
        return super().server_step(ctx, shared, reduced, client_ids) if ctx.phase == "train" else shared
