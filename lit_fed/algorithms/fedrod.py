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
    θ and ψ minimise L_BSM; φ_m minimises the cross-entropy of h_G(z) + h_P(z), with z and h_G detached. Both steps use
    values from before either, as in PFLlib. There, and in FL-bench, h_P starts as a copy of h_G; here at 0, so a client
    starts from the generic prediction. The authors published no program.
    A client is served by the received θ and ψ with its φ_m, not by those of its last local steps.
    A class without samples at the client is excluded from L_BSM.
    The form with a hypernetwork that makes h_P from the shares of classes is not offered. Ours: the h_P of an unseen
    client, 0, trains as in a round; in the paper the client is served by the generic prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, LocalRun, Personal, local_result, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.partial_models import module_leaves, named_part, names_of
from lit_fed.core.prototypes import (
    PersonalHead,
    check_classes,
    class_counts,
    gradient_only,
    head_leaves,
    of_present,
    shifted,
)
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState

__all__ = ["FedRoD"]

OWN = "h_P."
"""Prefix of the leaves of φ_m beside those of the network."""


@dataclass(frozen=True)
class FedRoD(Personal[GlobalModels, PersonalHead, LocalRun]):
    """FedAvg with balanced softmax; each client adds a personal head, trained on top of the generic one.

    Args:
        gamma: γ, strength of the class balancing; 0 is the cross-entropy.
    """

    gamma: float = ranged(1.0, ">= 0")

    incompatible = {
        "fine_tuning": "predicts by two heads",
        "loss": "balances the cross-entropy",
        "noise_in_steps": "the personal head and the client's counts of classes",
        "personal_parts": "keeps a personal head itself, beside the generic one",
    }

    def shared_init(self, ctx: Context) -> GlobalModels:
        """The initial model; labels that are no classes are refused."""
        check_classes(ctx.task.target, "FedRoD")
        return super().shared_init(ctx)

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> PersonalHead:
        """φ_m = 0."""
        return PersonalHead(tree.zeros_like(head_leaves(ctx.task, shared.models)))

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: PersonalHead, data: ClientData, losses: None
    ) -> LocalRun:
        """A copy of θ and ψ, the client's φ_m, and n_c, [C]."""
        own = {OWN + name: leaf for name, leaf in state.head.items()}
        models = shared.models._replace(parameters=shared.models.parameters | own)
        return local_run(ctx, models, class_counts(data, ctx.task.target.num_classes, ctx.task.dtype))

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of θ and ψ on L_BSM, and of φ_m on the cross-entropy."""
        own = module_leaves(work.models, OWN[:-1])
        log_counts = self.gamma * work.extra.clamp(min=1).log()
        constants = (of_present(log_counts, work.extra) if self.gamma else log_counts).unsqueeze(0)
        objective = Objective(two_losses, uses_features=True, constants=constants, leaves=tuple(own))
        return local_step(
            ctx, work, batch, moving=frozenset(own) if ctx.phase == "adapt" else None, objective=objective
        )

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send θ and ψ to be averaged as in FedAvg; keep φ_m."""
        sent = named_part(work.models, names_of(shared.models))
        head = {name.removeprefix(OWN): leaf for name, leaf in module_leaves(work.models, OWN[:-1]).items()}
        return local_result(ctx, work, data, sent, PersonalHead(head))

    def log_prob(self, ctx: Context, shared: GlobalModels, state: PersonalHead, x: Tensor, outputs: None) -> Tensor:
        """The prediction of h_G(z) + h_P(z)."""
        z = ctx.task.features(shared.models, x)
        both = ctx.task.head(shared.models, z) + ctx.task.head(ModelState(state.head, {}), z)
        return ctx.task.mix(both.new_ones(1), both)


def two_losses(view: ModelView) -> Tensor:
    """The cross-entropy of h_G(z) + h_P(z), [B], with the gradient of L_BSM; the constants are γ·log n_c."""
    balanced = view.trained_on.losses(shifted(view.outputs, view.constants), view.y)
    own = {name.removeprefix(OWN): leaf for name, leaf in view.leaves.items()}
    both = view.outputs.detach() + view.head(view.features.detach(), own)
    return view.trained_on.losses(both, view.y) + gradient_only(balanced)
