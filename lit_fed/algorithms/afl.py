"""AFL: one model for the worst mixture of the clients, min_w max_λ Σ λ_i f_i(w).

Mohri, Sivek, Suresh. "Agnostic Federated Learning". ICML 2019. https://arxiv.org/abs/1902.00146, Algorithm 1
(Stochastic-AFL) with the full gradient of every client.

Symbols:
    w_t -> shared.models         the global model, leaves [1, ...]
    w^A -> shared.average        the average of w_1, …, w_t, leaves [1, ...]
    λ   -> shared.client_weight  weights of the clients, [T], on the simplex
    f_i -> work.loss             mean loss of client i's samples under the received w
    γ_w -> server_lr
    γ_λ -> lambda_lr
    Π   -> project_to_simplex
Deviations:
    The paper uses unbiased estimates of both gradients, from all clients or from one sampled by λ; here both are exact.
    The models are not confined to a set W, so there is no projection of w.
    Client i sends w - γ_w ∇f_i(w), and as Σ λ_i = 1 the mean by λ of these is the paper's step; the solver's weight
    decay and clipping apply to it. Running statistics are averaged by λ too.
    Ours: λ may start at the clients' shares of the samples (`initial: samples`), as in the official FedEM code.
    The weights of the clients are λ, so `model.weighting` has no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, LocalRun, MessageSpec, Participation, local_result, local_run, ranged
from lit_fed.core.context import Context
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, ModelState, Phase, Reduced

__all__ = ["AFL", "AgnosticModels", "AgnosticUpdate", "project_to_simplex"]


class AgnosticModels(NamedTuple):
    """The server's state."""

    models: ModelState  # w_t, leaves [1, ...]
    average: ModelState  # w^A, leaves [1, ...]; never sent
    client_weight: Tensor  # λ, [T] float64


class AgnosticUpdate(NamedTuple):
    """The summands of the server's sum, in float64; a client needs to send its model and f_i only."""

    models: ModelState  # λ_i (w - γ_w ∇f_i(w)), leaves [1, ...]
    ascended: Tensor  # λ_i + γ_λ f_i at position i and 0 elsewhere, [T]


@dataclass(frozen=True)
class AFL(Algorithm[AgnosticModels, tuple[()], LocalRun]):
    """The model with the smallest loss on its worst mixture of the clients; all clients take part in every round.

    Args:
        lambda_lr: γ_λ, step size of the clients' weights; 0 keeps them fixed.
        server_lr: γ_w, step size of the model; null takes the solver's learning rate.
        initial: the initial weights: `uniform`, or in proportion to the clients' `samples`.
        serve: the model that predicts: the `average` of all models so far, for which the paper proves its bound, or the
            `last`.
    """

    lambda_lr: float = ranged(0.1, ">= 0")
    server_lr: float | None = ranged(None, ">= 0")
    initial: Literal["uniform", "samples"] = "uniform"
    serve: Literal["average", "last"] = "average"

    message = MessageSpec("multiples")
    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)
    reads_losses = True
    incompatible = {
        "loss": "weighs clients by the log-loss whose gradient they follow",
        "client_lr": "takes its steps at the server",
    }

    def shared_init(self, ctx: Context) -> AgnosticModels:
        """λ starts uniform; shares of the samples are known after the clients have sent them."""
        models = ctx.task.init(1, ctx.seed)
        weight = torch.full((ctx.num_clients,), 1 / ctx.num_clients, dtype=torch.float64)
        return AgnosticModels(models, tree.map_leaves(torch.clone, models), weight)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One step on the whole local set."""
        return (Phase("train", client_ids, LocalWork(steps=1, batch_size=0)),)

    def client_init(
        self, ctx: Context, shared: AgnosticModels, state: tuple[()], data: ClientData, losses: Tensor
    ) -> LocalRun:
        """f_i(w_{t-1}) and λ_i."""
        risk = (losses[:, 0] * data.mask).sum() / data.num_samples.clamp(min=1)
        weights = shared.client_weight  # weights of all clients, or of this one only
        weight = tree.take(weights, data.client_id.clamp(max=len(weights) - 1))[0]
        if self.initial == "samples" and ctx.round_idx == 0:
            weight = data.num_samples / ctx.total_samples
        return local_run(ctx, shared.models, weight)._replace(loss=risk.to(ctx.task.dtype))

    def client_step(self, ctx: Context, shared: AgnosticModels, work: LocalRun, batch: Batch) -> LocalRun:
        """w_{t-1} - γ_w ∇f_i(w_{t-1})."""
        lr = ctx.lr if self.server_lr is None else torch.full_like(ctx.lr, self.server_lr)
        models, optimizer, _ = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, lr)
        return work._replace(models=models, optimizer=optimizer)

    def client_final(self, ctx: Context, shared: AgnosticModels, work: LocalRun, data: ClientData) -> ClientResult:
        """This client's terms of both steps, weighted by λ_i if it is known, so that the server only sums."""
        own = torch.arange(ctx.num_clients, device=data.mask.device) == data.client_id
        ascended = torch.where(own, work.extra + self.lambda_lr * work.loss, 0.0)
        models = tree.map_leaves(lambda leaf: work.extra * leaf.double(), work.models)
        one, up = torch.ones_like(data.num_samples), tree.bits((work.models, work.loss), ctx.private)
        return local_result(ctx, work, data, AgnosticUpdate(models, ascended), weight=one, up=up)

    def server_step(self, ctx: Context, shared: AgnosticModels, reduced: Reduced, client_ids: Tensor) -> AgnosticModels:
        """Descend: w_t <- w_{t-1} - γ_w Σ λ_i ∇f_i; ascend: λ <- Π(λ + γ_λ f); and average the models."""
        total: AgnosticUpdate = tree.scale(reduced.value, reduced.weight)
        average = tree.lerp(tree.map_leaves(Tensor.double, shared.average), total.models, 1 / (ctx.round_idx + 1))
        return AgnosticModels(total.models, average, project_to_simplex(total.ascended))

    def sent(self, ctx: Context, shared: AgnosticModels, client_id: int) -> AgnosticModels:
        """w_t and λ_i; w^A for serving."""
        served = ctx.phase == "adapt" and self.serve == "average"
        average = shared.average if served else ModelState({}, {})
        return AgnosticModels(shared.models, average, shared.client_weight[client_id : client_id + 1])

    def shared_outputs(self, ctx: Context, shared: AgnosticModels, x: Tensor) -> Tensor:
        """Outputs of the model that is served, [B, 1, K]."""
        return ctx.task.outputs(shared.average if self.serve == "average" else shared.models, x)


def project_to_simplex(point: Tensor) -> Tensor:
    """The nearest point, in Euclidean distance, whose entries are >= 0 and sum to 1; along the last axis.

    It is max(v - θ, 0) with θ = max_j (u_1 + … + u_j - 1)/j for the entries u in descending order: the quotient rises
    while u_j exceeds the previous one, and falls afterwards.

    Example:
        >>> [round(value, 4) for value in project_to_simplex(torch.tensor([0.8, 0.6, -0.2])).tolist()]
        [0.6, 0.4, 0.0]
    """
    summed = point.sort(dim=-1, descending=True).values.cumsum(-1)
    counts = torch.arange(1, point.shape[-1] + 1, dtype=point.dtype, device=point.device)
    threshold = ((summed - 1) / counts).amax(-1, keepdim=True)
    return (point - threshold).clamp(min=0)
