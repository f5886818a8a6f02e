"""FedGen: clients also learn from features that a generator at the server produces for each label.

Zhu, Hong, Zhou. "Data-Free Knowledge Distillation for Heterogeneous Federated Learning". ICML 2021.
https://arxiv.org/abs/2105.10056, Algorithm 1, Equations 4 and 5.

Symbols:
    θ     -> shared.models      body and head, leaves [1, ...]
    w     -> shared.generator   G_w(z | y), from a label and Gaussian noise ε to features z [D]
    p̂(y)  -> shared.labels      frequency of each label at the clients of the last round, [C]; initially uniform
    c_k   -> message.counts     label counts of client k, [C]
    K     -> clients of a round, whose heads the generator is trained against
Deviations:
    A client draws `generated` features at the start of its round, and uses them batch by batch; the paper draws for
    each step, from the same generator.
    The generator is the authors', without its BatchNorm: a hidden layer of `width` with ReLU, and a linear one.
    The paper mentions a term for diverse features. Ours is the authors' (`diversity`; 0: Equation 4 only):
    exp(-mean over pairs of mean (ε_i - ε_j)² · mean |z_i - z_j|).
    Their program, unlike the paper, trains the generator on the clients' losses, weighted by their shares of the label
    (`by_label`), not on the loss of the mean logits. Not reproduced: broadcasting multiplies each loss by the
    weights of all samples of the batch; labels are counted from 1 and drawn uniformly; noise is uniform; clients use
    generated features from the second round on, with a third term in their loss; both terms decay by 0.98 a round.
    PFLlib weights logits by samples, and keeps the authors' BatchNorm, in training mode also at clients.
    Labels with positions have features at each position, and are refused.
    An unseen client is served by the global model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, LocalRun, MessageSpec, Participation, local_result, local_run, local_step
from lit_fed.core.context import Context
from lit_fed.core.networks.stacked_network import fresh_leaves
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.prototypes import check_classes, class_counts, class_cross_entropy, feature_width
from lit_fed.core.reduce import stacked_average
from lit_fed.core.seeds import torch_generator, uniforms
from lit_fed.core.server_optimizer import ServerMoments, ServerOptimizer
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Reduced
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FedGen", "GenerativeModels", "ModelsWithCounts"]


class GenerativeModels(NamedTuple):
    """The server's state."""

    models: ModelState  # θ, leaves [1, ...]
    generator: Leaves  # w
    labels: Tensor  # p̂(y), [C]
    moments: ServerMoments  # parameters of the generator


class ModelsWithCounts(NamedTuple):
    """A client's message value."""

    models: ModelState  # θ_k, leaves [1, ...]
    counts: Tensor  # c_k, [C]


@dataclass(frozen=True)
class FedGen(Algorithm[GenerativeModels, tuple[()], LocalRun]):
    """FedAvg whose heads also train on generated features; the generator learns features that all heads classify well.

    Args:
        weight: weight of the loss on generated features at the clients; 0 is FedAvg.
        generated: features that a client draws per round.
        noise_size: entries of ε.
        width: hidden units of the generator.
        server_steps: steps of the generator per round.
        server_batch_size: features per step.
        diversity: weight of the term for diverse features.
        by_label: whether the generator's loss is the mean of the clients' losses, weighted by their shares of the
            label, as in the authors' program, instead of the loss of their mean logits.
        server_optimizer: the generator's optimizer.
    """

    weight: float = 1.0
    generated: int = 256
    noise_size: int = 32
    width: int = 256
    server_steps: int = 50
    server_batch_size: int = 128
    diversity: float = 1.0
    by_label: bool = False
    server_optimizer: ServerOptimizer = field(
        default_factory=lambda: ServerOptimizer("Adam", 3e-4, options={"weight_decay": 0.01})
    )

    message = MessageSpec("rows", reduce="stack")
    participation = Participation("uniform", fills_in_absent=False)
    server_only = ("moments",)
    incompatible = {
        "size_sampling": "takes the plain mean of the clients' logits, in which each counts once",
        "local_norm": "needs the whole model of each client at its server",
    }

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("generated", "noise_size", "width", "server_batch_size"), ">= 1")
        check_settings(self, counts, weight=">= 0", server_steps=">= 0", diversity=">= 0")
        self.server_optimizer.check("--model.algorithm.server_optimizer")

    def shared_init(self, ctx: Context) -> GenerativeModels:
        """A fresh model and a fresh generator; p̂(y) is uniform."""
        check_classes(ctx.task.target, "FedGen")
        if ctx.task.target.positions:
            raise ConfigError("FedGen generates the features of a sample, and these labels have positions; give others")
        classes, width = ctx.task.target.num_classes, feature_width(ctx.task, "FedGen")
        build = partial(_Generator, self.noise_size + classes, self.width, width)
        generator = fresh_leaves(build, ctx.seed, "generator", ctx.task.dtype)
        labels = torch.full((classes,), 1 / classes, dtype=ctx.task.dtype)
        models = ctx.task.init(1, ctx.seed)
        return GenerativeModels(models, generator, labels, self.server_optimizer.init(generator))

    def client_init(
        self, ctx: Context, shared: GenerativeModels, state: tuple[()], data: ClientData, losses: None
    ) -> LocalRun:
        """θ_k <- θ, with labels ŷ ~ p̂(y) and features ẑ ~ G_w(· | ŷ) (lines 5-7)."""
        drawn = uniforms(ctx.seed, ctx.round_idx, data.client_id, "generated", self.generated * (1 + self.noise_size))
        of_labels, of_noise = drawn[: self.generated], drawn[self.generated :].view(self.generated, self.noise_size)
        labels = (of_labels.unsqueeze(1) >= shared.labels.double().cumsum(0)[:-1]).sum(1)
        noise = math.sqrt(2) * torch.erfinv(2 * of_noise - 1).to(ctx.task.dtype)
        features = _features(shared.generator, noise, labels, len(shared.labels))
        return local_run(ctx, shared.models, (features, labels, ctx.batch_size_of(data.client_id)))

    def client_step(self, ctx: Context, shared: GenerativeModels, work: LocalRun, batch: Batch) -> LocalRun:
        """θ_k <- θ_k - β ∇J(θ_k), on as many generated features as samples (line 8, Eq. 5)."""
        features, labels, stride = work.extra
        begin = work.steps.long() * stride  # independent of the padding of the batch
        place = (begin + torch.arange(len(batch.mask), device=batch.mask.device)) % self.generated
        rows = tuple(leaf.index_select(0, place).unsqueeze(1) for leaf in (features, labels))
        return local_step(ctx, work, batch, objective=Objective(self.loss, rows=rows))

    def loss(self, view: ModelView) -> Tensor:
        """ℓ(x, y) + ℓ(h(ẑ), ŷ) of each sample and its generated feature, [B]."""
        features, labels = view.rows
        return view.losses + self.weight * class_cross_entropy(view.head(features), labels)

    def client_final(self, ctx: Context, shared: GenerativeModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send θ_k and c_k (line 10)."""
        counts = class_counts(data, len(shared.labels), ctx.task.dtype)
        return local_result(ctx, work, data, ModelsWithCounts(work.models, counts))

    def server_step(
        self, ctx: Context, shared: GenerativeModels, reduced: Reduced, client_ids: Tensor
    ) -> GenerativeModels:
        """θ <- mean of θ_k, p̂(y) from all c_k, then w <- w - α ∇J(w) (lines 11-12, Eq. 4)."""
        sent: ModelsWithCounts = reduced.value
        models = stacked_average(sent.models, reduced.weight)
        counts = sent.counts.double()
        labels = counts.sum(0) / counts.sum()
        heads = tree.map_leaves(lambda leaf: leaf.squeeze(1), sent.models)  # one axis for all models, [K, ...]
        shares = (counts / counts.sum(0).clamp(min=1)).to(ctx.task.dtype)
        generator, moments = shared.generator, shared.moments
        rng = torch_generator(ctx.seed, ctx.round_idx, 0, "generator")
        for _ in range(self.server_steps):
            slope = self._slope(ctx, generator, heads, labels, shares, rng)
            generator, moments = self.server_optimizer.update(ctx, generator, slope, moments)
        return GenerativeModels(models, generator, labels, moments)

    def _slope(
        self, ctx: Context, generator: Leaves, heads: ModelState, labels: Tensor, shares: Tensor, rng: torch.Generator
    ) -> Leaves:
        """∇J(w) on a batch, from the clients' shares of each label, [K, C]."""
        size, device = (self.server_batch_size, self.noise_size), labels.device
        y = torch.multinomial(labels.cpu(), size[0], replacement=True, generator=rng).to(device)
        noise = torch.randn(size, generator=rng, dtype=ctx.task.dtype).to(device)
        given = {name: leaf.detach().requires_grad_() for name, leaf in generator.items()}
        with torch.enable_grad():
            features = _features(given, noise, y, len(labels))
            logits = ctx.task.head(heads, features.unsqueeze(1).expand(-1, len(shares), -1))
            if self.by_label:
                each = class_cross_entropy(logits.flatten(0, 1), y.repeat_interleave(len(shares))).view(-1, len(shares))
                loss = (shares.T[y] * each).sum(1).mean()
            else:
                loss = class_cross_entropy(logits.mean(1), y).mean()
            if self.diversity:
                loss = loss + self.diversity * _alike(noise, features)
            return dict(zip(given, torch.autograd.grad(loss, list(given.values())), strict=True))


class _Generator(nn.Module):
    """Fresh parameters of a generator."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.hidden, self.features = nn.Linear(inputs, width), nn.Linear(width, outputs)


def _features(generator: Leaves, noise: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """G_w(z | y), [B, D], from noise [B, E] and labels [B]; in the precision of models."""
    one_hot = (labels.unsqueeze(1) == torch.arange(num_classes, device=labels.device)).to(noise.dtype)
    with torch.autocast(noise.device.type, enabled=False):
        hidden = F.linear(torch.cat([noise, one_hot], 1), generator["hidden.weight"], generator["hidden.bias"]).relu()
        return F.linear(hidden, generator["features.weight"], generator["features.bias"])


def _alike(noise: Tensor, features: Tensor) -> Tensor:
    """exp(-mean product of the distances of noise and of features) over all pairs of rows; [] in (0, 1]."""
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(2)
    differ = (features.unsqueeze(0) - features.unsqueeze(1)).abs().mean(2)
    return torch.exp(-(apart * differ).mean())
