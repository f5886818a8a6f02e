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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import NOT_SENT, Algorithm, LocalRun, MessageSpec, Participation, local_result, local_run
from lit_fed.core.context import Context
from lit_fed.core.late_arrivals import BufferedArrivals, arrivals
from lit_fed.core.types import ClientData, ClientResult, Leaves, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FedBuff", "ModelsOnTheWay", "staleness_weight"]

USUAL_BUFFER = 10  # the paper's K


class ModelsOnTheWay(NamedTuple):
    """The server's state."""

    models: ModelState  # w^t, leaves [1, ...]
    sent_parameters: Leaves  # models sent to the client in each slot, if since outdated, leaves [M_c, 1, ...]
    sent_buffers: Leaves  # their running statistics, leaves [M_c, 1, ...]
    last_step: Tensor  # [] int64, the last round with a step; later rounds still have `models`


@dataclass(frozen=True)
class FedBuff(Algorithm[ModelsOnTheWay, tuple[()], LocalRun]):
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

    message = MessageSpec("changes")
    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)
    incompatible = {
        "privacy": "takes clients as they come in, and not each with a probability of its own",
        "encoded_broadcast": "has clients on their way that were sent older ones",
        "personal_parts": "lets clients start from models of some steps ago",
        "local_norm": "lets clients start from models of some steps ago, normalisation among them",
    }

    def __post_init__(self) -> None:
        check_settings(
            self, buffer_size=">= 1", server_lr="> 0", concurrency=">= 1", compute_min=">= 0", compute_mean=">= 0",
            compute_spread=">= 0",
        )  # fmt: skip
        if not self.compute_min and not self.compute_mean:
            raise ConfigError(
                "--model.algorithm.compute_min and .compute_mean are both 0, so that no client would take any time; "
                "give one of them"
            )

    def sizes(self, num_clients: int) -> tuple[int, int]:
        """Arrivals per server step and number of active clients, K and M_c."""
        usual = min(USUAL_BUFFER, (num_clients + 1) // 2)
        size = usual if self.buffer_size is None else self.buffer_size
        number = min(2 * size, num_clients) if self.concurrency is None else self.concurrency
        for name, value in (("buffer_size", size), ("concurrency", number)):
            if value > num_clients:
                raise ConfigError(
                    f"--model.algorithm.{name} is {value}, and there are {num_clients} clients, each of whom counts "
                    f"once; give at most {num_clients}"
                )
        return size, number

    def arrivals(self, ctx: Context, round_idx: int | None = None) -> BufferedArrivals:
        """The arrivals of a round, by default this one: a pure function of settings, seed and round."""
        speeds = self.compute_min, self.compute_mean, self.compute_spread
        schedule = arrivals(*self.sizes(ctx.num_clients), ctx.num_clients, ctx.seed, *speeds)
        return schedule.round(ctx.round_idx if round_idx is None else round_idx)

    def shared_init(self, ctx: Context) -> ModelsOnTheWay:
        """The initial model, also that of all active clients."""
        models, (_, number) = ctx.task.init(1, ctx.seed), self.sizes(ctx.num_clients)
        sent = tree.map_leaves(lambda leaf: leaf.expand(number, *leaf.shape), models)
        return ModelsOnTheWay(models, sent.parameters, sent.buffers, torch.tensor(-1))

    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        """The clients that arrive."""
        return (Phase("train", self.arrivals(ctx).client_ids, ctx.solver.work),)

    def client_init(
        self, ctx: Context, shared: ModelsOnTheWay, state: tuple[()], data: ClientData, losses: None
    ) -> LocalRun:
        """The client starts from the model that it received, w^{t−τ} (Alg. 2, line 1)."""
        start = old_models(shared, self.arrivals(ctx), ctx.round_idx, data.client_id)
        return local_run(ctx, start, start.parameters)

    def client_final(self, ctx: Context, shared: ModelsOnTheWay, work: LocalRun, data: ClientData) -> ClientResult:
        """Send s(τ)·Δ_i, with the running statistics."""
        found = self.arrivals(ctx)
        factor = staleness_weight(found.of(found.staleness, data.client_id))
        change = tree.scale(tree.sub(work.models.parameters, work.extra), factor)
        metrics = {
            "staleness": found.of(found.staleness, data.client_id).to(work.loss.dtype),
            "time/fedbuff": torch.full_like(work.steps, found.time, dtype=torch.float64),
        }
        return local_result(ctx, work, data, work.models._replace(parameters=change), **metrics)

    def server_step(self, ctx: Context, shared: ModelsOnTheWay, reduced: Reduced, client_ids: Tensor) -> ModelsOnTheWay:
        """w^{t+1} <- w^t + η_g·(1/K)·Σ_i s(τ_i)·Δ_i."""
        step = tree.scale(reduced.value.parameters, self.server_lr)
        parameters = tree.map_leaves(lambda old, way: old.double() + way, shared.models.parameters, step)
        return self.stepped(ctx, shared, ModelState(parameters, reduced.value.buffers))

    def stepped(self, ctx: Context, shared: ModelsOnTheWay, models: ModelState) -> ModelsOnTheWay:
        """The state after a step to new models; clients still active keep the models that they received."""
        rounds = range(int(shared.last_step) + 1, ctx.round_idx + 1)  # several if some rounds had no step
        places = torch.cat([self.arrivals(ctx, one).still_out for one in rounds]).unique().to(shared.last_step.device)

        def keep(sent: Tensor, own: Tensor) -> Tensor:
            return sent.index_copy(0, places, own.expand(len(places), *own.shape))

        sent = tree.map_leaves(keep, ModelState(shared.sent_parameters, shared.sent_buffers), shared.models)
        last_step = torch.full_like(shared.last_step, ctx.round_idx)
        return ModelsOnTheWay(models, sent.parameters, sent.buffers, last_step)

    def sent(self, ctx: Context, shared: ModelsOnTheWay, client_id: int) -> ModelsOnTheWay:
        """The model of the client's staleness; the newest model for serving."""
        if ctx.phase == "train":
            own = torch.tensor(client_id, device=ctx.lr.device)
            shared = shared._replace(models=old_models(shared, self.arrivals(ctx), ctx.round_idx, own))
        return shared._replace(sent_parameters={}, sent_buffers={}, last_step=NOT_SENT)

    def num_payloads(self, ctx: Context, shared: ModelsOnTheWay, num_clients: int) -> int:
        """One message for each staleness."""
        return len(self.arrivals(ctx).staleness.unique())


def old_models(shared: ModelsOnTheWay, found: BufferedArrivals, round_idx: int, client_id: Tensor) -> ModelState:
    """The models that an arriving client received earlier, leaves [1, ...]."""
    if not shared.sent_parameters:  # the client itself holds no others
        return shared.models
    place = found.of(found.places, client_id).view(1)
    version = round_idx - found.of(found.staleness, client_id)

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(version > shared.last_step, new, old.index_select(0, place)[0])

    return tree.map_leaves(choose, shared.models, ModelState(shared.sent_parameters, shared.sent_buffers))  # type: ignore[no-any-return]


def staleness_weight(staleness: Tensor) -> Tensor:
    """s(τ) = 1/√(1 + τ), float64.

    Example:
        >>> staleness_weight(Tensor([0, 3, 8])).tolist()
        [1.0, 0.5, 0.3333333333333333]
    """
    return (1 + staleness.double()).sqrt().reciprocal()
