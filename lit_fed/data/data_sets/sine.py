"""Sine curve: each client has a few noisy points of one interval.

Find Your Friends: Personalized Federated Learning with the Right Collaborators (Sui, Wen, Lau, Ross, Cresswell; 2022,
arXiv:2210.06597), Figure 1: no line fits the whole curve, but one fits each client, and neighbouring clients have
similar lines.

Deviations: the paper gives neither sizes nor the noise; the defaults are ours. Labels are in units of the noise, so
that its variance is 1, as in the regression loss: differences of losses decide which clients collaborate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import ANY_SEED, PLACE, ClientDataSet, empty_split, make_split
from lit_fed.errors import check_settings
from lit_fed.system.machine import require_memory

__all__ = ["Sine"]


@dataclass(frozen=True)
class Sine(ClientDataSet):
    """y = sin(π(x + 1)) / noise + ε with ε ~ N(0, 1), x uniform in the client's interval of [-1, 1].

    Args:
        num_clients: number of clients T; client i has the i-th of T equal intervals.
        samples_per_client: training samples of each client.
        test_size: test samples of each client.
        noise: standard deviation of the noise, in units of the sine's amplitude.
        seed: seed of the data, independent of the training seed.
    """

    num_clients: int = 20
    samples_per_client: int = 2
    test_size: int = 200
    noise: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("num_clients", "samples_per_client", "test_size"), ">= 1")
        check_settings(self, counts, PLACE, noise="> 0", seed=ANY_SEED)

    def load(self) -> tuple[Population, None]:
        per_client = self.samples_per_client + self.test_size
        require_memory(
            8 * self.num_clients * per_client,
            f"Sine: num_clients = {self.num_clients} with {per_client} samples each",
            "choose smaller sizes",
        )
        train, test = (
            make_split(*self._draw(name, size), np.full(self.num_clients, size))
            for name, size in (("train", self.samples_per_client), ("test", self.test_size))
        )
        return Population(train, empty_split(train), test, [str(one) for one in range(self.num_clients)]), None

    def curve(self, x: np.ndarray) -> np.ndarray:
        """Labels without noise."""
        return np.asarray(np.sin(np.pi * (x + 1)) / self.noise)

    def interval(self, client_id: int) -> tuple[float, float]:
        """Lower and upper end of a client's interval."""
        width = 2 / self.num_clients
        return -1 + width * client_id, -1 + width * (client_id + 1)

    def _draw(self, split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Samples of all clients: x [T·size, 1], y [T·size], both float32."""
        xs, ys = [], []
        for client_id in range(self.num_clients):
            stream = generator(self.seed, 0, client_id, f"sine/{split}")
            x = stream.uniform(*self.interval(client_id), size)
            xs.append(x)
            ys.append(self.curve(x) + stream.normal(size=size))
        return np.concatenate(xs).astype(np.float32)[:, None], np.concatenate(ys).astype(np.float32)
