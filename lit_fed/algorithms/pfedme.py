"""pFedMe: a global model at the minimum of the clients' Moreau envelopes; each client keeps its proximal point.

Dinh, Tran, Nguyen. "Personalized Federated Learning with Moreau Envelopes". NeurIPS 2020.
https://arxiv.org/abs/2006.08848, Algorithm 1.

Symbols:
    w    -> shared.models   the global model, leaves [1, ...]
    w_i  -> work.models     the client's local copy of it, leaves [1, ...]
    θ̃_i  -> state           the personal model, near argmin_θ f_i(θ) + λ/2·‖θ − w_i‖², leaves [1, ...]
    λ    -> prox_weight
    K    -> inner_steps
    η    -> solver.lr
    R    -> solver.local_steps
    β    -> server_mix
Deviations:
    In the paper all clients train and the models of some are averaged; here only those clients train.
    The paper leaves open where the search for θ̃_i starts. As in the authors' code, it starts from w in the first step
    of a round and from the last θ̃_i in the others (`warm_start`). Their code also adds 0.001·θ to the inner gradient,
    which is not offered, and weights clients by samples (`model.weighting`).
    The step of w_i goes through the local solver, so that momentum and weight decay act on it; the paper's is plain, as
    are the inner steps here. Running statistics are those of θ̃_i, and β does not extrapolate them.
    An unseen client has no model in the paper. Ours: the local updates of a round from w (lines 6-9), as in the FedEM
    paper (https://arxiv.org/abs/2108.10252, Appendix J.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, Participation, local_result, local_run, tuned
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.reduce import server_average
from lit_fed.core.solvers.newton import minimise, solvable_start
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, ModelState, Reduced
from lit_fed.errors import check_settings

__all__ = ["PFedMe"]


@dataclass(frozen=True)
class PFedMe(Algorithm[GlobalModels, ModelState, LocalRun]):
    """A global model and, for each client, a personal model near it: the proximal point of its loss.

    Args:
        prox_weight: λ, the pull of a personal model towards the global one.
        inner_steps: K, gradient steps of the search for the proximal point, all on the batch of the local step.
        inner_lr: rate of these steps; they diverge beyond 2 / (λ + curvature of the loss).
        local_solve: `gradient` takes these steps; `exact` solves by Newton's method, for small convex models.
        warm_start: start the search from the last personal model of the round; otherwise from the local copy.
        server_mix: β, the server's step towards the average; above 1 it extrapolates.
        serve: whether a client is served by its `personal` model or by the `global` one.
    """

    in_every_combination = True

    prox_weight: float = tuned(15.0, 15.0, 20.0, 30.0)
    inner_steps: int = 5
    inner_lr: float = tuned(0.05, 0.01, 0.05, 0.1)
    local_solve: Literal["gradient", "exact"] = "gradient"
    warm_start: bool = True
    server_mix: float = 1.0
    serve: Literal["personal", "global"] = "personal"

    participation = Participation(weighting="uniform")
    incompatible = {"noise_in_steps": "the inner steps"}

    def __post_init__(self) -> None:
        solvable = self.local_solve == "gradient" or self.prox_weight > 0, "gradient, as prox_weight is 0"
        numbers = dict.fromkeys(("prox_weight", "inner_lr", "server_mix"), ">= 0")
        check_settings(self, numbers, inner_steps=">= 1", local_solve=solvable)

    def shared_init(self, ctx: Context) -> GlobalModels:
        """The initial w; networks without an exact solve are refused."""
        return GlobalModels(solvable_start(ctx, self.local_solve))

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> ModelState:
        """θ̃_i starts as w."""
        return shared.models

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: ModelState, data: ClientData, losses: None
    ) -> LocalRun:
        """w_i starts as w, and so does the search for θ̃_i."""
        return local_run(ctx, shared.models, shared.models)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """w_i <- w_i − ηλ(w_i − θ̃_i): a gradient step on the Moreau envelope."""
        local = work.models.parameters
        start = work.extra if self.warm_start else work.extra._replace(parameters=local)
        personal, loss = self._search(ctx, start, Penalty(self.prox_weight, local), batch)
        gradient = tree.scale(tree.sub(local, personal.parameters), self.prox_weight)
        parameters, optimizer = ctx.solver.update(local, gradient, work.optimizer, ctx.lr)
        models = ModelState(parameters, personal.buffers)
        return LocalRun(models, optimizer, work.loss + loss.mean(), work.steps + 1, personal)

    def _search(self, ctx: Context, models: ModelState, penalty: Penalty, batch: Batch) -> tuple[ModelState, Tensor]:
        """θ̃ near argmin_θ f_i(θ; batch) + λ/2·‖θ − w_i‖², and the loss where the search starts."""
        if self.local_solve == "exact":
            loss, _, buffers = ctx.task.value_and_grad(models, batch)
            return minimise(ctx.task, models, batch, penalty)._replace(buffers=buffers), loss
        losses = []
        for _ in range(self.inner_steps):
            loss, gradient, buffers = ctx.task.value_and_grad(models, batch)
            whole = tree.add(gradient, penalty.gradient(models.parameters))
            models = ModelState(tree.sub(models.parameters, tree.scale(whole, ctx.own_rate(self.inner_lr))), buffers)
            losses.append(loss)
        return models, losses[0]

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send w_i; keep θ̃_i."""
        return local_result(ctx, work, data, state=work.extra)

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """The new w, (1 − β)·w + β·mean of the w_i."""
        mean = server_average(ctx, shared.models, reduced)
        mixed = tree.lerp(shared.models.parameters, mean.parameters, self.server_mix)
        return GlobalModels(mean._replace(parameters=mixed))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client without a personal model searches for one before it is served."""
        return None if seen or self.serve == "global" else ctx.solver.whole_work

    def shared_outputs(self, ctx: Context, shared: GlobalModels, x: Tensor) -> Tensor | None:
        """Outputs of w, if clients are served by it."""
        return ctx.task.outputs(shared.models, x) if self.serve == "global" else None

    def log_prob(self, ctx: Context, shared: GlobalModels, state: ModelState, x: Tensor, outputs: Any) -> Tensor:
        """Prediction of θ̃_i, or of w, [B, C]."""
        outputs = ctx.task.outputs(state, x) if outputs is None else outputs
        return super().log_prob(ctx, shared, state, x, outputs)
