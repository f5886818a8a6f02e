"""FedAsync: the server mixes in each client's model on arrival, with less weight if it started from an older model.

Xie, Koyejo, Gupta. "Asynchronous Federated Optimization". 2019. https://arxiv.org/abs/1903.03934, Algorithm 1.

Symbols:
    x_t   -> shared.models   the global model after t steps of the server, leaves [1, ...]
    x_τ   -> work.extra      the model that a worker received, t − τ steps ago, leaves [1, ...]
    x_new -> work.models     the same after local training, leaves [1, ...]
    α     -> mixing          α_t = α·s(t − τ)
    s     -> staleness_factor  `constant`, `polynomial` or `hinge`
    a, b  -> power, slope; patience
    ρ     -> prox_weight     a worker minimises f(x) + ρ/2·‖x − x_τ‖²
Deviations:
    A round is one step of the server, for one arriving worker. The arrivals follow from the seed and the speeds of the
    clients, on a virtual clock as for FedBuff; the paper draws the staleness itself.
    The worker sends the change x_new − x_τ, since the server knows x_τ. Local steps are computed in the round of the
    arrival, with its learning rate. Running statistics are mixed like parameters.
    The paper lowers α during the run, which is not offered.
    Clients, seen or unseen, are served by x_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, local_result, local_step
from lit_fed.core.context import Context
from lit_fed.core.late_arrivals import LateArrivals, ModelsOnTheWay, late_metrics, old_models
from lit_fed.core.local_solver import Penalty
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced

__all__ = ["FedAsync"]


@dataclass(frozen=True)
class FedAsync(LateArrivals):
    """FedAvg without waiting: each client's model is mixed into the global one as soon as it arrives.

    A client takes `compute_min` plus an exponential time with a client-specific mean. Rounds log the staleness, and the
    time of their end as `time/fedasync`. The server keeps one model per active client.

    Args:
        mixing: α, weight of a fresh model.
        staleness: s(τ) for a model of τ steps ago: `constant`, 1; `polynomial`, (τ + 1)^−power; `hinge`, 1 up
            to `patience` steps and 1/(slope·(τ − patience) + 1) beyond.
        power: a of `polynomial`.
        slope: a of `hinge`.
        patience: b of `hinge`.
        prox_weight: ρ, the pull of local training towards the model that it started from.
        concurrency: number of clients active at once; null: 2.
        compute_min: minimum time between dispatch and arrival of a client.
        compute_mean: mean of the random time added to it, for the median client; 0: clients always take `compute_min`.
        compute_spread: standard deviation of the logarithm of that mean over clients; 0: all are equal.
    """

    mixing: float = 0.6
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    power: float = 0.5
    slope: float = 10.0
    patience: int = 4
    prox_weight: float = 0.0
    concurrency: int | None = None
    compute_min: float = 1.0
    compute_mean: float = 1.0
    compute_spread: float = 0.5

    def __post_init__(self) -> None:
        least = dict.fromkeys(("power", "slope", "patience", "prox_weight"), ">= 0")
        self.check_speeds(mixing="[0, 1]", **least)

    def buffer(self, num_clients: int) -> int:
        """One."""
        return 1

    # client_init: the worker starts from x_τ

    def client_step(self, ctx: Context, shared: ModelsOnTheWay, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on f(x) + ρ/2·‖x − x_τ‖²."""
        pull = Penalty(self.prox_weight, work.extra) if self.prox_weight else None
        return local_step(ctx, work, batch, penalty=pull)

    def client_final(self, ctx: Context, shared: ModelsOnTheWay, work: LocalRun, data: ClientData) -> ClientResult:
        """Send x_new as a change."""
        found = self.arrivals(ctx)
        start = old_models(shared, found, ctx.round_idx, data.client_id)
        metrics = late_metrics(work, found, data.client_id, "fedasync")
        return local_result(ctx, work, data, tree.sub(work.models, start), **metrics)

    def server_step(self, ctx: Context, shared: ModelsOnTheWay, reduced: Reduced, client_ids: Tensor) -> ModelsOnTheWay:
        """x_t <- (1 − α_t)·x_{t−1} + α_t·x_new."""
        found = self.arrivals(ctx)
        start = old_models(shared, found, ctx.round_idx, client_ids[0])
        old, start = tree.map_leaves(Tensor.double, (shared.models, start))
        new: ModelState = tree.add(start, reduced.value)
        share = self.mixing * self.staleness_factor(int(found.staleness[0]))
        return self.stepped(ctx, shared, tree.lerp(old, new, share))

    def staleness_factor(self, staleness: int) -> float:
        """s(τ).

        Example:
            >>> [FedAsync(staleness=kind).staleness_factor(8) for kind in ("constant", "polynomial", "hinge")]
            [1.0, 0.3333333333333333, 0.024390243902439025]
        """
        if self.staleness == "polynomial":
            return float((staleness + 1) ** -self.power)
        if self.staleness == "hinge" and staleness > self.patience:
            return 1 / (self.slope * (staleness - self.patience) + 1)
        return 1.0
