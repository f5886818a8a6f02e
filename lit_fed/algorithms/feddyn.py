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
    The authors' code divides α by the client's relative size, and has α·θ as weight decay, so that its clipping at norm
    10 leaves this part of the penalty's gradient out; `solver.clip_norm` counts it. PFLlib penalises the norm, not its
    square.
    The average is unweighted as in the paper; with `model.weighting: samples` p_k = n_k/n takes the place of 1/m.
    θ^t = mean_k θ_k − h/α may be far from every client in the first rounds. `serve_mean` predicts with the mean of the
    clients of the last round, θ^t + h/α, which the authors' code evaluates too.
    An unseen client is served the server's model. PFLDyn, the same with a meta-learned loss, is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import NOT_SENT, Algorithm, MessageSpec, Participation, local_run, local_step
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState, Penalty
from lit_fed.core.reduce import exact_average
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced
from lit_fed.errors import check_settings

__all__ = ["DynamicModels", "DynamicRun", "FedDyn", "LinearTerm"]


class DynamicModels(NamedTuple):
    """What the server knows."""

    models: ModelState  # θ, leaves [1, ...]
    h: dict[str, Tensor]  # h, leaves [1, ...]


class LinearTerm(NamedTuple):
    """What a client keeps."""

    gradient: dict[str, Tensor]  # ∇L_k(θ_k), leaves [1, ...]


class DynamicRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # θ_k, leaves [1, ...]
    optimizer: OptimizerState
    loss: Tensor  # [] sum over steps of the mean loss of the batch, before the step
    steps: Tensor  # [] steps taken
    gradient: dict[str, Tensor]  # ∇L_k(θ_k^{t-1}), leaves [1, ...]


@dataclass(frozen=True)
class FedDyn(Algorithm[DynamicModels, LinearTerm, DynamicRun]):
    """FedAvg with a proximal term and a linear term that makes up for its pull; the server corrects its average.

    Args:
        alpha: α, weight of the proximal term, > 0.
        serve_mean: predict with the mean of the last round's clients instead of θ^t.
    """

    serving_settings = ("serve_mean",)

    alpha: float = 0.01
    serve_mean: bool = False

    message = MessageSpec(accumulates=True)
    participation = Participation(weighting="uniform")
    incompatible: ClassVar[dict[str, str]] = {
        "size_sampling": "keeps a mean of linear terms, in which the change of each client counts once"
    }
    conformance_exempt: ClassVar[dict[str, str]] = {
        "local_batch_norm": "its linear terms would hold a client's own normalisation where it is"
    }

    def __post_init__(self) -> None:
        check_settings(self, alpha="> 0")

    def shared_init(self, ctx: Context) -> DynamicModels:
        """A fresh model θ^0, and h = 0."""
        models = ctx.task.init(1, ctx.seed)
        return DynamicModels(models, tree.zeros_like(models.parameters))

    def state_init(self, ctx: Context, shared: DynamicModels, data: ClientData) -> LinearTerm:
        """∇L_k(θ_k^0) = 0."""
        return LinearTerm(tree.zeros_like(shared.models.parameters))

    def client_init(
        self, ctx: Context, shared: DynamicModels, state: LinearTerm, data: ClientData, losses: None
    ) -> DynamicRun:
        """θ_k starts at θ^{t-1}."""
        return DynamicRun(*local_run(ctx, shared.models), gradient=state.gradient)

    def client_step(self, ctx: Context, shared: DynamicModels, work: DynamicRun, batch: Batch) -> DynamicRun:
        """A step on L_k(θ) − ⟨∇L_k(θ_k^{t-1}), θ⟩ + α/2·‖θ − θ^{t-1}‖²."""
        penalty = Penalty(self.alpha, shared.models.parameters, tree.scale(work.gradient, -1.0))
        return local_step(ctx, work, batch, penalty=penalty)

    def client_final(self, ctx: Context, shared: DynamicModels, work: DynamicRun, data: ClientData) -> ClientResult:
        """θ_k goes to the server; ∇L_k(θ_k) = ∇L_k(θ_k^{t-1}) − α(θ_k − θ^{t-1}) stays."""
        way = tree.sub(work.models.parameters, shared.models.parameters)
        gradient = tree.sub(work.gradient, tree.scale(way, self.alpha))
        result = super().client_final(ctx, shared, work, data)
        return result._replace(state=LinearTerm(gradient))

    def server_step(self, ctx: Context, shared: DynamicModels, reduced: Reduced, client_ids: Tensor) -> DynamicModels:
        """H ← h − α·(1/m)·Σ_{k ∈ P_t} (θ_k − θ^{t-1}); θ^t = mean of θ_k − h/α."""
        moved = tree.sub(reduced.value.parameters, shared.models.parameters)
        h = tree.sub(shared.h, tree.scale(moved, self.alpha * reduced.weight / ctx.total_weight))
        models = exact_average(ctx, shared.models, reduced)
        parameters = tree.sub(models.parameters, tree.scale(h, 1 / self.alpha))
        return DynamicModels(models._replace(parameters=parameters), h)

    def sent(self, ctx: Context, shared: DynamicModels, client_id: int) -> DynamicModels:
        """θ; h only to be served with the mean."""
        is_served = ctx.phase == "adapt" and self.serve_mean
        return shared if is_served else shared._replace(h=NOT_SENT)

    def shared_outputs(self, ctx: Context, shared: DynamicModels, x: Tensor) -> Tensor:
        """Outputs of the model that is served, [B, 1, K]."""
        models = shared.models
        if self.serve_mean:
            mean = tree.add(models.parameters, tree.scale(shared.h, 1 / self.alpha))
            models = models._replace(parameters=mean)
        return ctx.task.outputs(models, x)
