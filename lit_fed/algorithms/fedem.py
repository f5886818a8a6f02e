"""FedEM: clients as mixtures of M shared distributions, learned by federated expectation-maximisation.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Algorithm 1 (in detail Algorithm 2). Another algorithm of this name, federated EM with
compressed messages and variance reduction, is by Dieuleveut, Fort, Moulines, Robin (NeurIPS 2021).

Symbols:
    θ_m   -> shared.models        component m, leaves [M, ...]
    π_t   -> state.mixture        mixture weights of client t, [M], sum to 1; never sent by FedEM
    q_t   -> work.responsibility  posterior of the component of each local sample, [N, M], rows sum to 1
    θ_m,t -> work.models          component m after client t's local steps, leaves [M, ...]
    n_t   -> message.weight       samples of client t; 1 with `--model.weighting uniform`
    ℓ     -> losses               loss of each local sample under each received component, [N, M]
    T     -> ctx.num_clients      seen clients, which train; an unseen client, with an id from T, fits its π_t alone, in
                                  the phase `adapt` before it is served
E-step:
    q_t,m ∝ π_t,m·exp(−ℓ_m) for each sample; then π_t <- the mean of q_t over the client's samples.
Deviations:
    FedEM averages a component over all clients by n_t, as in the paper. `ResponsibilityFedEM` is another rule.
    An unseen client takes `em_steps` E-steps from uniform weights each time it is served (the paper: one).
    All components take a local step on the same batch. `OfficialFedEM` follows the authors' code in this and in
    serving. Two more of its habits are settings of every algorithm: it keeps momentum from round to round
    (`solver.persist_optimizer`) and fills in clients that were not sampled (`model.aggregation: stale_fill`).
    The paper allows a different local solver for each client (Section 3.2): here rates, steps and batches may differ
    (`solver.client_lr`, `client_work`, `client_batch_size`), the optimizer may not.
    The paper's samples have one label each. A sequence counts with the mean loss ℓ of its L positions, in local steps
    and in the E-step, which thus uses the L-th root of its likelihood. With `position_loss: sum` the E-step uses the
    likelihood of the whole text, exp(−L·ℓ). Serving mixes each position in both cases.
"""

# No `from __future__ import annotations`: jsonargparse resolves inherited ones in the module of a subclass.
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, MessageSpec, ranged
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.mixtures.e_step import PositionLoss, average_chosen, batch_weights, choose, private_expectation
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.wrappers.mixture_start import MixtureStart

__all__ = ["FedEM", "MixtureState", "MixtureWork", "OfficialFedEM", "ResponsibilityFedEM"]


class MixtureState(NamedTuple):
    """A client's state."""

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
        em_steps: E-steps of an unseen client before it is served; the paper takes one. If clients contradict each
            other, ten bring it level with seen clients: docs/results/when-mixtures-help.md.
        position_loss: loss of a sequence in the E-step: the `mean` over its positions, or their `sum`,
            the likelihood of the whole text.
        start: `Clustering`: begin with rounds of IFCA, so that groups of clients do not share a component; null: none.
    """

    num_components: int = ranged(3, ">= 1")
    em_steps: int = ranged(1, ">= 1")
    position_loss: PositionLoss = "mean"
    start: MixtureStart | None = None

    in_every_combination = True
    serving_settings: ClassVar[tuple[str, ...]] = ("em_steps",)  # read in the phase `adapt` alone, never in training
    without_samples = "the mean mixture of the seen clients"
    mean_mixture = True
    reads_losses = True  # ℓ(θ_m; s) of each sample s under each received component, [N, M]
    # Privacy of samples needs noise on π_t too, `mixture_noise`, since q_t weighs the local steps.
    incompatible = {"noise_in_steps_alone": "the mixture weights"}

    @property
    def num_models(self) -> int:  # type: ignore[override]
        return self.num_components

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> MixtureState:
        """π_t starts uniform."""
        return MixtureState(torch.full((self.num_components,), 1 / self.num_components, dtype=ctx.task.dtype))

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: MixtureState, data: ClientData, losses: Tensor
    ) -> MixtureWork:
        """E-step: q_t, and the new π_t as its mean over samples (Alg. 1, lines 5-6; Eq. 8-9).

        `private_expectation` adds noise to π_t under privacy of samples, and none otherwise.
        """
        pi, q, loss = private_expectation(ctx, state.mixture, losses, data, self.position_loss)
        for _ in range(self.em_steps - 1 if ctx.phase == "adapt" else 0):
            pi, q, _ = private_expectation(ctx, pi, losses, data, self.position_loss)
        return MixtureWork(shared.models, ctx.solver.init(shared.models), pi, q, loss)

    def client_step(self, ctx: Context, shared: GlobalModels, work: MixtureWork, batch: Batch) -> MixtureWork:
        """M-step: a step of every component on its weighted loss (Alg. 1, line 7: LocalSolver(m, θ_m, q_t, S_t))."""
        weight = batch_weights(work.responsibility, batch)
        models, optimizer, _ = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, ctx.lr, weight=weight)
        return work._replace(models=models, optimizer=optimizer)

    def client_final(self, ctx: Context, shared: GlobalModels, work: MixtureWork, data: ClientData) -> ClientResult:
        """Send the components (Alg. 1, line 8); π_t and q_t stay at the client."""
        return ClientResult(
            Message(work.models, ctx.client_weight(data)), MixtureState(work.mixture), {"loss": work.loss}
        )

    # The server's step is the default, server_average: θ_m <- Σ_t n_t/n θ_m,t (Alg. 1, line 10).

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """An unseen client takes E-steps, and no local steps (`LocalWork()`); a seen one is served as it is (None)."""
        return None if seen else LocalWork()

    def log_prob(self, ctx: Context, shared: GlobalModels, state: MixtureState, x: Tensor, outputs: Tensor) -> Tensor:
        """Log Σ_m π_tm p(y | x, θ_m), [B, C]: probabilities are mixed, not logits."""
        return ctx.task.mix(state.mixture, outputs)


WEIGHS = "averages by mixture weights that each client sends; give --model.algorithm FedEM"  # see `incompatible`


@dataclass(frozen=True)
class ResponsibilityFedEM(FedEM):
    """FedEM with components averaged by what each client uses of them; the server learns each client's mixture.

    θ_m <- Σ_t n_t π_tm θ_m,t / Σ_t n_t π_tm, the weights of the exact M-step; not in the paper. By the paper's rule the
    step of a component is proportional to its share of all samples: the leading component learns fastest, and two
    groups of clients may end up sharing one. docs/results/fedem-starts.md compares both.
    """

    message = MessageSpec(complete=False)  # components that a client does not use are not sent
    reveals_mixture = True
    incompatible = {**FedEM.incompatible, **dict.fromkeys(("privacy", "robust", "ef21"), WEIGHS)}

    def client_final(self, ctx: Context, shared: GlobalModels, work: MixtureWork, data: ClientData) -> ClientResult:
        """Send π_tm θ_m,t and π_t, which the server adds up with weights n_t; a component of weight 0 costs no bits."""
        result = super().client_final(ctx, shared, work, data)
        sent = (work.mixture > 0).sum(dtype=torch.float64) / self.num_components
        bits = sent * tree.bits(work.models, ctx.private) + tree.bits(work.mixture)
        message = result.message._replace(value=choose(work.models, work.mixture), bits_up=bits)
        return result._replace(message=message)

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """θ_m <- Σ_t n_t π_tm θ_m,t / Σ_t n_t π_tm; a component that no client uses is unchanged.

        With `stale_fill` absent clients count with the mean shares of the participants (`absent_alike`).
        """
        return GlobalModels(average_chosen(ctx, shared.models, reduced, absent_alike=True))


@dataclass(frozen=True)
class OfficialFedEM(FedEM):
    """FedEM with two habits of the authors' code, https://github.com/omarfoq/FedEM, for comparisons with it.

    Args:
        shuffle_per_component: give each component its own order of batches.
        refresh_mixture_at_eval: let a seen client take another E-step before it is served, since its weights were
            fitted to the models of its last round. The authors' code keeps the result; here it is dropped.
    """

    shuffle_per_component: bool = True
    refresh_mixture_at_eval: bool = True
    serving_settings = ("em_steps", "refresh_mixture_at_eval")

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        streams = self.num_components if self.shuffle_per_component else 1
        return (Phase("train", client_ids, ctx.solver.work._replace(batches_per_step=streams)),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: MixtureState, data: ClientData, losses: Tensor
    ) -> MixtureWork:
        """The E-steps of FedEM; one of a seen client. Clients run under `vmap`: both are computed, one is chosen."""
        work = super().client_init(ctx, shared, state, data, losses)
        if ctx.phase != "adapt" or self.em_steps == 1:
            return work
        once = replace(self, em_steps=1).client_init(ctx, shared, state, data, losses)
        seen = data.client_id < ctx.num_clients
        return work._replace(mixture=torch.where(seen, once.mixture, work.mixture))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        return LocalWork() if self.refresh_mixture_at_eval or not seen else None
