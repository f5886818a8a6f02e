"""Facts from which a federation is built, besides its settings: sizes and types of the data, and terms of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import forecasting, likelihood, segmentation  # noqa: F401 - `from_plain` finds their targets
from lit_fed.core.context import Terms
from lit_fed.core.local_solver import BY_CLIENT
from lit_fed.core.named_inputs import LABELS, Input, NamedInputs
from lit_fed.core.targets import Target
from lit_fed.core.types import Split
from lit_fed.data.data_sets.base import Normalisation, input_array
from lit_fed.data.data_sets.columns import TableColumns
from lit_fed.data.data_sets.fills import Imputation
from lit_fed.data.data_sets.texts import Texts
from lit_fed.system.checked_archive import tensor
from lit_fed.system.readers import (
    FormError,
    Reader,
    instance,
    keyed,
    list_of,
    number,
    one_of,
    optional,
    record,
    text,
    tuple_of,
    whole,
)

__all__ = [
    "FACTS", "FLAG", "INPUTS", "LARGE", "MOST_CLASSES", "MOST_NUMBERS", "POSITIVE", "SAMPLES", "SEED", "SHAPE", "SHARE",
    "TEXTS_FORM", "TrainingFacts", "digests_in", "known_names", "name_digests", "vector",
]  # fmt: skip

MOST_NUMBERS = 10_000_000
"""Clients of a training."""

MOST_CLASSES = 2**17
"""Classes of a training: the last layer of the network has a row for each."""

FLAG = one_of(True, False)
LARGE = whole(0, 2**31)
POSITIVE = whole(1, 2**31)
SAMPLES = whole(0, 2**52)
SEED = whole(0, 2**63)
SHAPE = list_of(whole(1, 2**31 - 1), 8)  # of a sample
SHARE = number(0, 1)
INPUT = text(64, r"[0-9]+|[^\W\d]\w*")
INPUTS = record(
    {
        "inputs": list_of(tuple_of(INPUT, SHAPE, one_of("float32", "int64", "bool", "uint8")), 64, 1),
        "uneven": list_of(INPUT, 64),
        "hold_labels": FLAG,
    },
    may_miss=("hold_labels",),
)  # fmt: skip
"""Several inputs of a network, see `NamedInputs`."""

TEXT = instance(str)
NAMES = list_of(TEXT, MOST_NUMBERS)


def _character(value: Any, place: str) -> str:
    """A text of one character."""
    if len(found := str(TEXT(value, place))) != 1:
        raise FormError(f"{place} is not one character")
    return found


COLUMNS = record(
    {
        "features": list_of(
            tuple_of(TEXT, optional(NAMES), optional(instance(str, int, float)), FLAG), MOST_NUMBERS, 1
        ),
        "unknown_categories": one_of("error", "zeros"), "skip_lines": LARGE,
        **dict.fromkeys(("missing_values", "dates", "date_parts"), NAMES),
        **dict.fromkeys(("label_column", "date_format", "encoding"), TEXT),
        **dict.fromkeys(("separator", "decimal"), _character),
        **dict.fromkeys(
            ("client_column", "split_column", "query_column", "group_column", "time_column"), optional(TEXT)
        ),
        "own_fills": optional(one_of(*get_args(Imputation))),
    },
    may_miss=tuple(TableColumns._field_defaults),
)  # fmt: skip
"""Columns of a table, see `TableColumns`."""


TEXTS_FORM: dict[str, Reader] = {
    **dict.fromkeys(("tokenizer", "prompt_column"), optional(TEXT)), "label_column": TEXT,
    **dict.fromkeys(("next_token", "packed"), FLAG), "max_length": POSITIVE,
}  # fmt: skip
"""Texts and their tokens, see `Texts`."""


def _target(value: Any, place: str) -> tuple[Any, ...]:
    """Kind, number of classes (0 for some that settings name), positions or not, and a label to ignore, if any."""
    ignored = [whole(-(2**31), 2**31)] if isinstance(value, list | tuple) and len(value) == 4 else []
    read: tuple[Any, ...] = tuple_of(text(64), whole(0, MOST_CLASSES), FLAG, *ignored)(value, place)
    return read


def _type(value: Any, place: str) -> str:
    """The name of a type of torch."""
    name = text(16)(value, place)
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise FormError(f"{place} is not a type of tensors")
    return str(name)


def vector(value: Any, place: str) -> Tensor:
    """A tensor with one axis."""
    if tensor(value, place).ndim != 1 or value.is_complex():
        raise FormError(f"{place} is not a tensor with one axis")
    return value  # type: ignore[no-any-return]


FACTS: dict[str, Reader] = {
    "input_shape": list_of(whole(1, 2**31 - 1), 8, 1), "input_type": _type, "label_shape": SHAPE, "target": _target,
    "num_clients": whole(1, MOST_NUMBERS), "total_samples": SAMPLES, "most_samples": SAMPLES, "batch_size": LARGE,
    "clients_per_block": POSITIVE, "weighting": one_of("samples", "positions", "uniform"), "seed": SEED,
    "num_rounds": POSITIVE, "normalisation": optional(tuple_of(*[list_of(number(), 2**16)] * 2)),
    "class_names": optional(NAMES), "columns": optional(COLUMNS), "augment": optional(text(4096)),
    "sampling_probability": SHARE, "capped_samples": SAMPLES, "total_positions": SAMPLES, "stored_type": text(16),
    "learned": NAMES, "label_scale": optional(tuple_of(number(), number())), "inputs": optional(INPUTS),
    "texts": optional(record(TEXTS_FORM)),
    **dict.fromkeys(("groups", "attackers", "sizes", "named", "class_counts"), optional(vector)),
    "of_clients": keyed(one_of(*BY_CLIENT), vector, len(BY_CLIENT)),
}  # fmt: skip
"""Readers of the facts of a training, as `TrainingFacts.plain` writes them."""


@dataclass(frozen=True, kw_only=True)
class TrainingFacts(Terms):
    """Facts about the data and terms of a run that are needed to build its federation.

    Checkpoints keep them to serve unseen clients; nodes receive those of `public` as JSON.
    """

    input_shape: tuple[int, ...]  # of one sample
    input_type: str  # torch's name of the inputs' type, `float32` or `int64`
    label_shape: tuple[int, ...]  # of one sample: () or (L,), or (H, W) of a mask
    target: Target
    clients_per_block: int
    normalisation: Normalisation | None  # of inputs in 0..1; None: inputs are taken as they are
    class_names: tuple[str, ...] | None = None  # of the classes 0 … C − 1; None: their numbers
    columns: TableColumns | None = None  # columns of the table that inputs come from
    augment: str | None = None  # transforms of the inputs of local steps, as `written_out` gives them
    attackers: Tensor | None = None  # [A] clients that attack; None: no attack is simulated
    learned: tuple[str, ...] = ()  # constants that were learned from training samples, in words
    named: Tensor | None = None  # [T] int64 digests of the clients' names; None: clients have only numbers
    label_scale: tuple[float, float] | None = None  # mean and deviation that standardise labels; None: not standardised
    stored_type: str = ""  # in which inputs were stored; "": unknown, or irrelevant for later clients
    class_counts: Tensor | None = None  # [C] int64 training labels of each class, if the loss needs them
    inputs: NamedInputs | None = None  # inputs that a sample concatenates; None: a single input
    texts: Texts | None = None  # how texts became the inputs; None: they are no texts

    @property
    def dtype(self) -> torch.dtype:
        """The inputs' type."""
        return getattr(torch, self.input_type)  # type: ignore[no-any-return]

    @property
    def as_read(self) -> TrainingFacts:
        """The facts of the data as they are read, before labels came beside inputs for `OwnLoss`."""
        if self.inputs is None or not self.inputs.hold_labels or LABELS not in self.inputs.names:
            return self
        own = self.inputs.without_labels
        if isinstance(own, Input):
            return self._replace(inputs=None, input_shape=own.shape, input_type=own.kind)
        return self._replace(inputs=own, input_shape=(own.size,), input_type=own.dtype.name)

    def inputs_of(self, x: np.ndarray) -> np.ndarray:
        """Stored inputs [n, ...] as the training saw them; those of another shape are converted alone."""
        if self.normalisation is None or x.shape[1:] != self.input_shape:
            return input_array(x)
        return self.normalisation.apply(x)

    @property
    def attacking(self) -> Tensor | None:
        """Whether each client attacks, [T] bool; None: no attack is simulated."""
        if self.attackers is None:
            return None
        return torch.zeros(self.num_clients, dtype=torch.bool).index_fill(0, self.attackers, True)

    def took_part(self, names: Sequence[str]) -> list[str]:
        """The given names that belong to seen clients."""
        return [] if self.named is None else known_names(self.named, names)

    def number_of(self, name: str) -> int | None:
        """The number of the seen client with this name; None: there is none."""
        if self.named is None:
            return int(name) if name in map(str, range(self.num_clients)) else None
        return dict(zip(self.named.tolist(), range(self.num_clients), strict=True)).get(_digest(name))

    @property
    def blank(self) -> Split:
        """One sample of zeros, of one client."""
        kind = torch.float32 if self.target.continuous else torch.int64
        x = torch.zeros(1, *self.input_shape, dtype=self.dtype)
        return Split(x, torch.zeros(1, *self.label_shape, dtype=kind), torch.tensor([0, 1]))

    @property
    def public(self) -> TrainingFacts:
        """The facts without those that only the server may know: groups, attackers, names and sizes of clients."""
        return self._replace(
            groups=None,
            attackers=None,
            columns=None,
            texts=None,
            class_names=None,
            named=None,
            sizes=None,
            learned=(),
            class_counts=None,
            of_clients={},
        )

    def plain(self) -> dict[str, Any]:
        """The facts as numbers, strings, tuples and tensors, for checkpoints; those of `public` as JSON."""
        target, constants = self.target, self.normalisation
        return self._asdict() | {
            "target": target.plain,
            "normalisation": None if constants is None else (constants.mean, constants.std),
            "columns": None if self.columns is None else self.columns.plain(),
            "inputs": None if self.inputs is None else self.inputs.plain(),
            "texts": None if self.texts is None else self.texts._asdict(),
            "groups": None if self.groups is None else _narrowed(self.groups),
            "sizes": None if self.sizes is None else _narrowed(self.sizes),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any], target: Target | None = None) -> TrainingFacts:
        """The inverse of `plain`, also after a round trip through JSON.

        Args:
            plain: all fields; foreign values must be checked first.
            target: the target of `--model.target`.

        Raises:
            ConfigError: if there is no such target.
        """
        constants, columns = plain["normalisation"], plain.get("columns")
        given: Any = {name: tuple(one) if isinstance(one, list) else one for name, one in plain.items()}
        kind, num_classes, positions, *ignored = plain["target"]
        given["target"] = Target.from_plain(kind, num_classes, positions, ignored[0] if ignored else None, target)
        if given.get("label_scale") is not None:
            given["target"] = given["target"].standardised(given["label_scale"])
        given["normalisation"] = None if constants is None else Normalisation(*map(tuple, constants))
        given["columns"] = None if columns is None else TableColumns.from_plain(columns)
        texts, inputs = plain.get("texts"), plain.get("inputs")
        given["texts"] = None if texts is None else Texts(**texts)
        given["inputs"] = None if inputs is None else NamedInputs.from_plain(inputs)
        for name in ("groups", "sizes"):
            given[name] = None if plain.get(name) is None else plain[name].long()
        return cls(**given)


def name_digests(names: Sequence[str]) -> Tensor | None:
    """Digests by which a checkpoint recognises clients' names, [T] int64; None for clients that are only numbered."""
    if all(name == str(position) for position, name in enumerate(names)):
        return None
    return torch.tensor([_digest(name) for name in names])


def digests_in(plain: dict[str, Any]) -> Tensor:
    """Digests of the names of all seen clients, [T] int64, from the facts of a checkpoint."""
    named: Tensor | None = plain.get("named")
    return torch.tensor([_digest(str(one)) for one in range(plain["num_clients"])]) if named is None else named


def known_names(digests: Tensor, names: Sequence[str]) -> list[str]:
    """The given names whose digests are among these."""
    known = set(digests.tolist())
    return [name for name in names if _digest(name) in known]


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)


def _narrowed(numbers: Tensor) -> Tensor:
    """Whole numbers >= 0 in the narrowest type that holds them, since a checkpoint keeps one for each client."""
    most = int(numbers.max()) if len(numbers) else 0
    return numbers.to(next(kind for kind in (torch.uint8, torch.int16, torch.int64) if most <= torch.iinfo(kind).max))
