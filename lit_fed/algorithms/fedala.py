"""FedALA: ahead of training, each client learns elementwise weights between the global model and its own.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. "FedALA: Adaptive Local Aggregation for Personalized Federated Learning". AAAI
2023. https://arxiv.org/abs/2212.01197, Algorithm 1.

Symbols:
    Θ^{t-1} -> shared.models   the global model, leaves [1, ...]
    Θ_i     -> state.models    the model of client i after its last local training, leaves [1, ...]
    Θ̂_i     -> work.models     Θ_i + (Θ^{t-1} − Θ_i) ⊙ W_i, which is then trained, leaves [1, ...]
    W_i     -> state.weights   in [0, 1], of the leaves of the top p layers; 1 for those below, leaves [1, ...]
    η       -> weight_lr
    p, s %  -> num_layers, sample_fraction
Deviations:
    The paper learns W_i until its losses converge in the first possible round, and for one pass in later ones. A
    number of steps that depends on losses cannot run for all clients at once. Ours: `start_passes` passes in round 1,
    since in round 0 all models agree and W_i has no gradient; one pass afterwards, also of a client that is first
    sampled later.
    The samples of W_i are drawn anew in each round, in shuffled batches that omit other samples; the authors' code
    takes a contiguous window. It counts tensors, so its `layer_idx 2` is one layer with a bias.
    PFLlib computes Θ̂_i for all clients in each round, and replaces Θ_i of clients that were not sampled.
    Clients are served by Θ_i after training; the authors' code evaluates Θ̂_i in the next round, ahead of training.
    Running statistics are the global ones, since W_i does not apply to them.
    An unseen client trains as in a round, from the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import GlobalModels, LocalRun, Personal, local_result, local_run, ranged
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import draws
from lit_fed.core.networks.layers import last_layers
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Phase, Stage

__all__ = ["AggregationState", "FedALA"]


class AggregationState(NamedTuple):
    """A client's state."""

    models: ModelState  # Θ_i, leaves [1, ...]
    weights: Leaves  # W_i of the top layers, leaves [1, ...]


@dataclass(frozen=True)
class FedALA(Personal[GlobalModels, AggregationState, LocalRun]):
    """FedAvg whose clients start from an elementwise mixture of the global model and their own.

    Args:
        num_layers: p, number of top layers with learnt weights; lower layers are the global ones.
        weight_lr: η, learning rate of the weights.
        sample_fraction: s, share of the training samples on which weights are learnt in a round.
        start_passes: passes over these samples in round 1; later rounds take one.
    """

    num_layers: int = ranged(1, ">= 1")
    weight_lr: float = ranged(1.0, ">= 0")
    sample_fraction: float = ranged(0.8, "(0, 1]")
    start_passes: int = ranged(10, ">= 1")

    in_every_combination = True
    incompatible = {
        "noise_in_steps": "weights of the global model",
        "personal_parts": "keeps the top layers apart itself",
    }

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> AggregationState:
        """Θ_i = Θ and W_i = 1."""
        top = last_layers(ctx.task.network, self.num_layers, "num_layers")
        parameters = shared.models.parameters
        ones = {name: torch.ones_like(leaf) for name, leaf in parameters.items() if name in top}
        return AggregationState(shared.models, ones)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """Learn the weights, then the model; round 0 has no weights to learn."""
        work = ctx.solver.work
        if ctx.round_idx:
            passes = self.start_passes if ctx.round_idx == 1 else 1
            stages = Stage("ala", epochs=passes), Stage("train", work.epochs, work.steps)
            work = work._replace(epochs=None, steps=None, stages=stages)
        return (Phase("train", client_ids, work),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: AggregationState, data: ClientData, losses: None
    ) -> LocalRun:
        """Θ̂_i from the W_i of the last round (line 7)."""
        own = {name: state.models.parameters[name] for name in state.weights}
        models = _combined(shared.models, own, state.weights)
        return local_run(ctx, models, (state.weights, own, _drawn(ctx, data, self.sample_fraction)))

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of W_i with fixed Θ_i and Θ; or a step of local training."""
        return (
            self._weigh(ctx, shared, work, batch)
            if ctx.stage == "ala"
            else super().client_step(ctx, shared, work, batch)
        )

    def _weigh(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """W_i <- clip(W_i − η·∇L(Θ̂_i) ⊙ (Θ − Θ_i)) to [0, 1], and the new Θ̂_i (lines 8-12)."""
        old, own, drawn = work.extra
        batch = batch._replace(mask=batch.mask * drawn[batch.index])
        _, gradient, _ = ctx.task.value_and_grad(work.models, batch)
        weights = {}
        for name, weight in old.items():
            slope = gradient[name] * (shared.models.parameters[name] - own[name])
            weights[name] = (weight - self.weight_lr * slope).clamp(0, 1)
        return work._replace(models=_combined(shared.models, own, weights), extra=(weights, own, drawn))

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send Θ_i; keep Θ_i and W_i (lines 13-14)."""
        return local_result(ctx, work, data, state=AggregationState(work.models, work.extra[0]))

    # server_step: Θ <- Σ_i n_i/n Θ_i is the default


def _combined(models: ModelState, own: Leaves, weights: Leaves) -> ModelState:
    """The global models with Θ_i + (Θ − Θ_i) ⊙ W_i in the top layers; exactly Θ where W_i is 1."""
    top = {}
    for name, weight in weights.items():
        mixed = own[name] + (models.parameters[name] - own[name]) * weight
        top[name] = torch.where(weight == 1, models.parameters[name], mixed)
    return models._replace(parameters=models.parameters | top)


def _drawn(ctx: Context, data: ClientData, fraction: float) -> Tensor:
    """Mask of the client's samples drawn for this round, at least one, [N] bool."""
    most = max(ctx.most_samples, 1)
    rows = torch.arange(len(data.mask), device=data.mask.device) % most  # unseen clients may have more
    keys = draws(ctx, "weight samples", most, data.client_id)[rows]
    rank = torch.argsort(torch.argsort(keys.masked_fill(data.mask == 0, torch.inf), stable=True))
    count = torch.floor(fraction * data.num_samples + 1e-9).clamp(min=1)
    return (rank < count) & (data.mask > 0)
