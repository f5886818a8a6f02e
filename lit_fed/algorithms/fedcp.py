"""FedCP: a conditional policy divides the features of each sample between a personal and a global head.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. "FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy". KDD 2023. https://arxiv.org/abs/2307.01217, Section 4.

Symbols:
    W^fe      -> shared.models  feature extractor, h = f(x) [D], leaves [1, ...]
    W^hd      -> shared.models  the global head, the network's last layer, leaves [1, ...]; frozen at the clients
    Θ         -> shared.models  conditional policy network (CPN), leaves `policy.…`
    W_i^hd    -> state.head     the personal head of client i, leaves [1, ...]
    v_i       -> context        Σ_c w_c/‖Σ_c w_c‖ of the rows w_c of W_i^hd at the start of the round, [D]
    r, s      -> policy         softmax over both of relu(LayerNorm(Linear(h ⊙ v_i))) [2, D]; r + s = 1
    loss      -> CE(W_i^hd(r ⊙ h) + W^hd(s ⊙ h), y) + λ·MMD²(h, ĥ), ĥ the features of the received W^fe
    λ         -> weight
Deviations:
    The authors' code adds Gumbel noise to the policy's logits, in serving too; here the policy is their softmax.
    MMD² has their kernel, Σ_a exp(−‖·‖²/(2a)) with a of 10, 15, 20 and 50, over the pairs of a batch.
    As there, a client sends (W_i^hd + W^hd)/2 as its global head. There v_i is random until a client's first round;
    here it is computed from the initial head.
    All parts step together.
    A client is served by the received W^fe, W^hd and Θ with its personal head.
    An unseen client has no personal head in the paper. Ours: a copy of W^hd trains as in a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.algorithm import GlobalModels, LocalRun, Personal, local_result, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.networks.products import full_precision
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.partial_models import module_leaves, whole_models, with_module
from lit_fed.core.prototypes import PersonalHead, feature_width, gradient_only, head_leaves
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState

__all__ = ["FedCP"]

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""Variances of the Gaussian kernels."""


@dataclass(frozen=True)
class FedCP(Personal[GlobalModels, PersonalHead, LocalRun]):
    """Clients share a body, a global head and a policy that divides a sample's features between the heads.

    Args:
        weight: λ, weight of the distance to the features of the received body.
    """

    weight: float = ranged(5.0, ">= 0")

    incompatible = {
        "noise_in_steps": "the personal head",
        "fine_tuning": "predicts by two heads and a policy",
        "personal_parts": "keeps a personal head itself, beside the global one",
    }

    def shared_init(self, ctx: Context) -> GlobalModels:
        """The initial model, with a fresh policy."""
        width, models = feature_width(ctx.task, "FedCP"), ctx.task.init(1, ctx.seed)
        head_leaves(ctx.task, models)
        return GlobalModels(with_module(ctx, models, partial(_Policy, width), "policy"))

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> PersonalHead:
        """A copy of the global head."""
        return PersonalHead(head_leaves(ctx.task, shared.models))

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: PersonalHead, data: ClientData, losses: None
    ) -> LocalRun:
        """The received W^fe and Θ, the personal head, and its v_i."""
        models, leaves = _own(ctx.task, shared, state), module_leaves(shared.models, "policy")
        models = models._replace(parameters=models.parameters | leaves)
        return local_run(ctx, models, context(ctx.task, state.head))

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of W^fe, W_i^hd and Θ on the loss; an unseen client steps its head only."""
        task, own = ctx.task, frozenset(head_leaves(ctx.task, work.models))
        received = task.features(_own(task, shared, PersonalHead({})), batch.x)
        constants = (work.extra, *_linear(task, head_leaves(task, shared.models)))
        objective = Objective(
            self.loss, uses_features=True, over_batch=True, constants=tuple(one.unsqueeze(0) for one in constants),
            rows=received, leaves=POLICY,
        )  # fmt: skip
        return local_step(ctx, work, batch, moving=own if ctx.phase == "adapt" else None, objective=objective)

    def loss(self, view: ModelView) -> Tensor:
        """The cross-entropy of each sample, [B], with the gradient of λ·MMD² of the batch."""
        v, *everyone = view.constants
        own, other = policy(view.features, tuple(view.leaves[name] for name in POLICY), v)
        losses: Tensor = view.trained_on.losses(view.head(own) + F.linear(other, *everyone), view.y)
        return losses + gradient_only(self.weight * discrepancy(view.features, view.rows, view.mask))

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send W^fe, Θ and the mean of both heads to be averaged; keep W_i^hd."""
        own = head_leaves(ctx.task, work.models)
        both = {name: torch.lerp(shared.models.parameters[name], leaf, 0.5) for name, leaf in own.items()}
        sent = work.models._replace(parameters=work.models.parameters | both)
        return local_result(ctx, work, data, sent, PersonalHead(own))

    def log_prob(self, ctx: Context, shared: GlobalModels, state: PersonalHead, x: Tensor, outputs: None) -> Tensor:
        """The prediction of W_i^hd(r ⊙ h) + W^hd(s ⊙ h)."""
        models, leaves = _own(ctx.task, shared, state), module_leaves(shared.models, "policy")
        features = ctx.task.features(models, x)
        own, other = policy(features, tuple(leaves[name][0] for name in POLICY), context(ctx.task, state.head))
        everyone = ModelState(head_leaves(ctx.task, shared.models), {})
        scores = ctx.task.head(models, own) + ctx.task.head(everyone, other)
        return ctx.task.mix(scores.new_ones(1), scores)


class _Policy(nn.Sequential):
    """Fresh layers of Θ."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width))


POLICY = ("policy.0.weight", "policy.0.bias", "policy.1.weight", "policy.1.bias")
"""Names of the leaves of Θ."""


def _own(task: Task, shared: GlobalModels, state: PersonalHead) -> ModelState:
    """W^fe under the personal head, without Θ."""
    return whole_models(task.network, shared.models, ModelState(state.head, {}))


def context(task: Task, head: Leaves) -> Tensor:
    """v_i, [D]: the sum of the rows of a head, with norm 1."""
    return F.normalize(_linear(task, head)[0].sum(0), dim=0)


def _linear(task: Task, head: Leaves) -> tuple[Tensor, Tensor]:
    """Weight [K, D] and bias [K] of the last layer."""
    weight = head[task.last.names["weight"]][0]
    bias = task.last.names.get("bias")
    return weight, weight.new_zeros(len(weight)) if bias is None else head[bias][0]


def policy(h: Tensor, leaves: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, Tensor]:
    """R ⊙ h and s ⊙ h of features [..., D]."""
    weight, bias, scale, shift = leaves
    hidden = F.layer_norm(F.linear(h * v, weight, bias), bias.shape, scale, shift).relu()
    r, s = hidden.unflatten(-1, (2, -1)).softmax(-2).unbind(-2)
    return r * h, s * h


def discrepancy(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """MMD² of two samples of vectors, [] from [B, D] or [B, L, D]; rows whose mask [B] is 0 are ignored."""
    mask = mask.to(x.dtype)
    share = (mask / mask.sum().clamp(min=1)).view(-1, *[1] * (x.ndim - 2)).expand(x.shape[:-1])
    share = (share / share[:1].numel()).flatten()
    x, y = x.flatten(0, -2), y.flatten(0, -2)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        away = a.square().sum(-1).unsqueeze(1) + b.square().sum(-1) - 2 * a @ b.T
        return torch.stack([torch.exp(-away / (2 * width)) for width in BANDWIDTHS]).sum(0)

    with full_precision(x):
        return share @ (kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)) @ share
