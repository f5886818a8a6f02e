"""FedBuff: no waiting for slow clients; the server takes a step whenever K model updates have arrived.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba. "Federated Learning with Buffered Asynchronous Aggregation".
AISTATS 2022. https://arxiv.org/abs/2106.06639, Algorithms 1 (server) and 2 (client).

Symbols:
    w^t     -> shared.models        the global model after t steps of the server, leaves [1, ...]
    w^{t−τ} -> work.extra           the model that a client received, τ steps ago, leaves [1, ...]
    Δ_i     -> a client's update, w_i − w^{t−τ}, an ascent direction; the paper's is its negative
    τ_i     -> staleness            steps of the server since client i was sent a model
    s(τ)    -> staleness_weight     1/√(1 + τ)
    K, M_c  -> buffer_size, concurrency
    η_g     -> server_lr
Deviations:
    The sum of s(τ_i)·Δ_i is divided by K, as in the paper. Dividing by Σ s(τ_i) is another algorithm: for Δ = 1 with
    τ = 0 and Δ = 2 with τ = 1 it gives 1.4142, and ours 1.2071. `--model.weighting samples` also weights by samples.
    A round is one step of the server. The arrivals follow from the seed and the clients' speeds only. On a virtual
    clock, the slot of an arriving client is refilled at once by a client drawn from those neither active nor in the
    buffer. So each client is in the buffer at most once; in the paper a fast one may be in it twice.
    Simultaneous arrivals free their slots together: with equal speeds and K = M_c this is uniformly weighted FedAvg on
    M_c clients drawn in each round; with K equal to the number of clients it is FedAvg at any speeds.
    Local steps are computed in the round of arrival, with its learning rate; the traffic to a client is counted then,
    too. Clients still active at the end of the run are ignored.
    Ours: running statistics of BatchNorm are averaged directly, since differences to old ones may exceed new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, local_result
from lit_fed.core.context import Context
from lit_fed.core.late_arrivals import LateArrivals, ModelsOnTheWay, late_metrics
from lit_fed.core.types import ClientData, ClientResult, ModelState, Reduced

__all__ = ["FedBuff", "LateChange", "staleness_weight"]

USUAL_BUFFER = 10  # the paper's K


class LateChange(NamedTuple):
    """A client's message value."""

    change: dict[str, Tensor]  # s(τ)·Δ_i, leaves [1, ...]
    buffers: dict[str, Tensor]  # running statistics, leaves [1, ...]


@dataclass(frozen=True)
class FedBuff(LateArrivals):
    """FedAvg without waiting: clients train from older models, and have less weight the older these are.

    A client takes `compute_min` plus an exponential time with a client-specific mean. Fast clients arrive more often
    than slow ones, which biases the model towards their data. The cohort of a round must be all clients: the arrivals
    follow from the seed and the speeds. Rounds log the mean staleness, and the time of their end as `time/fedbuff`;
    the callback `SimulatedTime` supports only rounds that wait for the slowest client.
    The server keeps M_c models beside its own, for updates of any age.

    Args:
        buffer_size: K, updates per step of the server; null: 10, or half the clients if this is less.
        concurrency: M_c, number of clients active at once; null: 2K, or all clients if there are fewer.
        server_lr: η_g.
        compute_min: minimum time between dispatch and arrival of a client.
        compute_mean: mean of the random time added to it, for the median client; 0: clients always take `compute_min`.
        compute_spread: standard deviation of the logarithm of that mean over clients; 0: all are equal.
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

    def client_final(self, ctx: Context, shared: ModelsOnTheWay, work: LocalRun, data: ClientData) -> ClientResult:
        """Send s(τ)·Δ_i."""
        found = self.arrivals(ctx)
        factor = staleness_weight(found.of(found.staleness, data.client_id))
        change = tree.scale(tree.sub(work.models.parameters, work.extra), factor)
        metrics = late_metrics(work, found, data.client_id, "fedbuff")
        return local_result(ctx, work, data, LateChange(change, work.models.buffers), **metrics)

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
