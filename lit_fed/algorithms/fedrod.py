"""FedRoD: one body with a generic head, trained with balanced classes, and a personal head added to it.

Chen, Chao. "On Bridging Generic and Personalized Federated Learning for Image Classification". ICLR 2022.
https://arxiv.org/abs/2107.00778, Section 4.

Symbols:
    θ     -> shared.models  the body, leaves [1, ...]
    ψ     -> shared.models  the generic head h_G, the network's last layer, leaves [1, ...]
    φ_m   -> state.head     the personal head h_P of client m, leaves [1, ...]; never leaves the client
    z     -> features, the inputs of the last layer, [D]
    n_c   -> work.counts    samples of class c at the client, [C]
    γ     -> gamma          L_BSM = −log[n_y^γ exp(g_y) / Σ_c n_c^γ exp(g_c)] of g = h_G(z), balanced softmax
Deviations:
    θ and ψ minimise L_BSM; φ_m minimises the cross-entropy of h_G(z) + h_P(z), with z and h_G detached. Both steps are
    simultaneous; PFLlib takes them one after the other. There, and in FL-bench, h_P starts as a copy of h_G; here at 0,
    so a client starts from the generic prediction. The authors published no program.
    h_P is trained on features in evaluation mode.
    A client is served by the received θ and ψ with its φ_m, not by those of its last local steps.
    A class without samples at the client is excluded from L_BSM.
    The form with a hypernetwork that makes h_P from the shares of classes is not offered. Ours: the h_P of an unseen
    client, 0, trains `unseen_epochs` passes; with 0 passes the client is served by the generic prediction, as in the
    paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, Personal
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.prototypes import check_classes, class_counts, head_leaves, masked_mean, shifted
from lit_fed.core.targets import ModelView, Objective
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, ModelState
from lit_fed.errors import check_settings

__all__ = ["FedRoD", "PersonalHead", "TwoHeads"]


class PersonalHead(NamedTuple):
    """A client's state."""

    head: dict[str, Tensor]  # φ_m, leaves [1, ...]


class TwoHeads(NamedTuple):
    """A client's phase."""

    models: ModelState  # θ and ψ, leaves [1, ...]
    head: dict[str, Tensor]  # φ_m, leaves [1, ...]
    optimizer: tuple[OptimizerState, OptimizerState]  # of θ and ψ, and of φ_m
    loss: Tensor  # [] sum over steps of the mean cross-entropy of h_G(z) + h_P(z), before the step
    steps: Tensor  # [] steps taken
    counts: Tensor  # n_c, [C]


@dataclass(frozen=True)
class FedRoD(Personal[GlobalModels, PersonalHead, TwoHeads]):
    """FedAvg with balanced softmax; each client adds a personal head, trained on top of the generic one.

    Args:
        gamma: γ, strength of the class balancing; 0 is the cross-entropy.
    """

    gamma: float = 1.0

    incompatible: ClassVar[dict[str, str]] = {
        "loss": "balances the cross-entropy",
        "noise_in_steps": "the personal head and the client's counts of classes",
        "personal_parts": "keeps a personal head itself, beside the generic one",
    }

    def __post_init__(self) -> None:
        check_settings(self, gamma=">= 0")

    def shared_init(self, ctx: Context) -> GlobalModels:
        """The initial model; labels that are no classes are refused."""
        check_classes(ctx.task.target, "FedRoD")
        return super().shared_init(ctx)

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> PersonalHead:
        """φ_m = 0."""
        return PersonalHead(tree.zeros_like(head_leaves(ctx.task, shared.models)))

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: PersonalHead, data: ClientData, losses: None
    ) -> TwoHeads:
        """A copy of θ and ψ, and the client's φ_m."""
        optimizer = (ctx.solver.init(shared.models), ctx.solver.init(ModelState(state.head, {})))
        zero = torch.zeros((), dtype=ctx.task.dtype, device=ctx.lr.device)
        counts = class_counts(data, ctx.task.target.num_classes, ctx.task.dtype)
        return TwoHeads(shared.models, state.head, optimizer, zero, zero.clone(), counts)

    def client_step(self, ctx: Context, shared: GlobalModels, work: TwoHeads, batch: Batch) -> TwoHeads:
        """A step of φ_m on the cross-entropy, and one of θ and ψ on L_BSM, from the same values."""
        task, solver, (of_generic, of_personal) = ctx.task, ctx.solver, work.optimizer
        z = task.features(work.models, batch.x)
        generic = task.head(work.models, z)

        def personal_loss(head: dict[str, Tensor]) -> Tensor:
            outputs = generic + task.head(ModelState(head, {}), z)
            return masked_mean(task.target.losses(outputs[:, 0], batch.y), batch.mask)

        gradient, loss = grad_and_value(personal_loss)(work.head)
        head, of_personal = solver.update(work.head, gradient, of_personal, ctx.lr)
        work = work._replace(head=head, loss=work.loss + loss, steps=work.steps + 1)
        if ctx.phase != "adapt":
            present = work.counts.clamp(min=torch.finfo(work.counts.dtype).tiny)
            objective = Objective(balanced_softmax, constants=self.gamma * present.log().unsqueeze(0))
            models, of_generic = solver.step_without_loss(
                task, work.models, of_generic, batch, ctx.lr, objective=objective
            )
            work = work._replace(models=models)
        return work._replace(optimizer=(of_generic, of_personal))

    def client_final(self, ctx: Context, shared: GlobalModels, work: TwoHeads, data: ClientData) -> ClientResult:
        """Send θ and ψ to be averaged as in FedAvg; keep φ_m."""
        message = Message(work.models, ctx.client_weight(data))
        return ClientResult(message, PersonalHead(work.head), {"loss": work.loss / work.steps.clamp(min=1)})

    def log_prob(self, ctx: Context, shared: GlobalModels, state: PersonalHead, x: Tensor, outputs: None) -> Tensor:
        """The prediction of h_G(z) + h_P(z)."""
        z = ctx.task.features(shared.models, x)
        both = ctx.task.head(shared.models, z) + ctx.task.head(ModelState(state.head, {}), z)
        return ctx.task.mix(both.new_ones(1), both)


def balanced_softmax(view: ModelView) -> Tensor:
    """L_BSM of each sample, [B]; the constants are γ·log n_c."""
    return view.trained_on.losses(shifted(view.outputs, view.constants), view.y)
