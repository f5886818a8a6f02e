"""MOON: FedAvg whose clients pull their features towards the global model's and away from their last model's.

Li, He, Song. "Model-Contrastive Federated Learning". CVPR 2021. https://arxiv.org/abs/2103.16257, Algorithm 1.

Symbols:
    w^t        -> shared.models   the global model, leaves [1, ...]
    w_i^t      -> work.models     the model of client i, leaves [1, ...]
    w_i^{t-1}  -> state.previous  the model with which client i ended its last round, leaves [1, ...]
    z, z_glob, z_prev             features of a sample under these three, [D]
    μ          -> mu
    τ          -> temperature
    ℓ_con      -> −log[exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ))], sim the cosine
Deviations:
    z are the inputs of the network's last layer. The paper's networks have a projection head of two layers, 256 wide,
    ahead of it, which is averaged like everything else: a network that ends in these is a `--model.network`. PFLlib and
    FL-bench use features without such a head, as do networks without one here.
    Before its first round the last own model is the initial network, as in the authors' code; the paper does not say.
    The authors' code can keep several earlier models (`model_buffer_size`, 1 by default); one is kept here.
    Both other models predict in evaluation mode. Features of positions of a sequence are compared separately.
    An unseen client is served by the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, local_result, local_run, local_step, tuned
from lit_fed.core.context import Context
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.prototypes import per_sample
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState

__all__ = ["MOON", "PreviousModel"]


class PreviousModel(NamedTuple):
    """A client's state."""

    previous: ModelState  # w_i^{t-1}, leaves [1, ...]


@dataclass(frozen=True)
class MOON(Algorithm[GlobalModels, PreviousModel, LocalRun]):
    """FedAvg with a contrastive loss between features of the global, the current and the last local model.

    Args:
        mu: μ, weight of the contrastive loss; 0 is FedAvg.
        temperature: τ.
    """

    mu: float = tuned(5.0, 0.1, 1.0, 5.0, 10.0, within=">= 0")
    temperature: float = tuned(0.5, 0.1, 0.5, 1.0, within="> 0")

    in_every_combination = True

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> PreviousModel:
        """The initial network."""
        return PreviousModel(shared.models)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: PreviousModel, data: ClientData, losses: None
    ) -> LocalRun:
        """w_i^t ← w^t (line 11)."""
        return local_run(ctx, shared.models, state.previous)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on ℓ = ℓ_sup + μ·ℓ_con (lines 14-20)."""
        z_global, z_previous = (ctx.task.features(models, batch.x) for models in (shared.models, work.extra))
        objective = Objective(self.loss, uses_features=True, rows=(z_global, z_previous))
        return local_step(ctx, work, batch, objective=objective)

    def loss(self, view: ModelView) -> Tensor:
        """ℓ_sup + μ·ℓ_con of each sample, [B]."""
        to_global, to_previous = (F.cosine_similarity(view.features, z, dim=-1) for z in view.rows)
        contrast = F.softplus((to_previous - to_global) / self.temperature)
        return view.losses + self.mu * per_sample(contrast)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send w_i^t, and keep it as the next w_i^{t-1}."""
        return local_result(ctx, work, data, state=PreviousModel(work.models))
