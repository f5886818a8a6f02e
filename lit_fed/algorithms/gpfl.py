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
    All parts take a step at once, but V and C are trained on features of evaluation mode.
    A client is served the received φ, V and C under its own head.
    An unseen client has no head in the paper. Ours: the initial one trains `unseen_epochs` passes, with its own α.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.algorithm import local_run
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.networks.products import full_precision
from lit_fed.core.partial_models import PersonalPart, SentPart, module_leaves, named_part, names_of, with_module
from lit_fed.core.prototypes import check_classes, class_counts, feature_width, head_leaves, masked_mean, per_sample
from lit_fed.core.targets import Criterion, ModelView, Objective, Target
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, ModelState
from lit_fed.errors import check_settings

__all__ = ["GPFL", "GuidedRun", "OwnRoute"]

Leaves = dict[str, Tensor]
Gates = tuple[Tensor, Tensor]
"""γ and β of a condition, [D] each."""


class OwnRoute(NamedTuple):
    """A client's state."""

    own: ModelState  # W_i^h, leaves [1, ...]
    shares: Tensor  # α_i, [U]


class GuidedRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # φ and ψ, leaves [1, ...]
    guides: Leaves  # V and C, leaves [1, ...]
    optimizer: tuple[OptimizerState, OptimizerState]  # of φ and ψ, and of V and C
    loss: Tensor  # [] sum over steps of the mean of L_i over the batch, before the step
    steps: Tensor  # [] steps taken
    received: Tensor  # Ĉ, [U, D]
    conditions: tuple[Tensor, Tensor]  # g and p_i, [D] each


@dataclass(frozen=True)
class GPFL(PersonalPart):
    """Clients share a body, class embeddings that guide it, and a valve that divides its features; heads are personal.

    Args:
        weight: λ of the distance to the received embedding of the class.
        decay: μ, weight decay of valve and embeddings.
    """

    weight: float = 0.01
    decay: float = 0.1

    incompatible: ClassVar[dict[str, str]] = PersonalPart.incompatible | {
        "noise_in_steps": "the client's head and its shares of classes"
    }

    def __post_init__(self) -> None:
        check_settings(self, weight=">= 0", decay=">= 0")

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

    def client_init(self, ctx: Context, shared: SentPart, state: OwnRoute, data: ClientData, losses: None) -> GuidedRun:
        """φ, V and C as received, the own head, and the conditions g and p_i of the round."""
        guides = module_leaves(shared.models, "guides")
        run, optimizer = local_run(ctx, self.whole(ctx, shared, state)), ctx.solver.init(ModelState(guides, {}))
        return GuidedRun(
            run.models, guides, (run.optimizer, optimizer), run.loss, run.steps, embeddings(guides),
            conditions(guides, state.shares),
        )  # fmt: skip

    def client_step(self, ctx: Context, shared: SentPart, work: GuidedRun, batch: Batch) -> GuidedRun:
        """A step of all parts on L_i, from the same values; of an unseen client's head alone."""
        task, solver, (of_models, of_guides), adapts = ctx.task, ctx.solver, work.optimizer, ctx.phase == "adapt"
        z, (g, p_i) = task.features(work.models, batch.x)[:, 0], work.conditions

        def guided_loss(guides: Leaves) -> Tensor:
            given = (valve(guides, g), valve(guides, p_i), embeddings(guides), work.received)
            head = lambda f: task.head(work.models, f.unsqueeze(1))[:, 0]  # noqa: E731
            return masked_mean(self.losses(z, batch.y, head, task.trained_on, given), batch.mask)

        gradient, loss = grad_and_value(guided_loss)(work.guides)
        given = (*valve(work.guides, g), *valve(work.guides, p_i), embeddings(work.guides), work.received)
        models, of_models = solver.step_without_loss(
            task, work.models, of_models, batch, ctx.lr, moving=names_of(shared.own) if adapts else None,
            objective=Objective(self.loss, uses_features=True, constants=tuple(one.unsqueeze(0) for one in given)),
        )  # fmt: skip
        if not adapts:
            gradient = {name: leaf + self.decay * work.guides[name] for name, leaf in gradient.items()}
            guides, of_guides = solver.update(work.guides, gradient, of_guides, ctx.lr)
            work = work._replace(guides=guides)
        return work._replace(
            models=models, optimizer=(of_models, of_guides), loss=work.loss + loss, steps=work.steps + 1
        )

    def loss(self, view: ModelView) -> Tensor:
        """L_i of each sample, [B]."""
        gamma, beta, own_gamma, own_beta, *rest = view.constants
        given = ((gamma, beta), (own_gamma, own_beta), *rest)
        return self.losses(view.features, view.y, view.head, view.trained_on, given)

    def losses(
        self, f: Tensor, y: Tensor, head: Callable[[Tensor], Tensor], trained_on: Target | Criterion,
        given: tuple[Gates, Gates, Tensor, Tensor],
    ) -> Tensor:  # fmt: skip
        """L_i of each sample, [B], from features [B, D]; `given`: gates of g and p_i, C, and Ĉ."""
        of_all, of_own, current, received = given
        guided = routed(f, of_all)
        with full_precision(guided):
            cosines = F.normalize(guided, dim=-1) @ F.normalize(current, dim=-1).T
        angle = -cosines.log_softmax(-1).gather(-1, y.unsqueeze(-1))[..., 0]
        distance = torch.linalg.vector_norm(guided - received[y], dim=-1)
        return trained_on.losses(head(routed(f, of_own)), y) + per_sample(angle + self.weight * distance)

    def client_final(self, ctx: Context, shared: SentPart, work: GuidedRun, data: ClientData) -> ClientResult:
        """φ, V and C go to the server, which averages them; head and α_i stay."""
        whole = work.models._replace(parameters=work.models.parameters | work.guides)
        message = Message(named_part(whole, names_of(shared.models)), ctx.client_weight(data))
        state = OwnRoute(named_part(whole, names_of(shared.own)), class_shares(ctx.task, data))
        return ClientResult(message, state, {"loss": work.loss / work.steps.clamp(min=1)})

    def log_prob(self, ctx: Context, shared: SentPart, state: OwnRoute, x: Tensor, outputs: None) -> Tensor:
        """The prediction of ψ(f^P)."""
        models, guides = self.whole(ctx, shared, state), module_leaves(shared.models, "guides")
        f = ctx.task.features(models, x)
        scores = ctx.task.head(models, routed(f, valve(guides, conditions(guides, state.shares)[1])))
        return ctx.task.mix(scores.new_ones(1), scores)


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


def embeddings(guides: Leaves) -> Tensor:
    """C, [U, D]."""
    return guides["guides.embedding.weight"][0]


def conditions(guides: Leaves, shares: Tensor) -> tuple[Tensor, Tensor]:
    """G and p_i, [D] each, of a client with these shares of classes [U]."""
    known = embeddings(guides)
    return known.mean(0), (shares.unsqueeze(1) * known).sum(0)


def valve(guides: Leaves, condition: Tensor) -> Gates:
    """γ and β: LayerNorm(relu(Linear(condition))), two networks."""

    def one(name: str) -> Tensor:
        weight, bias, scale, shift = (
            guides[f"guides.{name}.{leaf}"][0] for leaf in ("0.weight", "0.bias", "2.weight", "2.bias")
        )
        hidden = ((weight * condition).sum(1) + bias).relu()  # a matrix product would be autocast
        return F.layer_norm(hidden, hidden.shape, scale, shift)

    return one("gamma"), one("beta")


def routed(f: Tensor, gates: Gates) -> Tensor:
    """relu((γ + 1) ⊙ f + β) of features [..., D]."""
    gamma, beta = gates
    return ((gamma + 1) * f + beta).relu()
