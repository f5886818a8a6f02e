"""Local: every client trains alone.

The baseline without collaboration of all papers here, e.g. Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated
Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021. https://arxiv.org/abs/2108.10252, Section 4.

Symbols:
    θ_i -> state.models   the client's own model, leaves [1, ...]
    θ⁰  -> shared.models  the common initial model, never changed
Deviations:
    An unseen client has no model in the papers. Ours: it trains as in a round, from θ⁰.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core.algorithm import (
    GlobalModels,
    LocalRun,
    MessageSpec,
    OwnModel,
    Participation,
    Personal,
    local_result,
    local_run,
)
from lit_fed.core.context import Context
from lit_fed.core.types import ClientData, ClientResult, Reduced

__all__ = ["Local"]


@dataclass(frozen=True)
class Local(Personal[GlobalModels, OwnModel, LocalRun]):
    """No collaboration: each client trains its own model from a common start; nothing is sent."""

    in_every_combination = True
    message = MessageSpec("nothing")
    participation = Participation(fills_in_absent=False)  # nothing is averaged
    start_only = ("models",)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """Training continues from the client's own model."""
        return local_run(ctx, state.models)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """The model stays with the client: an empty message, no bits in either direction."""
        return local_result(ctx, work, data, (), OwnModel(work.models))

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """There is no server."""
        return shared
