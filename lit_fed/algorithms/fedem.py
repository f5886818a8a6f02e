"""FedEM: clients as mixtures of M shared distributions, learned by federated expectation-maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Algorithm 1 (in detail Algorithm 2).

Symbols:
    θ_m   -> shared.models        component m, leaves [M, ...]
    π_t   -> state.mixture        mixture weights of client t, [M], sum to 1; never leave the client
    q_t   -> work.responsibility  posterior of the component of each local sample, [N, M], rows sum to 1
    θ_m,t -> work.models          component m after client t's local steps, leaves [M, ...]
    n_t   -> message.weight       samples of client t
Deviations:
    The authors name clients that send only some components as future work. Ours: those of the largest weights
    (`min_weight`, `most_components`), each averaged over the clients that sent it, as `model.aggregation` says.
    The components see the same batches in a local step; the authors' code shuffles for each (`shuffle_per_component`).
    The authors' code keeps momentum from round to round (`solver.persist_optimizer`), fills in clients that were not
    sampled (`model.aggregation: stale_fill`) and updates an unseen client's weights at every evaluation; here an unseen
    client takes `em_steps` E-steps from uniform weights (the paper: one) each time it is served.
    Sequences: the paper's samples have one label each. Ours: ℓ is the mean loss of a sequence's L positions, in the
    local steps and, by default, in the E-step, which so takes the L-th root of the text's likelihood. With
    `position_loss: sum` it takes the likelihood itself: one component writes the whole text, so p(y | x, θ_m) =
    Π_l p(y_l | x, θ_m) = exp(−L·ℓ) and q_m ∝ π_m·exp(−L·ℓ). Serving mixes position by position in both cases:
    Σ_m π_m p(y_l | x, θ_m) is the probability of one label where the others are not known. Losses are per position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, MessageSpec
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.mixtures.e_step import (
    PositionLoss,
    average_chosen,
    batch_weights,
    choose,
    expectation,
    largest,
    num_factors,
    private_expectation,
)
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["FedEM", "MixtureState", "MixtureWork"]


class MixtureState(NamedTuple):
    """What a client keeps."""

    mixture: Tensor  # π_t, [M]


class MixtureWork(NamedTuple):
    """A client's phase."""

    models: ModelState  # θ_m,t, leaves [M, ...]
    optimizer: OptimizerState
    mixture: Tensor  # π_t, [M]
    responsibility: Tensor  # q_t, [N, M]; 0 in padded rows
    loss: Tensor  # [] mean negative log-likelihood of the local samples under the received models and the old π_t


@dataclass(frozen=True)
class FedEM(Algorithm[GlobalModels, MixtureState, MixtureWork]):
    """M component models learned by all clients together; each client learns its own mixture of them.

    Args:
        num_components: M.
        em_steps: E-steps of a client before it is served, if it was not in training; the paper takes one. Where clients
            contradict each other ten bring it level with clients of the training: docs/results/when-mixtures-help.md.
        refresh_mixture_at_eval: let a client of the training take one more E-step before it is served, since its
            weights were fitted to the models of its last round.
        shuffle_per_component: give each component its own order of batches, as the official code does.
        min_weight: smallest weight of a component that a client sends; it sends that of the largest weight anyway.
        most_components: most components that a client sends, those of the largest weights; null: all.
        position_loss: what the E-step of a sequence takes: the `mean` of the losses of its positions, or their `sum`,
            the likelihood of the whole text.
    """

    serving_settings = ("em_steps", "refresh_mixture_at_eval")

    num_components: int = 3
    em_steps: int = 1
    refresh_mixture_at_eval: bool = False
    shuffle_per_component: bool = False
    min_weight: float = 0.0
    most_components: int | None = None
    position_loss: PositionLoss = "mean"

    def __post_init__(self) -> None:
        M, most = self.num_components, self.most_components
        checks = {
            "num_components": (M >= 1, "a whole number >= 1"),
            "em_steps": (self.em_steps >= 1, "a whole number >= 1"),
            "min_weight": (0 <= self.min_weight <= 1, "a number in [0, 1]"),
            "most_components": (most is None or 1 <= most <= M, f"a whole number from 1 to {M}, or null"),
            "position_loss": (self.position_loss in get_args(PositionLoss), "mean or sum"),
        }
        check_settings(self, checks)

    @property
    def num_models(self) -> int:  # type: ignore[override]
        return self.num_components

    @property
    def message(self) -> MessageSpec:  # type: ignore[override]
        """By default every client sends every component, as in the paper."""
        return MessageSpec(complete=self.min_weight == 0 and self.most_components is None)

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Mixture weights need noise of their own; the number of clients that sent a component is private."""
        reasons = {"noise_in_steps_alone": "the mixture weights"}
        if not self.message.complete:
            reasons["privacy"] = "divides by numbers of clients that sent a component, which are private"
        return reasons

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> MixtureState:
        """π_t starts uniform."""
        return MixtureState(torch.full((self.num_components,), 1 / self.num_components, dtype=ctx.task.dtype))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One phase; each component gets batches of its own if asked for."""
        streams = self.num_components if self.shuffle_per_component else 1
        return (Phase("train", client_ids, ctx.solver.work._replace(batches_per_step=streams)),)

    def shared_losses(self, ctx: Context, shared: GlobalModels, batch: Batch) -> Tensor:
        """ℓ(θ_m; s) of each sample s under each received component, [B, M] (evaluation mode)."""
        return ctx.task.losses(ctx.task.outputs(shared.models, batch.x), batch.y)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: MixtureState, data: ClientData, losses: Tensor
    ) -> MixtureWork:
        """The E-step and the new mixture weights, both from the received components (Alg. 1, lines 5-6; Eq. 8-9)."""
        factors = num_factors(ctx.task, data, self.position_loss)
        pi, q, negative_log_likelihood = private_expectation(ctx, state.mixture, losses, data, factors)
        unseen = data.client_id >= ctx.num_clients  # a client of the training takes one E-step
        for _ in range(self.em_steps - 1 if ctx.phase == "adapt" else 0):
            more = expectation(pi, losses, data.mask, factors)
            pi, q = (torch.where(unseen, new, old) for new, old in zip(more[:2], (pi, q), strict=True))
        return MixtureWork(shared.models, ctx.solver.init(shared.models), pi, q, negative_log_likelihood)

    def client_step(self, ctx: Context, shared: GlobalModels, work: MixtureWork, batch: Batch) -> MixtureWork:
        """A step of every component on its weighted loss (Alg. 1, line 7: LocalSolver(m, θ_m, q_t, S_t))."""
        weight = batch_weights(work.responsibility, batch)
        models, optimizer = ctx.solver.step_without_loss(
            ctx.task, work.models, work.optimizer, batch, ctx.lr, weight=weight
        )
        return work._replace(models=models, optimizer=optimizer)

    def client_final(self, ctx: Context, shared: GlobalModels, work: MixtureWork, data: ClientData) -> ClientResult:
        """The components go to the server with the same weight n_t (Alg. 1, line 8); π_t stays."""
        message = Message(work.models, ctx.client_weight(data))
        if not self.message.complete:
            taken = largest(work.mixture, self.most_components, self.min_weight)
            each = tree.bits(work.models, ctx.private) / self.num_components
            bits = taken.sum() * each + self.num_components  # a bit tells whether one is sent
            message = message._replace(value=choose(work.models, taken), bits_up=bits)
        return ClientResult(message, MixtureState(work.mixture), {"loss": work.loss})

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """θ_m <- Σ_t n_t/n θ_m,t (Alg. 1, line 10), over the clients that sent θ_m."""
        if self.message.complete:
            return super().server_step(ctx, shared, reduced, client_ids)
        return GlobalModels(average_chosen(ctx, shared.models, reduced))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """An E-step and no local steps: for unseen clients, and for seen ones if asked for."""
        return LocalWork() if self.refresh_mixture_at_eval or not seen else None

    def log_prob(self, ctx: Context, shared: GlobalModels, state: MixtureState, x: Tensor, outputs: Tensor) -> Tensor:
        """Log Σ_m π_tm p(y | x, θ_m), [B, C]: probabilities are mixed, not logits."""
        return ctx.task.mix(state.mixture, outputs)
