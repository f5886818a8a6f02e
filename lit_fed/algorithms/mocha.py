"""MOCHA: linear classifiers of all clients, related by a covariance that is learned; local dual coordinate ascent.

Smith, Chiang, Sanjabi, Talwalkar. "Federated Multi-Task Learning". NeurIPS 2017. https://arxiv.org/abs/1705.10467,
Algorithm 1.

Symbols:
    w_t     -> shared.peers     model of client t with its bias; W = (1/λ)·B·Σ after every round
    Ω⁻¹     -> shared.sigma     covariance Σ of the models, of trace 1, [K, T, T]
    σ'      -> shared.damping   ρ = max_t Σ_s |Σ_ts| / Σ_tt, [K]
    X_t·α_t -> shared.combined  b_t = (1/n_t)·Σ_s α_s·x_s, [T, K, d + 1]
    α_t     -> state.dual       y_s·α_s of each local sample, in [0, 1], [K, n]
    Δv_t    -> message.value    the change of b_t, [K, d + 1]
    λ       -> regularisation
    θ_t     -> solver.local_epochs, local_steps, straggler_fraction: how far each client goes
Deviations:
    Losses are means over a client's samples, as in the authors' code; `--model.weighting samples` weighs client t by
    T·n_t/n. The bias is regularised like all weights. Changes are added up (γ = 1), which is what ρ is for.
    Coordinate steps have no rate and no batches: the other settings of the solver have no effect.
    Σ gets `epsilon`·I/T, so that clients without a model can still learn; the authors' code clamps eigenvalues, and
    keeps W when Σ changes, so that W = (1/λ)·B·Σ no longer holds. Here W follows Σ.
    K > 2 classes are K tasks of one against the rest, each with its Σ. Ours: probabilities are the sigmoids of margins.
    An unseen client has no model in the paper. Ours: an unrelated task that starts at the mean model; it takes
    `unseen_epochs` passes of coordinate steps on its own problem with the regulariser λT/2·‖w − w̄‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.algorithms.base import Algorithm
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.dual_ascent import DualRun, coordinate_step, dual_run, resized
from lit_fed.core.errors import check_settings
from lit_fed.core.graphs.peers import own_models
from lit_fed.core.relations import Related, add_changes, reach_of, unrelated
from lit_fed.core.solvers.affine_networks import check_linear_task, from_columns, to_columns
from lit_fed.core.solvers.margin_losses import MarginLoss
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced

__all__ = ["MOCHA", "DualState"]


class DualState(NamedTuple):
    """What a client keeps."""

    dual: Tensor  # y_s·α_s, [K, most_samples]
    models: ModelState  # its model after its last local steps, which a newcomer is served with, leaves [1, ...]
    client_id: Tensor  # [] int64


@dataclass(frozen=True)
class MOCHA(Algorithm[Related, DualState, DualRun]):
    """A linear classifier for each client; how the clients are related is learned with them.

    Args:
        regularisation: λ.
        rounds_per_relation: rounds between two updates of Σ; 0 leaves all clients unrelated.
        loss: `hinge` or `logistic`.
        epsilon: added to the eigenvalues of Σ, in units of their mean.
        unseen_epochs: passes over its training samples before a client is served that was not in training.
    """

    regularisation: float = 0.01
    rounds_per_relation: int = 10
    loss: MarginLoss = "hinge"
    epsilon: float = 0.01
    unseen_epochs: int = 10

    reduce = "stack"
    default_weighting = "uniform"
    fills_in_absent_clients = False
    counts_draws = False
    conformance_exempt: ClassVar[dict[str, str]] = {
        "client_order": "the server's models are in the order of the clients",
        **dict.fromkeys(["mlp", "local_batch_norm", "regression", "sequences"], "it trains linear classifiers"),
    }

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        checks = {
            "regularisation": (self.regularisation > 0, "a number > 0"),
            "rounds_per_relation": (self.rounds_per_relation >= 0, "a whole number >= 0"),
            "loss": (self.loss in ("hinge", "logistic"), "hinge or logistic"),
            "epsilon": (self.epsilon > 0, "a number > 0"),
            "unseen_epochs": (self.unseen_epochs >= 0, "a whole number >= 0"),
        }
        check_settings(self, checks)

    def shared_init(self, ctx: Context) -> Related:
        """W = 0 and Σ = I/T."""
        check_linear_task(ctx.task, "MOCHA", ("binary", "multiclass"))
        return unrelated(ctx.task.init(1, ctx.seed), ctx.num_clients)

    def state_init(self, ctx: Context, shared: Related, data: ClientData) -> DualState:
        """α_t = 0."""
        dual = torch.zeros(shared.combined.shape[1], ctx.most_samples, dtype=ctx.task.dtype)
        return DualState(dual, shared.peers.mean, data.client_id)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """A step takes one sample."""
        return (Phase("train", client_ids, ctx.solver.work._replace(batch_size=1)),)

    def client_init(self, ctx: Context, shared: Related, state: DualState, data: ClientData, losses: None) -> DualRun:
        """The local problem (Eq. 4): w_t moves by ρ·Σ_tt/λ with b_t."""
        models, reach = own_models(shared.peers, data.client_id), reach_of(shared, data.client_id, self.regularisation)
        share, dual = ctx.client_share(data) / data.num_samples.clamp(min=1), resized(state.dual, len(data.mask))
        return dual_run(to_columns(models.parameters)[0], dual, reach, share, ctx.solver.init(models))

    def client_step(self, ctx: Context, shared: Related, work: DualRun, batch: Batch) -> DualRun:
        """The best α_s of one sample."""
        return coordinate_step(self.loss, ctx.task.target, work, batch)

    def client_final(self, ctx: Context, shared: Related, work: DualRun, data: ClientData) -> ClientResult:
        """Δb_t goes up; w_t and ρ·Σ_tt have come down."""
        own = from_columns(work.local_columns.unsqueeze(0), shared.peers.mean.parameters)
        state = DualState(resized(work.dual, ctx.most_samples), ModelState(own, {}), data.client_id)
        down = tree.bits((work.columns, work.reach)) * torch.ones_like(data.num_samples)
        message = Message(work.change, ctx.client_weight(data), bits_down=down)
        return ClientResult(message, state, {"loss": work.loss / work.steps.clamp(min=1)})

    def server_step(self, ctx: Context, shared: Related, reduced: Reduced, client_ids: Tensor) -> Related:
        """B, every few rounds Σ, and with them W."""
        learns = self.rounds_per_relation and (ctx.round_idx + 1) % self.rounds_per_relation == 0
        epsilon = self.epsilon if learns else None
        return add_changes(shared, client_ids, reduced.value, self.regularisation, epsilon)

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client that has no model yet trains before it is served."""
        return None if seen else LocalWork(epochs=self.unseen_epochs, batch_size=1)

    def collaboration(self, ctx: Context, shared: Related, states: DualState) -> Tensor:
        """Σ, the mean over classes."""
        return shared.sigma.mean(0)

    def num_payloads(self, ctx: Context, shared: Related, num_clients: int) -> int:
        """To each client its own model."""
        return num_clients

    def shared_outputs(self, ctx: Context, shared: Related, x: Tensor) -> None:
        """Each client has a model of its own."""

    def log_prob(self, ctx: Context, shared: Related, state: DualState, x: Tensor, outputs: None) -> Tensor:
        """Sigmoids of the margins; where there are several, as shares of their sum."""
        margins = ctx.task.outputs(own_models(shared.peers, state.client_id, state.models), x)
        margins = torch.nn.functional.logsigmoid(margins) if ctx.task.target.num_outputs > 1 else margins
        return ctx.task.mix(margins.new_ones(1), margins)
