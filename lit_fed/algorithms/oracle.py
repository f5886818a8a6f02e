"""Oracle: one FedAvg for each true group of clients.

A baseline in the experiments of Mestoukirdi, Zecchin, Gesbert, Li, Gresset. "User-Centric Federated Learning". 2021.
https://arxiv.org/abs/2110.09869: as many instances of FedAvg as there are groups, as if these were known beforehand.

Symbols:
    g_i -> state.group    true group of client i
    θ_g -> shared.models  model of group g, leaves [G, ...]
    n_i -> message.weight samples of client i
Deviations:
    The authors' code fixes four groups of 25 clients and weights them equally (`model.weighting: uniform`). All take
    part there. Ours: a group's model is the mean over those of its clients that do.
    The group of an unseen client is not known to the algorithm. Ours: the one whose model has the lowest loss on its
    training samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    GlobalModels,
    LocalRun,
    MessageSpec,
    Participation,
    Served,
    local_result,
    local_run,
)
from lit_fed.core.context import Context
from lit_fed.core.mixtures.clusters import best_fit
from lit_fed.core.mixtures.e_step import average_chosen, choose
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced
from lit_fed.errors import ConfigError

__all__ = ["GroupState", "Oracle"]


class GroupState(NamedTuple):
    """A client's state."""

    group: Tensor  # g_i, [] int64


@dataclass(frozen=True)
class Oracle(Served[GlobalModels, GroupState, LocalRun]):
    """FedAvg within each true group of clients, which the data must provide."""

    in_every_combination = True
    message = MessageSpec(complete=False)
    participation = Participation(fills_in_absent=False)  # clients of other groups never received the group's model
    state_reads_data = True
    incompatible = {
        "deployment": "needs the true group of every client, which the server does not know",
        "privacy": "divides by numbers of members, which are private themselves",
    }

    def shared_init(self, ctx: Context) -> GlobalModels:
        """One initial model, the same for every group."""
        if ctx.groups is None:
            raise ConfigError(
                "Oracle trains one model for each true group of clients, and these data know none; give it data with "
                "known groups, such as --data.dataset Synthetic"
            )
        num_groups = int(ctx.groups.max()) + 1
        return GlobalModels(
            tree.map_leaves(lambda leaf: leaf.repeat_interleave(num_groups, 0), ctx.task.init(1, ctx.seed))
        )

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> GroupState:
        """The true group of a seen client; unseen clients choose theirs when they are served."""
        if ctx.phase == "adapt" or ctx.groups is None:
            return GroupState(torch.zeros((), dtype=torch.int64))
        return GroupState(ctx.groups[data.client_id.to(ctx.groups.device)].to(torch.int64))

    def shared_losses(self, ctx: Context, shared: GlobalModels, batch: Batch) -> Tensor | None:
        """Loss of an unseen client's samples under the models of all groups, [B, G]."""
        if ctx.phase != "adapt":
            return None
        return ctx.task.losses_of(shared.models, batch.x, batch.y)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: GroupState, data: ClientData, losses: Tensor | None
    ) -> LocalRun:
        """A copy of the group's model."""
        group = state.group if losses is None else best_fit(losses, data.mask)
        return local_run(ctx, tree.take(shared.models, group), group)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """FedAvg's message to the client's own group: one model each way."""
        num_groups, bits = len(tree.leaves(shared.models)[0]), tree.bits(work.models, ctx.private)
        member = torch.arange(num_groups, device=work.extra.device) == work.extra
        value, state = choose(work.models, member), GroupState(work.extra)
        return local_result(ctx, work, data, value, state, up=bits, down=bits)

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """FedAvg's average within each group; a group without participants keeps its model."""
        return GlobalModels(average_chosen(ctx, shared.models, reduced))

    def num_payloads(self, ctx: Context, shared: GlobalModels, num_clients: int) -> int:
        """The models of the groups that take part."""
        assert ctx.groups is not None
        groups = ctx.groups if ctx.present is None else ctx.groups[ctx.present.to(ctx.groups.device)]
        return int(groups.bincount().count_nonzero())

    # adapt_work: an unseen client chooses its group without local steps, the default of `Served`

    def served(self, ctx: Context, shared: GlobalModels, state: GroupState) -> ModelState:
        """The group's model."""
        return tree.take(shared.models, state.group)  # type: ignore[no-any-return]
