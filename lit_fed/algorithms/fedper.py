"""FedPer: shared base layers under a private head.

Arivazhagan, Aggarwal, Singh, Choudhary. "Federated Learning with Personalization Layers". 2019.
https://arxiv.org/abs/1912.00818, Algorithms 1 (client) and 2 (server).

Symbols:
    W_B   -> shared.models   the base layers, leaves [1, ...]
    W_P_j -> state.own       the personalisation layers of client j, leaves [1, ...]; never leave the client
    K_P   -> private_layers  number of personalisation layers
    γ_j   -> message.weight  samples of client j
Deviations:
    All heads start from that of the initial network.
    Layers are the modules that own parameters, in the order of their registration; BatchNorm and its running statistics
    belong to the part they are in.
    An unseen client has no head in the paper. Ours: the initial head trains as in a round on the base, whose
    parameters and running statistics are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.networks.layers import last_layers
from lit_fed.core.partial_models import KeptPart, PersonalPart, SentPart
from lit_fed.core.types import Batch, ClientData, LocalWork, ModelState

__all__ = ["FedPer"]


@dataclass(frozen=True)
class FedPer(PersonalPart):
    """Clients train base and head together; the server averages the base, and every client keeps its head.

    Args:
        private_layers: trained layers of the head, counted from the end of the network: 0 gives FedAvg, all of them
            Local.
    """

    private_layers: int = ranged(1, ">= 0")

    in_every_combination = True

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The last layers."""
        return last_layers(ctx.task.network, self.private_layers)

    def state_init(self, ctx: Context, shared: SentPart, data: ClientData) -> KeptPart:
        """The initial head, with its running statistics."""
        return KeptPart(ModelState(*shared.own))

    def client_init(self, ctx: Context, shared: SentPart, state: KeptPart, data: ClientData, losses: None) -> LocalRun:
        """The received base with the client's head (Alg. 1: merge); on a frozen base only the head has an optimizer."""
        work = local_run(ctx, self.whole(ctx, shared, state))
        return work._replace(optimizer=ctx.solver.init(state.own)) if ctx.phase == "adapt" else work

    def client_step(self, ctx: Context, shared: SentPart, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of both parts together (Alg. 1); of the head only if the base is frozen."""
        if ctx.phase != "adapt":
            return local_step(ctx, work, batch)
        parameters, _ = shared.own
        loss, gradient, buffers = ctx.task.value_and_grad(work.models, batch, moving=parameters)
        old = tree.named(work.models.parameters, parameters)
        head, optimizer = ctx.solver.update(old, gradient, work.optimizer, ctx.lr)
        models = ModelState(work.models.parameters | head, buffers)  # no optimizer state of the base is kept
        return LocalRun(models, optimizer, work.loss + loss.mean(), work.steps + 1)

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client without a head trains one."""
        return ctx.solver.whole_work if self.private_layers and not seen else None
