"""What a federation is built from beside its settings: sizes of the data, kept in checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.targets import Target
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.data_sets.columns import TableColumns

__all__ = ["TrainingFacts", "name_digests"]


class TrainingFacts(NamedTuple):
    """What building a federation takes to know of its training; a checkpoint tells it, to serve unseen clients."""

    input_shape: tuple[int, ...]  # of one sample
    input_type: str  # torch's name of the inputs' type, `float32` or `int64`
    label_shape: tuple[int, ...]  # of one sample: () or (L,)
    target: Target
    num_clients: int
    total_samples: int  # training samples of all clients
    most_samples: int  # training samples of the largest of them
    groups: Tensor | None  # [T] true group of each client, where known
    batch_size: int
    clients_per_block: int
    weighting: Literal["samples", "uniform"]
    seed: int
    num_rounds: int
    normalisation: Normalisation | None  # of inputs in 0..1; None: inputs are taken as they are
    class_names: tuple[str, ...] | None = None  # what the data call the classes 0 … C − 1; None: by their numbers
    columns: TableColumns | None = None  # of the table that inputs were made from
    augment: str | None = None  # transforms of the inputs of local steps, as `written_out` gives them
    sampling_probability: float = 1.0  # with which a client takes part in a round
    capped_samples: int = 0  # of all clients, each with no more than it may weigh; 0: weights have no cap
    attackers: Tensor | None = None  # [A] clients that attack; None: nobody was asked for
    learned: tuple[str, ...] = ()  # constants that were learned from training samples, in words
    sizes: Tensor | None = None  # [T] int64 training samples of each client, where ε depends on all of them
    named: Tensor | None = None  # [T] int64 digests of the clients' names; None: the data give them none
    stored_type: str = (
        ""  # in which inputs were stored; "": not known, or of no consequence for clients that come later
    )

    @property
    def dtype(self) -> torch.dtype:
        """The inputs' type."""
        return getattr(torch, self.input_type)  # type: ignore[no-any-return]

    @property
    def attacking(self) -> Tensor | None:
        """Whether each client attacks, [T] bool; None: nobody was asked for."""
        if self.attackers is None:
            return None
        return torch.zeros(self.num_clients, dtype=torch.bool).index_fill(0, self.attackers, True)

    def took_part(self, names: Sequence[str]) -> list[str]:
        """Those of some names that clients of the training had."""
        if self.named is None:
            return []
        known = set(self.named.tolist())
        return [name for name in names if _digest(name) in known]

    def plain(self) -> dict[str, Any]:
        """These facts in numbers, strings, tuples and tensors, which a checkpoint may hold."""
        target, constants = self.target, self.normalisation
        return self._asdict() | {
            "target": (target.kind, target.num_classes, target.positions),
            "normalisation": None if constants is None else (constants.mean, constants.std),
            "columns": None if self.columns is None else self.columns.plain(),
            "groups": None if self.groups is None else _narrowed(self.groups),
            "sizes": None if self.sizes is None else _narrowed(self.sizes),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TrainingFacts:
        """The inverse of `plain`."""
        constants, columns = plain["normalisation"], plain.get("columns")  # older checkpoints know of no columns
        return cls(
            **plain
            | {
                "target": Target.from_plain(*plain["target"]),
                "normalisation": None if constants is None else Normalisation(*constants),
                "columns": None if columns is None else TableColumns.from_plain(columns),
                "groups": None if plain["groups"] is None else plain["groups"].long(),
            }
        )


def name_digests(names: Sequence[str]) -> Tensor | None:
    """By what a checkpoint knows a client's name again, [T] int64; None for clients that are but numbered."""
    if all(name == str(position) for position, name in enumerate(names)):
        return None
    return torch.tensor([_digest(name) for name in names])


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)


def _narrowed(numbers: Tensor) -> Tensor:
    """Whole numbers >= 0 as the narrowest type that holds them: of a million clients a checkpoint keeps one each."""
    most = int(numbers.max()) if len(numbers) else 0
    return numbers.to(next(kind for kind in (torch.uint8, torch.int16, torch.int64) if most <= torch.iinfo(kind).max))
