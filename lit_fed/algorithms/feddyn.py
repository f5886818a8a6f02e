"""FedDyn: local losses with a dynamic regulariser, so that local and global stationary points agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. "Federated Learning Based on Dynamic Regularization". ICLR
2021. https://arxiv.org/abs/2111.04263, Algorithm 1.

Symbols:
    θ^{t-1}      -> shared.models   the server's model, leaves [1, ...]
    h            -> shared.h        mean over all clients of their ∇L_k, leaves [1, ...]
    θ_k          -> work.models     the model of client k, leaves [1, ...]
    ∇L_k(θ_k)    -> state.gradient  linear term of client k, leaves [1, ...]; 0 before its first round
    α            -> alpha
    m            -> ctx.num_clients all clients; P_t, those of the round
Deviations:
    The local problem is solved by the solver's steps, as in the authors' code; a client without steps keeps its linear
    term. Running statistics are averaged as in FedAvg.
    The authors' code divides α by the client's relative size, and implements α·θ as weight decay, which its clipping at
    norm 10 ignores; `solver.clip_norm` includes it. PFLlib penalises the norm, not its square.
    The average is unweighted as in the paper; with `model.weighting: samples` p_k = n_k/n takes the place of 1/m.
    θ^t = mean_k θ_k − h/α may be far from every client in the first rounds. `serve_mean` predicts with the mean of the
    clients of the last round, θ^t + h/α, which the authors' code evaluates too.
    An unseen client is served the server's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    NOT_SENT,
    Algorithm,
    LocalRun,
    MessageSpec,
    Participation,
    local_result,
    local_run,
    local_step,
    tuned,
)
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.reduce import exact_average
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Reduced

__all__ = ["DynamicModels", "FedDyn", "LinearTerm"]


class DynamicModels(NamedTuple):
    """The server's state."""

    models: ModelState  # θ, leaves [1, ...]
    h: Leaves  # h, leaves [1, ...]


class LinearTerm(NamedTuple):
    """A client's state."""

    gradient: Leaves  # ∇L_k(θ_k), leaves [1, ...]


@dataclass(frozen=True)
class FedDyn(Algorithm[DynamicModels, LinearTerm, LocalRun]):
    """FedAvg with a proximal term and a linear term that compensates its pull; the server corrects its average.

    Args:
        alpha: α, weight of the proximal term, > 0.
        serve_mean: predict with the mean of the last round's clients instead of θ^t.
    """

    in_every_combination = True
    serving_settings = ("serve_mean",)

    alpha: float = tuned(0.01, 0.001, 0.01, 0.1, within="> 0")
    serve_mean: bool = False

    message = MessageSpec(accumulates=True)
    participation = Participation(weighting="uniform")
    incompatible = {
        "size_sampling": "keeps a mean of linear terms, in which the change of each client counts once",
        "local_norm": "keeps linear terms that would hold a client's own normalisation where it is",
    }

    def shared_init(self, ctx: Context) -> DynamicModels:
        """A fresh model θ^0, and h = 0."""
        models = ctx.task.init(1, ctx.seed)
        return DynamicModels(models, tree.zeros_like(models.parameters))

    def state_init(self, ctx: Context, shared: DynamicModels, data: ClientData) -> LinearTerm:
        """∇L_k(θ_k^0) = 0."""
        return LinearTerm(tree.zeros_like(shared.models.parameters))

    def client_init(
        self, ctx: Context, shared: DynamicModels, state: LinearTerm, data: ClientData, losses: None
    ) -> LocalRun:
        """θ_k starts at θ^{t-1}."""
        return local_run(ctx, shared.models, state.gradient)

    def client_step(self, ctx: Context, shared: DynamicModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on L_k(θ) − ⟨∇L_k(θ_k^{t-1}), θ⟩ + α/2·‖θ − θ^{t-1}‖²."""
        penalty = Penalty(self.alpha, shared.models.parameters, tree.scale(work.extra, -1.0))
        return local_step(ctx, work, batch, penalty=penalty)

    def client_final(self, ctx: Context, shared: DynamicModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send θ_k; keep ∇L_k(θ_k) = ∇L_k(θ_k^{t-1}) − α(θ_k − θ^{t-1})."""
        way = tree.sub(work.models.parameters, shared.models.parameters)
        gradient = tree.sub(work.extra, tree.scale(way, self.alpha))
        return local_result(ctx, work, data, state=LinearTerm(gradient))

    def server_step(self, ctx: Context, shared: DynamicModels, reduced: Reduced, client_ids: Tensor) -> DynamicModels:
        """H ← h − α·(1/m)·Σ_{k ∈ P_t} (θ_k − θ^{t-1}); θ^t = mean of θ_k − h/α."""
        moved = tree.sub(reduced.value.parameters, shared.models.parameters)
        h = tree.sub(shared.h, tree.scale(moved, self.alpha * reduced.weight / ctx.total_weight))
        models = exact_average(ctx, shared.models, reduced)
        parameters = tree.sub(models.parameters, tree.scale(h, 1 / self.alpha))
        return DynamicModels(models._replace(parameters=parameters), h)

    def sent(self, ctx: Context, shared: DynamicModels, client_id: int) -> DynamicModels:
        """θ; also h if clients are served with the mean."""
        is_served = ctx.phase == "adapt" and self.serve_mean
        return shared if is_served else shared._replace(h=NOT_SENT)

    def serving_model(self, shared: DynamicModels) -> ModelState:
        """θ^t, or the mean of the last clients, θ^t + h/α."""
        if not self.serve_mean:
            return shared.models
        mean = tree.add(shared.models.parameters, tree.scale(shared.h, 1 / self.alpha))
        return shared.models._replace(parameters=mean)

    def shared_outputs(self, ctx: Context, shared: DynamicModels, x: Tensor) -> Tensor:
        """Outputs of the serving model, [B, 1, K]."""
        return ctx.task.outputs(self.serving_model(shared), x)
