"""Segmentation without a download: groups of annotators that outline the same kind of blob tight, exactly or wide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lit_fed.core.seeds import generator
from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import ANY_SEED, PLACE, ClientDataSet, empty_split, make_split
from lit_fed.errors import check_settings
from lit_fed.system.machine import require_memory

__all__ = ["Outlines"]

SOFTNESS = 0.8
"""Pixels over which a blob fades, so that its edge is a matter of opinion."""


@dataclass(frozen=True)
class Outlines(ClientDataSet):
    """Grey pictures x [n, 1, size, size] of one ellipse each, and masks y [n, size, size] of the classes 0 and 1.

    Client t is in group t % `num_groups`, whose masks contradict those of the others: group g outlines an ellipse
    (g − (num_groups − 1)/2)·`spread` pixels outside its edge.

    Args:
        num_clients: number of clients T.
        samples_per_client: training pictures of each client.
        test_size: test pictures of each client.
        num_groups: number of groups of annotators.
        spread: distance in pixels between the outlines of two neighbouring groups.
        noise: standard deviation of the pixels' noise; an ellipse has brightness 1 on 0.
        size: height and width.
        seed: seed of the data, independent of the training seed.
    """

    num_clients: int = 15
    samples_per_client: int = 24
    test_size: int = 24
    num_groups: int = 3
    spread: float = 1.5
    noise: float = 0.3
    size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("num_clients", "samples_per_client", "test_size", "num_groups"), ">= 1")
        check_settings(self, counts, PLACE, spread=">= 0", noise=">= 0", size=">= 8", seed=ANY_SEED)

    def load(self) -> tuple[Population, None]:
        per_client = self.samples_per_client + self.test_size
        require_memory(
            12 * self.num_clients * per_client * self.size**2,
            f"Outlines: num_clients = {self.num_clients} with {per_client} pictures each",
            "choose smaller sizes",
        )
        train, test = (
            make_split(*self._draw(name, each), np.full(self.num_clients, each))
            for name, each in (("train", self.samples_per_client), ("test", self.test_size))
        )
        groups = torch.arange(self.num_clients) % self.num_groups
        names = [f"annotator_{one}" for one in range(self.num_clients)]
        return Population(train, empty_split(train), test, names, groups), None

    def _draw(self, split: str, each: int) -> tuple[np.ndarray, np.ndarray]:
        """Pictures [T·each, 1, size, size] float32 and masks [T·each, size, size] int64 of all clients."""
        pictures, masks = [], []
        for client_id in range(self.num_clients):
            stream = generator(self.seed, 0, client_id, f"outlines/{split}")
            outside = self._outside(stream, each)
            brightness = 1 / (1 + np.exp(outside / SOFTNESS))
            pictures.append(brightness + self.noise * stream.normal(size=outside.shape))
            masks.append(outside < (client_id % self.num_groups - (self.num_groups - 1) / 2) * self.spread)
        return np.concatenate(pictures).astype(np.float32)[:, None], np.concatenate(masks).astype(np.int64)

    def _outside(self, stream: np.random.Generator, each: int) -> np.ndarray:
        """About how many pixels each pixel lies outside an ellipse, [each, size, size]; negative inside."""
        rows, columns = np.mgrid[: self.size, : self.size] + 0.5
        y, x = self.size * stream.uniform(0.35, 0.65, (2, each, 1, 1))
        long, short = self.size * stream.uniform(0.2, 0.3, (2, each, 1, 1))
        angle = stream.uniform(0, np.pi, (each, 1, 1))
        along = np.cos(angle) * (columns - x) + np.sin(angle) * (rows - y)
        across = np.cos(angle) * (rows - y) - np.sin(angle) * (columns - x)
        return np.asarray((np.hypot(along / long, across / short) - 1) * np.sqrt(long * short))
