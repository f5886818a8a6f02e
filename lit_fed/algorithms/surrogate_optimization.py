"""Federated surrogate optimisation: clients minimise majorisers of their objectives, the server averages the models.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Algorithm 3 (Section 3.4, Appendix D); FedEM and pFedMe are instances.

Symbols:
    u       -> shared.models   the shared models, leaves [M, ...]
    v_t     -> state           the local variable of client t, a tree of the surrogate's choice; never leaves the client
    g_t     -> work.extra      the surrogate near (u, v_t), a tree of the surrogate's choice
    u_t     -> work.models     u after client t's local steps, leaves [M, ...]
    ω_t     -> message.weight  the client's samples or 1, by `surrogate.weighting` (`model.weighting` overrides it)
    LocalSolver -> solver      any solver that reduces g_t by a fixed share of the distance to its minimum
Deviations:
    The paper has no unseen clients. Ours, as in FedEM: v_t is fitted `unseen_steps` times to the current models, each
    time with a new surrogate, without local steps.
    Clients are sampled as `data.client_fraction` says; the paper's algorithm runs all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, Participation, local_result, local_run, ranged
from lit_fed.core.context import Context
from lit_fed.core.mixtures.known_surrogates import MixtureSurrogate
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, ModelState, Tree

__all__ = ["SurrogateOptimization"]


@dataclass(frozen=True)
class SurrogateOptimization(Algorithm[GlobalModels, Tree, LocalRun]):
    """Majorise and minimise: each client builds a surrogate at the received models, and trains on it.

    Args:
        surrogate: the clients' objectives and their surrogates: `MixtureSurrogate` (FedEM), `MoreauSurrogate` (pFedMe),
            `IdentitySurrogate` (FedAvg), or a subclass of `lit_fed.Surrogate`.
        unseen_steps: fits of the local variable of an unseen client before it is served.
    """

    in_every_combination = True
    serving_settings = ("unseen_steps",)

    surrogate: Surrogate = MixtureSurrogate()  # noqa: RUF009 - frozen
    unseen_steps: int = ranged(1, ">= 1")

    state_reads_data = True
    incompatible = {
        "noise_in_steps": "the bounds of its surrogates",
        "loss": "minimises an upper bound of the log-loss, which is none of another loss",
    }

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """The models in u."""
        return self.surrogate.num_models

    @property
    def participation(self) -> Participation:  # type: ignore[override]
        """ω_t."""
        return Participation(self.surrogate.weighting)

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> Tree:
        """v_t before the first round."""
        return self.surrogate.local_init(ctx.task, shared.models, data)

    def shared_losses(self, ctx: Context, shared: GlobalModels, batch: Batch) -> Tensor | None:
        """The surrogate's losses of the samples under u, [B, M] or None."""
        return self.surrogate.losses(ctx.task, shared.models, batch)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: Tree, data: ClientData, losses: Tensor | None
    ) -> LocalRun:
        """The surrogate near (u, v_t), and its best v_t (Alg. 3: g_t, then v_t <- argmin_v g_t(u, v))."""
        local, bounds = state, []
        for _ in range(self.unseen_steps if ctx.phase == "adapt" else 1):
            bounds.append(self.surrogate.build(ctx.task, shared.models, local, data, losses))
            local = self.surrogate.argmin_local(bounds[-1])
        return local_run(ctx, shared.models, (local, bounds[-1]))._replace(loss=bounds[0].value)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on u -> g_t(u, v_t) (Alg. 3: LocalSolver)."""
        local, bound = work.extra
        gradient, buffers = self.surrogate.gradient(ctx.task, bound, local, work.models, batch)
        parameters, optimizer = ctx.solver.update(work.models.parameters, gradient, work.optimizer, ctx.lr)
        return work._replace(models=ModelState(parameters, buffers), optimizer=optimizer)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send u_t with weight ω_t; keep v_t."""
        return local_result(ctx, work, data, state=work.extra[0])

    # server_step: u <- Σ_t ω_t u_t is the default

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Fits of v_t without local steps, for unseen clients."""
        return None if seen else LocalWork()

    def shared_outputs(self, ctx: Context, shared: GlobalModels, x: Tensor) -> Tree | None:
        """The surrogate's predictions from u alone."""
        return self.surrogate.outputs(ctx.task, shared.models, x)

    def log_prob(self, ctx: Context, shared: GlobalModels, state: Tree, x: Tensor, outputs: Tree) -> Tensor:
        """The surrogate's prediction for the client, [B, C]."""
        return self.surrogate.log_prob(ctx.task, state, x, outputs)
