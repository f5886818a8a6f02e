"""Synthetic mixtures of linear classifiers: a label of client t comes from component m with probability π_tm.

Federated Multi-Task Learning under a Mixture of Distributions (Marfoq, Neglia, Bellet, Kameni, Vidal; NeurIPS 2021,
arXiv:2108.10252), appendix on data sets. It uses the legacy NumPy stream: with seed 1234, 300 clients and 5,000
test points `variant="published"` gives exactly the data of the published code (1,570,507 samples).

Symbols: θ_m `components` [M, d], π_t `mixtures` [T, M], n_t `sizes` [T].

Deviations: the published generator never advances its write position, so every component labels the *first* rows of
a client and the remaining rows keep label 0. The paper's numbers were obtained on those labels, so `published` keeps
them; `corrected` uses the same random numbers and labels each component's own rows. With `on_demand` sizes, mixtures
and components are the same, but each client and split has its own random stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch

from lit_fed.core.seeds import generator
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import ANY_SEED, PLACE, ClientDataSet, empty_split, make_split, require
from lit_fed.data.populations.drawn_clients import DrawnSplit, NumberedClients
from lit_fed.errors import check_settings
from lit_fed.system.machine import require_memory

__all__ = ["Synthetic", "SyntheticClient", "SyntheticParameters", "synthetic_clients", "synthetic_parameters"]


class SyntheticParameters(NamedTuple):
    """Parameters of the distribution of samples."""

    sizes: np.ndarray  # [T] int64 training samples
    mixtures: np.ndarray  # [T, M] float64, rows sum to 1
    components: np.ndarray  # [M, d] float64


class SyntheticClient(NamedTuple):
    """The samples of one client."""

    x_train: np.ndarray  # [n, d] float32
    y_train: np.ndarray  # [n] int64
    x_test: np.ndarray  # [test_size, d] float32
    y_test: np.ndarray  # [test_size] int64


@dataclass(frozen=True)
class Synthetic(ClientDataSet):
    """Binary labels from a client's own mixture of shared linear classifiers.

    Args:
        num_clients: number of clients T.
        num_components: number of shared classifiers M.
        dimension: number of inputs d, each uniform in [-1, 1].
        alpha: concentration of the Dirichlet distribution of the mixtures; small: mixtures close to one component.
        noise: standard deviation of the noise on the logit.
        test_size: test samples of each client.
        variant: "published": the data of the FedEM paper, with its labelling bug; "corrected": without it.
        seed: seed of the data, independent of the training seed.
        one_hot_mixtures: round each mixture to its largest component.
        samples_per_client: training samples of each client; None: min(⌊lognormal(4, 2)⌋ + 50, 1000), as in the paper.
        on_demand: generate a client's samples whenever they are needed, for populations larger than memory; needs
            variant "corrected".
    """

    num_clients: int = 300
    num_components: int = 3
    dimension: int = 150
    alpha: float = 0.4
    noise: float = 0.1
    test_size: int = 5000
    variant: Literal["published", "corrected"] = "published"
    seed: int = 1234
    one_hot_mixtures: bool = False
    samples_per_client: int | None = None
    on_demand: bool = False

    num_classes = 2

    def __post_init__(self) -> None:
        counts = ("num_clients", "num_components", "dimension", "test_size", "samples_per_client")
        check_settings(self, dict.fromkeys(counts, ">= 1"), PLACE, alpha="> 0", noise=">= 0", seed=ANY_SEED)
        require(
            not self.on_demand or self.variant == "corrected",
            f"Synthetic: on_demand with variant = {self.variant!r}, whose clients share one random stream; "
            "choose variant 'corrected', or leave on_demand out",
        )

    def load(self) -> tuple[Population, None]:
        """All clients, with true groups argmax_m π_tm; the validation split is empty."""
        self._check_memory(self.num_clients * (3 + self.num_components) + self.num_components * self.dimension)
        parameters = synthetic_parameters(self)
        num_samples = int(parameters.sizes.sum()) + self.num_clients * self.test_size
        if self.on_demand:  # one client at a time
            num_samples = max(int(parameters.sizes.max()), self.test_size)
        self._check_memory(num_samples * (1 + self.dimension / 2))
        train, test = self._drawn(parameters) if self.on_demand else self._held(parameters)
        groups = torch.from_numpy(parameters.mixtures.argmax(axis=1))
        return Population(train, empty_split(train), test, NumberedClients(self.num_clients), groups), None

    def _check_memory(self, num_numbers: float) -> None:
        """Refuse sizes that do not fit into memory; `num_numbers` take 8 bytes each."""
        require_memory(
            int(8 * num_numbers),
            f"Synthetic: num_clients = {self.num_clients}, num_components = {self.num_components}, dimension = "
            f"{self.dimension}, test_size = {self.test_size}",
            "choose smaller sizes" + ("" if self.on_demand else ", or on_demand with variant 'corrected'"),
        )

    def _drawn(self, parameters: SyntheticParameters) -> tuple[DrawnSplit, DrawnSplit]:
        x, y = map(torch.from_numpy, _allocate(0, self.dimension))

        def split(name: str, sizes: np.ndarray) -> DrawnSplit:
            draw = partial(_draw_client, self, parameters, name, sizes)
            return DrawnSplit(draw, torch.from_numpy(sizes), x, y, repr(self))

        return split("train", parameters.sizes), split("test", np.full(self.num_clients, self.test_size))

    def _held(self, parameters: SyntheticParameters) -> tuple[Split, Split]:
        """Training and test split in memory, generated client by client from one stream."""
        train_sizes, test_sizes = parameters.sizes, np.full(self.num_clients, self.test_size)
        x_train, y_train = _allocate(int(train_sizes.sum()), self.dimension)
        x_test, y_test = _allocate(int(test_sizes.sum()), self.dimension)
        train_end = test_end = 0
        for client in synthetic_clients(self):
            train_start, train_end = train_end, train_end + len(client.y_train)
            test_start, test_end = test_end, test_end + len(client.y_test)
            x_train[train_start:train_end], y_train[train_start:train_end] = client.x_train, client.y_train
            x_test[test_start:test_end], y_test[test_start:test_end] = client.x_test, client.y_test
        return make_split(x_train, y_train, train_sizes), make_split(x_test, y_test, test_sizes)


def synthetic_parameters(config: Synthetic) -> SyntheticParameters:
    """Sizes, mixtures and components of the data set, without its samples."""
    return _draw_parameters(config, np.random.RandomState(config.seed))


def synthetic_clients(config: Synthetic) -> Iterator[SyntheticClient]:
    """Generate the clients lazily, one after another."""
    stream = np.random.RandomState(config.seed)
    parameters = _draw_parameters(config, stream)
    for size, mixture in zip(parameters.sizes, parameters.mixtures, strict=True):
        train = _draw_samples(config, stream, int(size), mixture, parameters.components)
        test = _draw_samples(config, stream, config.test_size, mixture, parameters.components)
        yield SyntheticClient(*train, *test)


def _draw_parameters(config: Synthetic, stream: np.random.RandomState) -> SyntheticParameters:
    """Sample the parameters, in the order of the published code."""
    mixtures_shape = np.full(config.num_components, config.alpha)
    sizes = _draw_sizes(config, stream)
    mixtures = stream.dirichlet(mixtures_shape, size=config.num_clients)
    components = stream.uniform(-1, 1, size=(config.num_components, config.dimension))
    if config.one_hot_mixtures:
        mixtures = np.eye(config.num_components)[mixtures.argmax(axis=1)]
    return SyntheticParameters(sizes, mixtures, components)


def _draw_sizes(config: Synthetic, stream: np.random.RandomState) -> np.ndarray:
    if config.samples_per_client is not None:
        return np.full(config.num_clients, config.samples_per_client)
    heavy_tailed = stream.lognormal(4, 2, size=config.num_clients).astype(np.int64)
    return np.minimum(heavy_tailed + 50, 1000)


def _draw_client(
    config: Synthetic, parameters: SyntheticParameters, split: str, sizes: np.ndarray, client_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Generate one client's split from its own stream: x [n, d] float32, y [n] int64."""
    stream = generator(config.seed, 0, client_id, f"synthetic/{split}")
    return _draw_samples(config, stream, int(sizes[client_id]), parameters.mixtures[client_id], parameters.components)


def _draw_samples(
    config: Synthetic,
    stream: np.random.RandomState | np.random.Generator,
    size: int,
    mixture: np.ndarray,
    components: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Generate shuffled samples of one client and split: x [size, d] float32, y [size] int64."""
    counts = stream.multinomial(size, mixture)
    x = stream.uniform(-1, 1, size=(size, config.dimension))
    y = np.zeros(size, dtype=np.int64)
    starts = np.cumsum(counts) - counts if config.variant == "corrected" else np.zeros_like(counts)
    for start, count, component in zip(starts, counts, components, strict=True):
        rows = slice(start, start + count)
        logits = x[rows] @ component + stream.normal(scale=config.noise, size=count)
        y[rows] = logits > 0  # the same as rounding the sigmoid
    order = stream.permutation(size)
    return x.astype(np.float32)[order], y[order]


def _allocate(num_samples: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty((num_samples, dimension), dtype=np.float32), np.empty(num_samples, dtype=np.int64)
