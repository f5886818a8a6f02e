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

from torch import Tensor

from lit_fed.core.algorithm import LocalRun, local_step
from lit_fed.core.context import Context
from lit_fed.core.solvers.dynamic_regularizer import DynamicModels, DynamicRegularizer
from lit_fed.core.types import Batch

__all__ = ["FedDyn"]


@dataclass(frozen=True)
class FedDyn(DynamicRegularizer):
    """FedAvg with a proximal term and a linear term that compensates its pull; the server corrects its average."""

    # shared_init, state_init, client_init: θ^0 and θ_k^0, h = 0 and ∇L_k(θ_k^0) = 0

    def client_step(self, ctx: Context, shared: DynamicModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on L_k(θ) − ⟨∇L_k(θ_k^{t-1}), θ⟩ + α/2·‖θ − θ^{t-1}‖²."""
        return local_step(ctx, work, batch, penalty=self.penalty(shared, work))

    # client_final: ∇L_k(θ_k) = ∇L_k(θ_k^{t-1}) − α(θ_k − θ^{t-1})
    # server_step: h ← h − α·(1/m)·Σ_{k ∈ P_t} (θ_k − θ^{t-1}); θ^t = mean of θ_k − h/α

    def shared_outputs(self, ctx: Context, shared: DynamicModels, x: Tensor) -> Tensor:
        """Outputs of the serving model, [B, 1, K]."""
        return ctx.task.outputs(self.serving_model(shared), x)
