"""FedNova: clients with different numbers of local steps are averaged by their change per step.

Wang, Liu, Liang, Joshi, Poor. "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization".
NeurIPS 2020. https://arxiv.org/abs/2007.07481, Section 5 on the framework of Section 4.

Symbols:
    x       -> shared.models       the global model, leaves [1, ...]
    x_i     -> work.models         the model of client i, leaves [1, ...]
    τ_i     -> work.steps          its local steps; each client counts its own
    a_i                            weights of the gradients of the steps: x − x_i = η G_i a_i
    ‖a_i‖₁  -> norm                τ_i for plain SGD
    η d_i   -> message.change      (x − x_i)/‖a_i‖₁, η times the normalised direction, leaves [1, ...]
    p_i     -> message.weight      share of client i among the clients of the round
    τ_eff   -> effective_steps     by default Σ_i p_i ‖a_i‖₁
    η       -> solver.lr
    ρ       -> solver.momentum
    μ       -> prox_weight
Deviations:
    ‖a_i‖₁ is not taken from the paper's formulas for momentum and the proximal term but accumulated: it is the
    solver's total move, in units of η, if every gradient were 1. This is the same number, and also covers Nesterov's
    form and momentum together with the proximal term. Their weights stay positive, as the paper requires, if ημ is at
    most (1 − √ρ)², with Nesterov's form ((1 − ρ)/(1 + ρ))². Larger values are refused.
    The proximal term is part of the gradient that momentum sees, as in FedProx; the authors' code adds it to the
    momentum. There τ_eff is Σ p_i τ_i with a proximal term; here Σ p_i ‖a_i‖₁ with which equal clients give FedAvg.
    Weight decay and clipping are part of the gradient. Clipping with a proximal term is refused, since it would clip
    the term as well; so are Adam, whose steps are no sum of gradients, and `solver.persist_optimizer`, with which
    gradients of earlier rounds would also move a client.
    Only participating clients count; `aggregation: stale_fill` is refused. The paper samples clients in proportion to
    their size and weights them equally, which is `data.client_sampling: size`.
    Ours: running statistics are averaged as in FedAvg. A client without steps counts with d_i = 0 and ‖a_i‖₁ = 0.
    The authors' momentum at the server is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    Algorithm,
    GlobalModels,
    LocalRun,
    MessageSpec,
    Participation,
    local_result,
    local_run,
    local_step,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FedNova", "NormalisedChange", "largest_pull"]


class NormalisedChange(NamedTuple):
    """A client's message value."""

    change: ModelState  # η d_i, and the running statistics of x_i, leaves [1, ...]
    norm: Tensor  # [] ‖a_i‖₁, in the models' type, so that sums over clients are exact


@dataclass(frozen=True)
class FedNova(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg whose average does not favour clients with more local steps; with equal numbers of steps it is FedAvg.

    Args:
        prox_weight: μ of a proximal term that keeps local models near the global one; 0: no such term.
        effective_steps: τ_eff, length of the server's step in local steps; null takes the weighted mean over the
            clients, as in the paper.
    """

    prox_weight: float = ranged(0.0, ">= 0")
    effective_steps: float | None = ranged(None, "> 0")

    in_every_combination = True
    message = MessageSpec("changes")
    participation = Participation(fills_in_absent=False)
    incompatible = {
        "privacy": "divides by the clients' numbers of steps, which are private themselves",
        "secure_sums": "sends numbers of steps beside them, which are larger than any change",
    }

    def shared_init(self, ctx: Context) -> GlobalModels:
        """A fresh model x; solvers with unknown weights a_i are refused."""
        solver, pulled = ctx.solver, self.prox_weight > 0
        checks = {
            "optimizer": (solver.optimizer == "sgd", "sgd, since FedNova takes only steps that are sums of gradients"),
            "persist_optimizer": (
                not solver.persist_optimizer,
                "false, since FedNova divides by the steps of one round",
            ),
            "clip_norm": (
                solver.clip_norm is None or not pulled,
                "null, or --model.algorithm.prox_weight 0: FedNova cannot tell by how much a proximal term is clipped",
            ),
        }
        check_settings(solver, checks, "--model.solver")
        factors = ctx.of_clients.get("client_lr")
        factor = 1.0 if factors is None else float(factors.max())
        if (largest := largest_pull(solver, factor)) < self.prox_weight:
            by_client = "" if factor == 1 else f", at a client whose --model.solver.client_lr is {factor:.4g}"
            raise ConfigError(
                f"--model.algorithm.prox_weight is {self.prox_weight}, and with this rate and momentum FedNova takes "
                f"at most {largest:.4g}{by_client}; give that, or a smaller --model.solver.lr or .momentum"
            )
        return super().shared_init(ctx)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: tuple[()], data: ClientData, losses: None
    ) -> LocalRun:
        """The model x_i starts at x."""
        zero = torch.zeros((), dtype=torch.float64, device=ctx.lr.device)
        return local_run(ctx, shared.models, (zero, zero.clone()))

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A local step, and the same step with every gradient 1, whose sum is ‖a_i‖₁."""
        solver, mu, rho = ctx.solver, self.prox_weight, ctx.solver.momentum
        norm, velocity = work.extra  # ‖a_i‖₁ so far, and momentum if all gradients are 1, [] float64 each
        penalty = Penalty(mu, shared.models.parameters) if mu else None
        gradient = 1 - ctx.lr * mu * norm
        velocity = rho * velocity + gradient
        norm = norm + (gradient + rho * velocity if solver.nesterov else velocity)
        return local_step(ctx, work, batch, penalty=penalty)._replace(extra=(norm, velocity))

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the normalised change η d_i = (x − x_i)/‖a_i‖₁ and ‖a_i‖₁, which is at least 1."""
        norm, way = work.extra[0].to(ctx.task.dtype), tree.sub(shared.models.parameters, work.models.parameters)
        change = work.models._replace(parameters=tree.scale(way, 1 / norm.clamp(min=1)))
        return local_result(ctx, work, data, NormalisedChange(change, norm))

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """The step x <- x − τ_eff Σ_i p_i η d_i, with τ_eff = Σ_i p_i ‖a_i‖₁; in float64, as changes may be small."""
        mean: NormalisedChange = reduced.value
        steps = mean.norm if self.effective_steps is None else self.effective_steps
        step = tree.scale(mean.change.parameters, steps)
        return GlobalModels(mean.change._replace(parameters=tree.sub(shared.models.parameters, step)))


def largest_pull(solver: LocalSolver, factor: float = 1.0) -> float:
    """The largest μ for which all weights of gradients are non-negative for any number of steps.

    `factor` is the largest of the clients' factors on the rate η.

    The weight of a gradient k steps later follows a linear recursion. Its roots are real, so its weights are never
    negative, if ημ is at most (1 − √ρ)², or with Nesterov's form ((1 − ρ)/(1 + ρ))².
    """
    rho = solver.momentum
    most: float = ((1 - rho) / (1 + rho)) ** 2 if solver.nesterov else (1 - rho**0.5) ** 2
    rate = solver.rate * factor
    return most / rate if rate else float("inf")
