"""The virtual clock of an asynchronous server: which clients arrive when, trained from models of which step.

The arrivals depend only on the seed and the clients' speeds, and are known before training.
"""

from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.seeds import generator

__all__ = ["Arrivals", "BufferedArrivals", "arrivals"]


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


class _Trip(NamedTuple):
    """An active client, ordered by arrival."""

    time: float  # time of arrival
    number: int  # number of earlier dispatches: ties go to the client that was sent out first
    client_id: int
    place: int
    version: int  # server steps before it was sent out


class Arrivals:
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
def arrivals(
    size: int, number: int, num_clients: int, seed: int, compute_min: float, compute_mean: float, compute_spread: float
) -> Arrivals:
    """The order of arrivals of clients with these speeds, kept from call to call.

    Args:
        size: K.
        number: M_c.
        num_clients: T.
        seed: of the training.
        compute_min: minimum time between dispatch and arrival.
        compute_mean: mean of the random time added to it, for the median client.
        compute_spread: standard deviation of the logarithm of that mean over clients.
    """
    spread = compute_spread * generator(seed, 0, 0, "fedbuff/speeds").standard_normal(num_clients)
    means, rng = compute_mean * np.exp(spread), generator(seed, 0, 0, "fedbuff/trips")
    return Arrivals(size, number, compute_min, means, rng)
