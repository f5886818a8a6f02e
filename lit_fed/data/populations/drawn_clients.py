"""Clients whose samples are generated or read on demand, for populations larger than memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TypeAlias, overload

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.types import Batch, ClientData, Split
from lit_fed.errors import ConfigError

__all__ = ["Draw", "DrawnClient", "DrawnSplit", "NumberedClients"]

Draw: TypeAlias = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Client number -> inputs [N, ...] and labels [N] or [N, L]; the same arrays in every call."""

BYTES_PER_BLOCK = 2**27
"""Upper limit of the bytes of a block's samples."""


class NumberedClients(Sequence[str]):
    """The names `0`, `1`, … of T clients, generated on access: a million strings need more memory than mixtures."""

    def __init__(self, num_clients: int) -> None:
        self._numbers = range(num_clients)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        found = self._numbers[position]
        return str(found) if isinstance(found, int) else [str(one) for one in found]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class DrawnSplit(Split):
    """A split that stores sizes and a generator of samples, but no samples.

    `x` and `y` are empty and give only shape and type of a sample and the device; `select` generates samples.

    Args:
        draw: generates the samples of one client.
        sizes: samples of each client, [T] int64.
        x: inputs without samples, [0, ...].
        y: labels without samples, [0] or [0, L].
        origin: text that identifies the source of the samples and its settings; part of the data's fingerprint.
        numbers: argument of `draw` for each client, [T] int64; None: 0, 1, ….
        first_id: identity of the first client.
    """

    def __init__(
        self,
        draw: Draw,
        sizes: Tensor,
        x: Tensor,
        y: Tensor,
        origin: str,
        numbers: Tensor | None = None,
        first_id: int = 0,
    ) -> None:
        super().__init__(x, y, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), first_id)
        self.draw, self.origin, self._numbers = draw, origin, numbers
        each = sum(one.shape[1:].numel() * one.element_size() for one in (x, y))
        self.samples_per_block = max(1, BYTES_PER_BLOCK // each)

    @property
    def numbers(self) -> Tensor:
        """Argument of `draw` for each client, [T] int64."""
        return torch.arange(self.num_clients) if self._numbers is None else self._numbers

    def client(self, client_id: int) -> ClientData:
        """One client; its samples are generated at the first access."""
        return DrawnClient(self, client_id)  # type: ignore[return-value]

    def every_other(self, first: int) -> Split:
        """All samples: those that are made on demand are not divided."""
        return self

    def select(self, client_ids: Tensor) -> Split:
        """Generate the samples of these clients [C], as a split in memory.

        Raises:
            ConfigError: if the generated samples have an unexpected shape.
        """
        ids = client_ids.cpu().unique()
        positions = self.positions(ids)
        sizes = self.sizes[positions]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        x, y = (torch.empty(int(offsets[-1]), *one.shape[1:], dtype=one.dtype) for one in (self.x, self.y))
        starts, ends = offsets[:-1].tolist(), offsets[1:].tolist()
        for number, start, end in zip(self._numbers_at(positions).tolist(), starts, ends, strict=True):
            for held, drawn in zip((x, y), self.draw(number), strict=True):
                rows = held[start:end]
                if drawn.shape != rows.shape:
                    raise ConfigError(
                        f"client {number} of {self.origin} was drawn with shape {list(drawn.shape)} instead of "
                        f"{list(rows.shape)}; correct the data set's sizes or its draw"
                    )
                rows.copy_(torch.from_numpy(drawn))
        return Split(x.to(self.x.device), y.to(self.y.device), offsets, self.first_id, ids)

    def subset(self, positions: Tensor) -> DrawnSplit:
        """The clients at ascending positions [C], renumbered from 0."""
        sizes = self.sizes[positions]
        return DrawnSplit(self.draw, sizes, self.x, self.y, self.origin, self._numbers_at(positions))

    def flattened(self) -> DrawnSplit:
        draw, y = partial(_draw_flat, self.draw), self.y.flatten(1)
        return DrawnSplit(draw, self.sizes, self.x, y, self.origin, self._numbers, self.first_id)

    def _numbers_at(self, positions: Tensor) -> Tensor:
        return positions if self._numbers is None else self._numbers[positions]

    def rows(self, rows_of: Callable[[int], np.ndarray], sizes: Tensor) -> DrawnSplit:
        """The split with a subset of each client's samples.

        Args:
            rows_of: position -> rows [N] to keep.
            sizes: number of rows of each client, [T] int64.
        """
        draw = partial(_draw_rows, self.draw, self._numbers, rows_of)
        return DrawnSplit(draw, sizes, self.x, self.y, self.origin, first_id=self.first_id)

    def _copy(self, device: torch.device) -> DrawnSplit:
        x, y = self.x.to(device), self.y.to(device)
        return DrawnSplit(self.draw, self.sizes, x, y, self.origin, self._numbers, self.first_id)


class DrawnClient:
    """One client of a `DrawnSplit`, with the attributes of `ClientData`; only reading samples generates them."""

    index = None

    def __init__(self, split: DrawnSplit, client_id: int) -> None:
        self._split, self._client_id = split, client_id

    @cached_property
    def _held(self) -> ClientData:
        return self._split.select(torch.tensor([self._client_id])).client(self._client_id)

    @property
    def x(self) -> Tensor:
        return self._held.x

    @property
    def y(self) -> Tensor:
        return self._held.y

    all_x, all_y = x, y

    @property
    def batch(self) -> Batch:
        return self._held.batch

    @property
    def client_id(self) -> Tensor:
        """Identity, [] int64."""
        return torch.tensor(self._client_id, device=self._split.x.device)

    @property
    def mask(self) -> Tensor:
        """1 for each sample, [N]."""
        position = self._client_id - self._split.first_id
        lo, hi = self._split.offsets[position : position + 2].tolist()
        return torch.ones(hi - lo, device=self._split.x.device)

    @property
    def num_samples(self) -> Tensor:
        """Number of samples, [] float64."""
        return self.mask.sum(dtype=torch.float64)


def _draw_rows(
    draw: Draw, numbers: Tensor | None, rows_of: Callable[[int], np.ndarray], position: int
) -> tuple[np.ndarray, np.ndarray]:
    x, y = draw(position if numbers is None else int(numbers[position]))
    rows = rows_of(position)
    return x[rows], y[rows]


def _draw_flat(draw: Draw, number: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = draw(number)
    return x, y.reshape(len(y), math.prod(y.shape[1:]))
