"""FedBuff: nobody waits for slow clients; the server takes a step whenever K changes of models have come in.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba. "Federated Learning with Buffered Asynchronous Aggregation".
AISTATS 2022. https://arxiv.org/abs/2106.06639, Algorithms 1 (server) and 2 (client).

Symbols:
    w^t     -> shared.models        the global model after t steps of the server, leaves [1, ...]
    w^{t−τ} -> work.start           the model that a client was sent, τ steps ago, leaves [1, ...]
    Δ_i     -> what a client learnt, w_i − w^{t−τ}, an ascent direction; the paper's is its negative
    τ_i     -> staleness            steps of the server since client i was sent a model
    s(τ)    -> staleness_weight     1/√(1 + τ)
    K, M_c  -> buffer_size, concurrency
    η_g     -> server_lr
Deviations:
    The sum of s(τ_i)·Δ_i is divided by K, as in the paper. Divided by Σ s(τ_i) it is another algorithm: of Δ = 1 with
    τ = 0 and Δ = 2 with τ = 1 that makes 1.4142, and this 1.2071. `--model.weighting samples` weighs by samples, too.
    A round is one step of the server. Who comes in when follows from the seed and the clients' speeds alone: on a
    virtual clock, a place that a client leaves is taken at once by one that is drawn from those neither on their way
    nor in the buffer. So each client is in a buffer once at most; in the paper a fast one may be in it twice.
    Those who come in at one moment leave their places together: with equal speeds and K = M_c this is FedAvg, uniformly
    weighted, on M_c clients drawn for each round; so it is at any speeds where K is the number of all clients.
    Local steps are worked out in the round in which they come in, with its learning rate; what a client was sent counts
    then. Clients on their way at the end of the run count for nothing.
    Ours: running statistics of BatchNorm are averaged as they are, since differences to old ones may exceed new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.late_arrivals import LateArrivals, LateRun, ModelsOnTheWay, late_metrics
from lit_fed.core.types import ClientData, ClientResult, Message, ModelState, Reduced

__all__ = ["FedBuff", "LateChange", "staleness_weight"]

USUAL_BUFFER = 10  # the paper's K


class LateChange(NamedTuple):
    """What a client sends."""

    change: dict[str, Tensor]  # s(τ)·Δ_i, leaves [1, ...]
    buffers: dict[str, Tensor]  # running statistics, leaves [1, ...]


@dataclass(frozen=True)
class FedBuff(LateArrivals):
    """FedAvg without waiting: clients train on models of some steps ago, and count for less the older these are.

    A client takes `compute_min` plus an exponential time with a mean of its own. Fast clients come in more often than
    slow ones and count for more: the model leans to their data. Clients are not drawn from the cohort of a round, which
    has to be all of them: who comes in follows from the seed and the speeds. Rounds tell the mean staleness, and
    as `time/fedbuff` when they ended; the callback `SimulatedTime` knows only rounds that wait for the slowest client.
    The server keeps M_c models beside its own, which changes of any age find there.

    Args:
        buffer_size: K, changes for a step of the server; null: 10, or half the clients if these are fewer.
        concurrency: M_c, clients that are on their way at once; null: 2K, or all clients if these are fewer.
        server_lr: η_g.
        compute_min: least time from sending a client a model to its coming in.
        compute_mean: mean of what chance adds to it, of the median client; 0: all clients always take `compute_min`.
        compute_spread: standard deviation of the logarithm of that mean over clients; 0: all are alike.
    """

    buffer_size: int | None = None
    concurrency: int | None = None
    server_lr: float = 1.0
    compute_min: float = 1.0
    compute_mean: float = 1.0
    compute_spread: float = 0.5

    def __post_init__(self) -> None:
        self.check_speeds(buffer_size=">= 1", server_lr="> 0")

    def buffer(self, num_clients: int) -> int:
        """K."""
        return min(USUAL_BUFFER, (num_clients + 1) // 2) if self.buffer_size is None else self.buffer_size

    # client_init: the client starts from w^{t−τ} (Alg. 2, line 1)

    def client_final(self, ctx: Context, shared: ModelsOnTheWay, work: LateRun, data: ClientData) -> ClientResult:
        """s(τ)·Δ_i goes to the server."""
        found = self.arrivals(ctx)
        staleness, weight = found.of(found.staleness, data.client_id), ctx.client_weight(data)
        change = tree.scale(tree.sub(work.models.parameters, work.start), staleness_weight(staleness))
        message = Message(LateChange(change, work.models.buffers), weight)
        return ClientResult(message, (), late_metrics(work, found, data.client_id, "fedbuff"))

    def server_step(self, ctx: Context, shared: ModelsOnTheWay, reduced: Reduced, client_ids: Tensor) -> ModelsOnTheWay:
        """w^{t+1} <- w^t + η_g·(1/K)·Σ_i s(τ_i)·Δ_i."""
        step = tree.scale(reduced.value.change, self.server_lr)
        parameters = tree.map_leaves(lambda old, way: old.double() + way, shared.models.parameters, step)
        return self.stepped(ctx, shared, ModelState(parameters, reduced.value.buffers))


def staleness_weight(staleness: Tensor) -> Tensor:
    """s(τ) = 1/√(1 + τ), float64.

    Example:
        >>> staleness_weight(Tensor([0, 3, 8])).tolist()
        [1.0, 0.5, 0.3333333333333333]
    """
    return (1 + staleness.double()).sqrt().reciprocal()
