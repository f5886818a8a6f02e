"""FedPer: shared base layers under a private head.

Arivazhagan, Aggarwal, Singh, Choudhary. "Federated Learning with Personalization Layers". 2019.
https://arxiv.org/abs/1912.00818, Algorithms 1 (client) and 2 (server).

Symbols:
    W_B   -> shared.models   the base layers, leaves [1, ...]
    W_P_j -> state.head      the personalisation layers of client j, leaves [1, ...]; never leave the client
    K_P   -> private_layers  number of personalisation layers
    γ_j   -> message.weight  samples of client j
Deviations:
    All heads start alike, with the head of the initial network.
    Layers are the modules that own parameters, in the order of their registration; BatchNorm and its running statistics
    belong to the side they stand in.
    An unseen client has no head in the paper. Ours: the initial head trains `unseen_epochs` passes on the base, whose
    parameters and running statistics stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, Personal, local_run
from lit_fed.core.context import Context
from lit_fed.core.networks.layers import last_layers
from lit_fed.core.networks.partial_models import joined, part_like, without
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState
from lit_fed.errors import check_settings

__all__ = ["BaseLayers", "FedPer", "Head"]

Leaves = dict[str, Tensor]


class BaseLayers(NamedTuple):
    """What the server knows; the initial head is no `ModelState`, since it is never sent."""

    models: ModelState  # W_B, leaves [1, ...]
    head: tuple[Leaves, Leaves]  # parameters and buffers of the initial head, leaves [1, ...]


class Head(NamedTuple):
    """What a client keeps."""

    head: ModelState  # W_P_j, leaves [1, ...]


@dataclass(frozen=True)
class FedPer(Personal[BaseLayers, Head, LocalRun]):
    """Clients train base and head together; the server averages the base, every client keeps its head.

    Args:
        private_layers: trained layers of the head, counted from the end of the network: 0 gives FedAvg, all of them
            Local.
        unseen_epochs: passes over its training samples before a client is served that was not in training.
    """

    serving_settings = ("unseen_epochs",)

    private_layers: int = 1
    unseen_epochs: int = 1

    incompatible: ClassVar[dict[str, str]] = {
        "noise_in_steps": "the private head",
        "personal_parts": "keeps a private head itself",
    }

    def __post_init__(self) -> None:
        check_settings(self, private_layers=">= 0", unseen_epochs=">= 0")

    def shared_init(self, ctx: Context) -> BaseLayers:
        """The initial network in two parts."""
        private = last_layers(ctx.task.network, self.private_layers)
        whole = ctx.task.init(1, ctx.seed)
        parameters, buffers = ({name: leaf for name, leaf in part.items() if name in private} for part in whole)
        return BaseLayers(without(whole, private), (parameters, buffers))

    def state_init(self, ctx: Context, shared: BaseLayers, data: ClientData) -> Head:
        """The initial head."""
        return Head(ModelState(*shared.head))

    def client_init(self, ctx: Context, shared: BaseLayers, state: Head, data: ClientData, losses: None) -> LocalRun:
        """The received base under the own head (Alg. 1: merge); on a frozen base only the head has an optimizer."""
        work = local_run(ctx, joined(shared.models, state.head))
        return work._replace(optimizer=ctx.solver.init(state.head)) if ctx.phase == "adapt" else work

    def client_step(self, ctx: Context, shared: BaseLayers, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of both parts together; of the head alone where the base is frozen."""
        if ctx.phase != "adapt":
            return super().client_step(ctx, shared, work, batch)
        head = part_like(work.models, shared.head)
        loss, gradient, buffers = ctx.task.value_and_grad(work.models, batch)
        new = part_like(ModelState(gradient, buffers), shared.head)
        parameters, optimizer = ctx.solver.update(head.parameters, new.parameters, work.optimizer, ctx.lr)
        models = joined(shared.models, new._replace(parameters=parameters))
        return LocalRun(models, optimizer, work.loss + loss.mean(), work.steps + 1)

    def client_final(self, ctx: Context, shared: BaseLayers, work: LocalRun, data: ClientData) -> ClientResult:
        """The base goes to the server (Alg. 2: average with weights γ_j), the head stays."""
        message = Message(part_like(work.models, shared.models), ctx.client_weight(data))
        result = super().client_final(ctx, shared, work, data)
        return result._replace(message=message, state=Head(part_like(work.models, shared.head)))

    def sent(self, ctx: Context, shared: BaseLayers, client_id: int) -> BaseLayers:
        """The base, and the names of the head; the initial head only to who has none yet."""
        if client_id >= ctx.num_clients or ctx.phase == "init":
            return shared
        return shared._replace(head=tree.map_leaves(lambda leaf: leaf.new_empty(0), shared.head))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client that has no head yet trains one."""
        return LocalWork(epochs=self.unseen_epochs) if self.private_layers and not seen else None

    def served(self, ctx: Context, shared: BaseLayers, state: Head) -> ModelState:
        """The shared base under the client's own head."""
        return joined(shared.models, state.head)
