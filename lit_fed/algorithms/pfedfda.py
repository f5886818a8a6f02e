"""pFedFDA: a shared body under a Gaussian classifier, whose distributions interpolate between client and global.

Mclaughlin, Su. "Personalized Federated Learning via Feature Distribution Adaptation". NeurIPS 2024.
https://arxiv.org/abs/2411.00329, Algorithm 1.

Symbols:
    φ          -> shared.models  the body, leaves [1, ...]; z = φ(x), inputs of the last layer, [D]
    μ_g, Σ_g   -> shared.means, shared.covariance  p(z | y = c) = N(μ_c, Σ) of all clients, [C, D] and [D, D]
    π_i        -> prior          shares of the classes at client i
    h          -> lda_head       w_c = Σ⁻¹μ_c, b_c = −½ μ_cᵀΣ⁻¹μ_c + log π_c: the network's last layer, never trained
    μ̂_i, Σ̂_i   -> fitted         means of the client's features by class; their covariance within classes, + ε·I
    β_i        -> mixed          (μ̃_i, Σ̃_i) = β_i·(μ̂_i, Σ̂_i) + (1 − β_i)·(μ_g, Σ_g), [C, D] and [D, D]
    ε          -> ridge
Deviations:
    β_i has the least cross-entropy of a two-fold cross-validation, as in the authors' code, but among `grid` numbers in
    [0, 1]; theirs takes ten steps of L-BFGS. By default means and covariance have a β each, as there. Folds alternate
    within each class, in the order of the samples; classes with one sample are left out; without any other β_i = 0.
    Features are those of the body after its local steps, in evaluation mode; theirs are collected while it moves. Their
    covariance is Σ̂ + 1e-4 in every entry + I, which `ridge: 1` is apart from the former, and they shrink it by 1e-4
    before they invert it.
    As there, a class that a client lacks has the global mean, shares of classes are raised by 1e-4, and the server's
    averages are by samples. Their last round has all clients; here its cohort is drawn as those of the others.
    At first Σ_g = I, and μ_g is uniform in [0, 1), as there.
    A client is served the global body under its h of (μ̃_i, Σ̃_i), made of its training samples each time; an unseen
    one likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, Served, local_result, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.partial_models import named_part, names_of, whole_models
from lit_fed.core.prototypes import (
    PersonalHead,
    check_classes,
    class_counts,
    class_features,
    feature_width,
    head_leaves,
)
from lit_fed.core.reduce import server_average
from lit_fed.core.seeds import torch_generator
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, LocalWork, ModelState, Reduced
from lit_fed.errors import ConfigError

__all__ = ["GaussianBody", "Gaussians", "PFedFDA"]

PRIOR_FLOOR = 1e-4
"""Added to the share of each class, so that one that a client lacks can be predicted."""


class Gaussians(NamedTuple):
    """N(μ_c, Σ) of each class."""

    means: Tensor  # μ, [C, D]
    covariance: Tensor  # Σ, [D, D]


class GaussianBody(NamedTuple):
    """The server's state, and a client's message value."""

    models: ModelState  # φ, leaves [1, ...]
    features: Gaussians


@dataclass(frozen=True)
class PFedFDA(Served[GaussianBody, Any, LocalRun]):
    """Clients train a body under a global Gaussian classifier, and are served by one fitted closer to their features.

    Args:
        ridge: ε, added to the variances estimated by a client; the authors' code has 1.
        separate: whether means and covariance each have a β.
        grid: number of values in [0, 1] tried as β.
    """

    ridge: float = ranged(1e-4, "> 0")
    separate: bool = True
    grid: int = ranged(11, ">= 2")

    incompatible = {
        "privacy": "averages class means and a covariance of features beside models",
        "secure_sums": "sends class means and a covariance of features beside them, which no range bounds",
        "noise_in_steps": "the class means and covariances of features",
        "robust": "averages class means and a covariance of features beside them, which no rule judges",
        "personal_parts": "makes a head for each client itself",
    }

    def shared_init(self, ctx: Context) -> GaussianBody:
        """A fresh body; μ_g ~ U[0, 1), Σ_g = I."""
        check_classes(ctx.task.target, "PFedFDA")
        whole, width = ctx.task.init(1, ctx.seed), feature_width(ctx.task, "PFedFDA")
        head = head_leaves(ctx.task, whole)
        if head.keys() != set(ctx.task.last.names.values()) or "bias" not in ctx.task.last.names:
            raise ConfigError(
                "PFedFDA writes weights and biases of the last layer; give a --model.network that has both"
            )
        rng, dtype = torch_generator(ctx.seed, 0, 0, "means"), ctx.task.dtype
        means = torch.rand(ctx.task.target.num_classes, width, generator=rng, dtype=dtype)
        body = named_part(whole, names_of(whole) - head.keys())
        return GaussianBody(body, Gaussians(means, torch.eye(width, dtype=dtype)))

    def state_init(self, ctx: Context, shared: GaussianBody, data: ClientData) -> tuple[()]:
        """Nothing."""
        return ()

    def client_init(self, ctx: Context, shared: GaussianBody, state: Any, data: ClientData, losses: None) -> LocalRun:
        """The received body under h of (μ_g, Σ_g, π_i)."""
        head = lda_head(ctx.task, shared.features, prior(ctx.task, data))
        return local_run(ctx, whole_models(ctx.task.network, shared.models, ModelState(head, {})))

    def client_step(self, ctx: Context, shared: GaussianBody, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of the body on the cross-entropy; h is fixed."""
        return local_step(ctx, work, batch, moving=names_of(shared.models))

    def client_final(self, ctx: Context, shared: GaussianBody, work: LocalRun, data: ClientData) -> ClientResult:
        """Send φ_i, μ̃_i and Σ̃_i; a served client keeps their h."""
        features = self.mixed(ctx.task, shared.features, work.models, data)
        value = GaussianBody(named_part(work.models, names_of(shared.models)), features)
        adapts = ctx.phase == "adapt"
        state = PersonalHead(lda_head(ctx.task, features, prior(ctx.task, data))) if adapts else ()
        return local_result(ctx, work, data, value, state)

    def mixed(self, task: Task, received: Gaussians, models: ModelState, data: ClientData) -> Gaussians:
        """(μ̃_i, Σ̃_i) with the β_i of a two-fold cross-validation, in the type of models."""
        z, member = (leaf.double() for leaf in class_features(task, models, data))
        everyone, log_prior = Gaussians(*(leaf.double() for leaf in received)), prior(task, data).double().log()
        twice = member * (member.sum(0) > 1)
        second = ((twice.cumsum(0) * twice).sum(1, keepdim=True) % 2 == 0).to(z.dtype)
        shares = torch.linspace(0, 1, self.grid, dtype=z.dtype, device=z.device)
        loss = torch.zeros(self.grid, self.grid, dtype=z.dtype, device=z.device)
        for fold in (twice * second, twice * (1 - second)):
            own = fitted(z, fold, everyone, self.ridge)
            loss = loss + held_out_losses(z, twice - fold, own, everyone, log_prior, shares)
        best = (loss if self.separate else loss.diagonal()).flatten().argmin()
        places = (best // self.grid, best % self.grid) if self.separate else (best, best)
        beta = [shares.index_select(0, place.view(1))[0] for place in places]
        found = zip(everyone, fitted(z, member, everyone, self.ridge), beta, strict=True)
        return Gaussians(*(tree.lerp(*one).to(task.dtype) for one in found))

    def server_step(self, ctx: Context, shared: GaussianBody, reduced: Reduced, client_ids: Tensor) -> GaussianBody:
        """The averages of bodies, means and covariances."""
        return server_average(ctx, shared, reduced)  # type: ignore[arg-type,return-value]

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client mixes the distributions, without a step."""
        return LocalWork()

    def served(self, ctx: Context, shared: GaussianBody, state: PersonalHead) -> ModelState:
        """The body under the client's h."""
        return whole_models(ctx.task.network, shared.models, ModelState(state.head, {}))


def prior(task: Task, data: ClientData) -> Tensor:
    """π_i, [C]; positive."""
    counts = class_counts(data, task.target.num_classes, task.dtype)
    share = counts / counts.sum().clamp(min=1) + PRIOR_FLOOR
    return share / share.sum()


def lda_head(task: Task, features: Gaussians, share: Tensor) -> Leaves:
    """H of the Gaussians of classes with shares [C], as leaves [1, ...] of the last layer."""
    means, covariance = (leaf.double() for leaf in features)
    weight = torch.linalg.solve(covariance, means.T).T
    leaves = {"weight": weight, "bias": share.double().log() - 0.5 * (means * weight).sum(1)}
    if task.target.num_outputs == 1:  # a logit log p(1)/p(0)
        leaves = {name: leaf[1:] - leaf[:1] for name, leaf in leaves.items()}
    return {task.last.names[name]: leaf.to(task.dtype).unsqueeze(0) for name, leaf in leaves.items()}


def fitted(z: Tensor, member: Tensor, received: Gaussians, ridge: float) -> Gaussians:
    """μ̂ and Σ̂ of features [N, D] with classes [N, C]; samples with a row of zeros are ignored."""
    counts = member.sum(0).unsqueeze(-1)
    means = torch.where(counts > 0, member.T @ z / counts.clamp(min=1), received.means)
    away = (z - member @ means) * member.sum(1, keepdim=True)
    covariance = away.T @ away / (counts.sum() - 1).clamp(min=1)
    return Gaussians(means, covariance + ridge * torch.eye(z.shape[1], dtype=z.dtype, device=z.device))


def held_out_losses(
    z: Tensor, member: Tensor, own: Gaussians, everyone: Gaussians, log_prior: Tensor, shares: Tensor
) -> Tensor:
    """Cross-entropies of samples under interpolated classifiers, [G, G]: one row per β of the means.

    Args:
        z: features, [N, D].
        member: their classes, [N, C]; rows of zeros are ignored.
        own: the distributions at β = 1.
        everyone: the distributions at β = 0.
        log_prior: log π_i, [C].
        shares: values of β, [G].
    """
    covariance = tree.lerp(everyone.covariance, own.covariance, shares.view(-1, 1, 1))
    both = torch.cat([everyone.means, own.means]).T.expand(len(shares), -1, -1)  # `vmap` does not broadcast solves
    at_0, at_1 = torch.linalg.solve(covariance, both).chunk(2, dim=-1)  # Σ⁻¹μ, [G, D, C] each
    rows = []
    for share in shares:
        weight, means = tree.lerp(at_0, at_1, share), tree.lerp(everyone.means, own.means, share)
        bias = log_prior - 0.5 * (means.T * weight).sum(1)  # [G, C]
        rows.append(-((z @ weight + bias.unsqueeze(1)).log_softmax(-1) * member).sum((1, 2)))
    return torch.stack(rows)
