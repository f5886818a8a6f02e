"""The dynamic regulariser of FedDyn: linear terms at the clients, and their mean at the server."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

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
    tuned,
)
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.reduce import exact_average
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced
from lit_fed.errors import check_settings

__all__ = ["DynamicModels", "DynamicRegularizer", "LinearTerm"]


class DynamicModels(NamedTuple):
    """The server's state."""

    models: ModelState  # θ, leaves [1, ...]
    h: dict[str, Tensor]  # h, leaves [1, ...]


class LinearTerm(NamedTuple):
    """A client's state."""

    gradient: dict[str, Tensor]  # ∇L_k(θ_k), leaves [1, ...]


@dataclass(frozen=True)
class DynamicRegularizer(Algorithm[DynamicModels, LinearTerm, LocalRun], ABC):
    """An algorithm whose clients add ⟨−∇L_k(θ_k^{t-1}), θ⟩ + α/2·‖θ − θ^{t-1}‖² to their local objective L_k.

    Args:
        alpha: α, weight of the proximal term, > 0.
        serve_mean: predict with the mean of the last round's clients instead of θ^t.
    """

    # annotations of this module are not postponed, see `Algorithm`

    serving_settings: ClassVar[tuple[str, ...]] = ("serve_mean",)

    alpha: float = tuned(0.01, 0.001, 0.01, 0.1)
    serve_mean: bool = False

    message = MessageSpec(accumulates=True)
    participation = Participation(weighting="uniform")
    incompatible: ClassVar[dict[str, str]] = {
        "size_sampling": "keeps a mean of linear terms, in which the change of each client counts once",
        "local_norm": "keeps linear terms that would hold a client's own normalisation where it is",
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
    ) -> LocalRun:
        """θ_k starts at θ^{t-1}."""
        return local_run(ctx, shared.models, state.gradient)

    @abstractmethod
    def client_step(self, ctx: Context, shared: DynamicModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on L_k and the penalty."""

    def penalty(self, shared: DynamicModels, work: LocalRun) -> Penalty:
        """The penalty added to L_k(θ): −⟨∇L_k(θ_k^{t-1}), θ⟩ + α/2·‖θ − θ^{t-1}‖²."""
        return Penalty(self.alpha, shared.models.parameters, tree.scale(work.extra, -1.0))

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
