"""Asynchronous servers: clients arrive on a virtual clock, trained from models of earlier server steps.

A round is one step of the server. The arrivals depend only on the seed and the clients' speeds, and are known before
training.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, LocalRun, MessageSpec, Participation, local_run
from lit_fed.core.context import Context
from lit_fed.core.seeds import generator
from lit_fed.core.types import ClientData, ModelState, Phase
from lit_fed.errors import Check, ConfigError, check_settings

__all__ = ["BufferedArrivals", "LateArrivals", "ModelsOnTheWay", "late_metrics", "old_models"]

Leaves = dict[str, Tensor]


class ModelsOnTheWay(NamedTuple):
    """The server's state."""

    models: ModelState  # w^t, leaves [1, ...]
    sent_parameters: Leaves  # models sent to the client in each slot, if since outdated, leaves [M_c, 1, ...]
    sent_buffers: Leaves  # their running statistics, leaves [M_c, 1, ...]
    last_step: Tensor  # [] int64, the last round with a step; later rounds still have `models`


class BufferedArrivals(NamedTuple):
    """The clients that fill the buffer in one round."""

    client_ids: Tensor  # [K] int64, ascending
    staleness: Tensor  # [K] int64, τ
    places: Tensor  # [K] int64, the slot of each among the active clients
    still_out: Tensor  # [P] int64, slots of clients that received this round's model and are active at its end
    time: float  # time on the virtual clock at which the buffer is full

    def of(self, values: Tensor, client_id: Tensor) -> Tensor:
        """The entry of values [K] that belongs to a client, []; 0 for a client that does not arrive."""
        return (values.to(client_id.device) * (self.client_ids.to(client_id.device) == client_id)).sum()


class LateArrivals(Algorithm[ModelsOnTheWay, tuple[()], LocalRun]):
    """An algorithm whose server takes a step whenever enough clients have arrived, with models of any age.

    Subclasses have these settings, and give the number of arrivals per step in `buffer`.
    """

    # annotations of this module are not postponed, see `Algorithm`
    concurrency: int | None
    compute_min: float
    compute_mean: float
    compute_spread: float

    message = MessageSpec("changes")
    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = {
        "privacy": "takes clients as they come in, and not each with a probability of its own",
        "encoded_broadcast": "has clients on their way that were sent older ones",
        "personal_parts": "lets clients start from models of some steps ago",
        "local_norm": "lets clients start from models of some steps ago, normalisation among them",
    }

    def check_speeds(self, **more: Check) -> None:
        """Refuse settings of the virtual clock outside their ranges; `more` adds further conditions."""
        check_settings(self, more, concurrency=">= 1", compute_min=">= 0", compute_mean=">= 0", compute_spread=">= 0")
        if not self.compute_min and not self.compute_mean:
            raise ConfigError(
                "--model.algorithm.compute_min and .compute_mean are both 0, so that no client would take any time; "
                "give one of them"
            )

    @abstractmethod
    def buffer(self, num_clients: int) -> int:
        """Arrivals per server step."""

    def sizes(self, num_clients: int) -> tuple[int, int]:
        """Arrivals per server step and number of active clients, K and M_c."""
        size = self.buffer(num_clients)
        number = min(2 * size, num_clients) if self.concurrency is None else self.concurrency
        for name, value in (("buffer_size", size), ("concurrency", number)):
            if value > num_clients:
                raise ConfigError(
                    f"--model.algorithm.{name} is {value}, and there are {num_clients} clients, each of whom counts "
                    f"once; give at most {num_clients}"
                )
        return size, number

    def arrivals(self, ctx: Context) -> BufferedArrivals:
        """The arrivals of this round with their staleness: a pure function of settings, seed and round."""
        return _schedule(self, ctx.num_clients, ctx.seed).round(ctx.round_idx)

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
        """The client starts from the model that it received."""
        start = old_models(shared, self.arrivals(ctx), ctx.round_idx, data.client_id)
        return local_run(ctx, start, start.parameters)

    def stepped(self, ctx: Context, shared: ModelsOnTheWay, models: ModelState) -> ModelsOnTheWay:
        """The state after a step to new models; clients still active keep the models that they received."""
        schedule = _schedule(self, ctx.num_clients, ctx.seed)
        rounds = range(int(shared.last_step) + 1, ctx.round_idx + 1)  # several if some rounds had no step
        places = torch.cat([schedule.round(one).still_out for one in rounds]).unique().to(shared.last_step.device)

        def keep(sent: Tensor, own: Tensor) -> Tensor:
            return sent.index_copy(0, places, own.expand(len(places), *own.shape))

        sent = tree.map_leaves(keep, ModelState(shared.sent_parameters, shared.sent_buffers), shared.models)
        last_step = torch.full_like(shared.last_step, ctx.round_idx)
        return ModelsOnTheWay(models, sent.parameters, sent.buffers, last_step)

    def sent(self, ctx: Context, shared: ModelsOnTheWay, client_id: int) -> ModelsOnTheWay:
        """The model of the client's staleness; the newest model for serving."""
        if ctx.phase == "train":
            own = torch.tensor(client_id, device=shared.last_step.device)
            shared = shared._replace(models=old_models(shared, self.arrivals(ctx), ctx.round_idx, own))
        return shared._replace(sent_parameters={}, sent_buffers={})

    def num_payloads(self, ctx: Context, shared: ModelsOnTheWay, num_clients: int) -> int:
        """One message for each staleness."""
        return len(self.arrivals(ctx).staleness.unique())


def late_metrics(work: LocalRun, found: BufferedArrivals, client_id: Tensor, name: str) -> dict[str, Tensor]:
    """Staleness and the time at the end of the round, as `time/NAME`."""
    return {
        "staleness": found.of(found.staleness, client_id).to(work.loss.dtype),
        f"time/{name}": torch.full_like(work.steps, found.time, dtype=torch.float64),
    }


def old_models(shared: ModelsOnTheWay, found: BufferedArrivals, round_idx: int, client_id: Tensor) -> ModelState:
    """The models that an arriving client received earlier, leaves [1, ...]."""
    if not shared.sent_parameters:  # the client itself holds no others
        return shared.models
    place = found.of(found.places, client_id).view(1)
    version = round_idx - found.of(found.staleness, client_id)

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(version > shared.last_step, new, old.index_select(0, place)[0])

    return tree.map_leaves(choose, shared.models, ModelState(shared.sent_parameters, shared.sent_buffers))  # type: ignore[no-any-return]


class _Trip(NamedTuple):
    """An active client, ordered by arrival."""

    time: float  # time of arrival
    number: int  # number of earlier dispatches: ties go to the client that was sent out first
    client_id: int
    place: int
    version: int  # server steps before it was sent out


class _Schedule:
    """The order of arrivals, which does not depend on training; each round is computed once.

    Args:
        size: K.
        number: M_c.
        least: minimum time between dispatch and arrival.
        means: mean of the random time added to it, per client [T].
        rng: draws the clients that are sent out and their times.
    """

    def __init__(self, size: int, number: int, least: float, means: np.ndarray, rng: np.random.Generator) -> None:
        self._size, self._least, self._means, self._rng = size, least, means, rng
        self._idle, self._free = list(range(len(means))), list(range(number))  # clients; slots
        self._out: list[_Trip] = []  # a heap
        self._time, self._trips = 0.0, 0
        self._rounds: list[BufferedArrivals] = []

    def round(self, round_idx: int) -> BufferedArrivals:
        """The arrivals of a round."""
        while len(self._rounds) <= round_idx:
            self._rounds.append(self._fill_buffer(len(self._rounds)))
        return self._rounds[round_idx]

    def _fill_buffer(self, version: int) -> BufferedArrivals:
        buffer: list[_Trip] = []
        while len(buffer) < self._size:
            if not self._out or self._out[0].time > self._time:  # all arrivals at this moment are included
                self._send_out(version)
            trip = heappop(self._out)
            self._time = trip.time
            self._free.append(trip.place)
            buffer.append(trip)
        buffer.sort(key=lambda trip: trip.client_id)
        self._idle += [trip.client_id for trip in buffer]
        columns = torch.tensor([(trip.client_id, version - trip.version, trip.place) for trip in buffer])
        client_ids, staleness, places = columns.unbind(1)
        still_out = torch.tensor([trip.place for trip in self._out if trip.version == version], dtype=torch.int64)
        return BufferedArrivals(client_ids, staleness, places, still_out, self._time)

    def _send_out(self, version: int) -> None:
        while self._free and self._idle:
            client_id = self._idle.pop(int(self._rng.integers(len(self._idle))))
            time = self._time + self._least + self._means[client_id] * self._rng.exponential()
            heappush(self._out, _Trip(float(time), self._trips, client_id, self._free.pop(), version))
            self._trips += 1


@lru_cache(maxsize=8)
def _schedule(settings: LateArrivals, num_clients: int, seed: int) -> _Schedule:
    size, number = settings.sizes(num_clients)
    spread = settings.compute_spread * generator(seed, 0, 0, "fedbuff/speeds").standard_normal(num_clients)
    means, rng = settings.compute_mean * np.exp(spread), generator(seed, 0, 0, "fedbuff/trips")
    return _Schedule(size, number, settings.compute_min, means, rng)
