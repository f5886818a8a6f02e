"""GPFL: features on two paths, one guided by global class embeddings, one for the personal head.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan. "GPFL: Simultaneously Learning Global and Personalized Feature Information
for Personalized Federated Learning". ICCV 2023. https://arxiv.org/abs/2308.10279, Section 3.

Symbols:
    φ; W^fe    -> shared.models   feature extractor, f = φ(x) [D], leaves [1, ...]
    V          -> shared.models   conditional valve (CoV), leaves `guides.gamma…` and `guides.beta…`
    C          -> shared.models   global category embeddings (GCE), `guides.embedding.weight` [1, U, D], U classes
    ψ; W_i^h   -> state.own       the client's head, leaves [1, ...]; never leaves it
    Ĉ          -> work.received   the embeddings at the start of the round, frozen, [U, D]
    α_i        -> state.shares    shares of the classes at the client, [U]; never leave it
    g, p_i     -> conditions      inputs of the valve: the mean of Ĉ over classes, and its mean by α_i, [D]
    f^G, f^P   -> relu((γ + 1) ⊙ f + β) with γ, β = valve(g), and with valve(p_i)
    L_i        -> loss            CE(ψ(f^P), y) + L^alg + λ·L^mlg: L^alg = CE(cos(f^G, C), y), L^mlg = ‖f^G − Ĉ_y‖₂
    λ, μ       -> weight, decay
Deviations:
    ‖·‖₂ is taken for each sample, as in the paper; the authors' code takes one Frobenius norm of a batch, without mean.
    g and p_i come from the received embeddings, as in the paper; in their code from those of the client's last round.
    p_i = Σ_u α_i^u·Ĉ_u is not divided by U, as in their code.
    μ is a weight decay of V and C, as in their code; the paper adds norms to the loss.
    All parts take a step at once.
    A client is served the received φ, V and C under its own head.
    An unseen client has no head in the paper. Ours: the initial one trains as in a round, with its own α.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, local_result, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.networks.products import full_precision
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.partial_models import PersonalPart, SentPart, module_leaves, named_part, names_of, with_module
from lit_fed.core.prototypes import check_classes, class_counts, feature_width, head_leaves, per_sample
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState

__all__ = ["GPFL", "OwnRoute"]

Leaves = Mapping[str, Tensor]
"""V and C, without model axis."""


class OwnRoute(NamedTuple):
    """A client's state."""

    own: ModelState  # W_i^h, leaves [1, ...]
    shares: Tensor  # α_i, [U]


@dataclass(frozen=True)
class GPFL(PersonalPart):
    """Clients share a body, class embeddings that guide it, and a valve that divides its features; heads are personal.

    Args:
        weight: λ of the distance to the received embedding of the class.
        decay: μ, weight decay of valve and embeddings.
    """

    weight: float = ranged(0.01, ">= 0")
    decay: float = ranged(0.1, ">= 0")

    state_reads_data = True
    incompatible = PersonalPart.incompatible | {
        "noise_in_steps": "the client's head and its shares of classes",
        "fine_tuning": "predicts from features that its valve has changed",
    }

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The last layer's."""
        return frozenset(head_leaves(ctx.task, ModelState(dict(ctx.task.network.named_parameters()), {})))

    def shared_init(self, ctx: Context) -> SentPart:
        """The initial body and head, with a fresh valve and fresh embeddings beside the body."""
        check_classes(ctx.task.target, "GPFL")
        shared, width = super().shared_init(ctx), feature_width(ctx.task, "GPFL")
        build = partial(_Guides, ctx.task.target.num_classes, width)
        return shared._replace(models=with_module(ctx, shared.models, build, "guides"))

    def state_init(self, ctx: Context, shared: SentPart, data: ClientData) -> OwnRoute:
        """The initial head, and α_i."""
        return OwnRoute(super().state_init(ctx, shared, data).own, class_shares(ctx.task, data))

    def client_init(self, ctx: Context, shared: SentPart, state: OwnRoute, data: ClientData, losses: None) -> LocalRun:
        """φ, V and C as received, the own head; and Ĉ, [U, D], with the conditions g and p_i of the round, [D] each."""
        models, guides = self.whole(ctx, shared, state), module_leaves(shared.models, "guides")
        known = tree.index(guides, 0)
        models = models._replace(parameters=models.parameters | guides)
        return local_run(ctx, models, (known[EMBEDDING], *conditions(known, state.shares)))

    def client_step(self, ctx: Context, shared: SentPart, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of all parts on L_i; of an unseen client's head alone."""
        guides = module_leaves(work.models, "guides")
        constants = tuple(one.unsqueeze(0) for one in work.extra)
        decay = {
            name: self.decay * leaf if name in guides else leaf.new_zeros(1)
            for name, leaf in work.models.parameters.items()
        }
        return local_step(
            ctx, work, batch, moving=names_of(shared.own) if ctx.phase == "adapt" else None,
            penalty=Penalty(linear=decay),
            objective=Objective(self.loss, uses_features=True, constants=constants, leaves=tuple(guides)),
        )  # fmt: skip

    def loss(self, view: ModelView) -> Tensor:
        """L_i of each sample, [B]."""
        received, g, p_i = view.constants
        guided = routed(view.features, view.leaves, g)
        with full_precision(guided):
            cosines = F.normalize(guided, dim=-1) @ F.normalize(view.leaves[EMBEDDING], dim=-1).T
        angle = -cosines.log_softmax(-1).gather(-1, view.y.unsqueeze(-1))[..., 0]
        distance = torch.linalg.vector_norm(guided - received[view.y], dim=-1)
        losses = view.trained_on.losses(view.head(routed(view.features, view.leaves, p_i)), view.y)
        return losses + per_sample(angle + self.weight * distance)

    def client_final(self, ctx: Context, shared: SentPart, work: LocalRun, data: ClientData) -> ClientResult:
        """φ, V and C go to the server, which averages them; head and α_i stay."""
        sent = named_part(work.models, names_of(shared.models))
        state = OwnRoute(named_part(work.models, names_of(shared.own)), class_shares(ctx.task, data))
        return local_result(ctx, work, data, sent, state)

    def log_prob(self, ctx: Context, shared: SentPart, state: OwnRoute, x: Tensor, outputs: None) -> Tensor:
        """The prediction of ψ(f^P)."""
        models, guides = self.whole(ctx, shared, state), tree.index(module_leaves(shared.models, "guides"), 0)
        f = ctx.task.features(models, x)
        scores = ctx.task.head(models, routed(f, guides, conditions(guides, state.shares)[1]))
        return ctx.task.mix(scores.new_ones(1), scores)


EMBEDDING = "guides.embedding.weight"
"""Name of C."""


class _Guides(nn.Module):
    """Fresh embeddings of classes, and a fresh valve."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, width)
        self.gamma, self.beta = (nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in "γβ")


def class_shares(task: Task, data: ClientData) -> Tensor:
    """α_i, [U]."""
    counts = class_counts(data, task.target.num_classes, task.dtype)
    return counts / counts.sum().clamp(min=1)


def conditions(guides: Leaves, shares: Tensor) -> tuple[Tensor, Tensor]:
    """G and p_i, [D] each, of a client with these shares of classes [U]."""
    known = guides[EMBEDDING]
    return known.mean(0), (shares.unsqueeze(1) * known).sum(0)


def valve(guides: Leaves, condition: Tensor) -> tuple[Tensor, Tensor]:
    """γ and β: LayerNorm(relu(Linear(condition))), two networks, [D] each."""

    def one(name: str) -> Tensor:
        weight, bias, scale, shift = (
            guides[f"guides.{name}.{leaf}"] for leaf in ("0.weight", "0.bias", "2.weight", "2.bias")
        )
        hidden = ((weight * condition).sum(1) + bias).relu()  # a matrix product would be autocast
        return F.layer_norm(hidden, hidden.shape, scale, shift)

    return one("gamma"), one("beta")


def routed(f: Tensor, guides: Leaves, condition: Tensor) -> Tensor:
    """relu((γ + 1) ⊙ f + β) of features [..., D]."""
    gamma, beta = valve(guides, condition)
    return ((gamma + 1) * f + beta).relu()
