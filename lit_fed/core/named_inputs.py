"""Several inputs of a network in one tensor, such as token ids with their mask, or an image with table columns.

A sample is one row of numbers: its inputs, concatenated. A hook of the network splits the rows, so data sets,
client trainers, privacy and nodes see samples [n, D], as for a network with one input.
"""

from __future__ import annotations

import inspect
import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError

__all__ = ["ATTENTION_MASK", "LABELS", "WHOLE", "Given", "Input", "NamedInputs", "kind_of", "read_by_name"]

Given = np.ndarray | list[np.ndarray]
"""One input of some samples: [n, ...], or a list of n arrays if their lengths differ."""

ATTENTION_MASK = "attention_mask"
"""Name of the mask of padded sequences: 1 at their positions, 0 at padding."""

LABELS, WHOLE = "labels__", "batch__"
"""Names of the labels among inputs, where a batch is a pair of inputs and labels, and of a batch that is one tensor."""

LARGEST = 2**24
"""Whole numbers up to which float32 is exact."""

KINDS = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}
"""Type in which the network gets an input, by NumPy's kind; uint8 is scaled to 0..1."""


class Input(NamedTuple):
    """One input of a network."""

    name: str  # parameter of `forward`, or its position if inputs come as a tuple
    shape: tuple[int, ...]  # of one sample; of the longest one for sequences
    kind: str  # `float32`, `int64`, `bool`, or `uint8`, which is scaled to float32 in 0..1

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {self.kind}"


@dataclass(frozen=True)
class NamedInputs:
    """Names, shapes and types of the inputs of a network, in the order in which samples hold them.

    Args:
        inputs: the inputs.
        uneven: names of the padded sequences, which share an `attention_mask` made here; empty: no mask is made.
        hold_labels: whether labels are among them, for a module that computes its loss itself.
    """

    inputs: tuple[Input, ...]
    uneven: tuple[str, ...] = ()
    hold_labels: bool = False

    @classmethod
    def of(cls, groups: Sequence[tuple[str, Mapping[str, Given]]]) -> Self:
        """The inputs of some samples.

        Sequences of whole numbers or truth values are padded to the longest. If their lengths differ and no input is
        named `…mask`, an `attention_mask` is added.

        Args:
            groups: for each origin (used in messages) the inputs of its samples by name; empty groups are ignored.

        Raises:
            ConfigError: naming the place and the input whose name, type or shape does not fit.
        """
        groups = [one for one in groups if any(len(each) for each in one[1].values())] or list(groups)
        place, first = groups[0]
        names = sorted(first, key=lambda name: (len(name) if name.isdecimal() else 0, name))
        for name in names:
            if name == "y" or not (name.isdecimal() or (name.isidentifier() and not keyword.iskeyword(name))):
                raise ConfigError(f"{place}: {name!r} cannot name an input; name inputs like parameters of `forward`")
        for other, given in groups:
            _check_names(other, given, names, place)
        found = [_input_of(name, [(one, given[name]) for one, given in groups]) for name in names]
        uneven = tuple(one.name for one, is_uneven in found if is_uneven)
        inputs = [one for one, _ in found]
        if any(name.endswith("mask") for name in names):
            uneven = ()
        if uneven:
            longest = max(one.shape for one in inputs if one.name in uneven)
            inputs.append(Input(ATTENTION_MASK, longest, "int64"))
        if len(inputs) == 1:
            raise ConfigError(f"{place}: {names[0]} is the only input; give its array in place of a dict or tuple")
        return cls(tuple(inputs), uneven)

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs in the data."""
        return tuple(one.name for one in self.inputs if not (self.uneven and one.name == ATTENTION_MASK))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]] | tuple[Any, ...]:
        """Shapes of one sample by name, or in order for a tuple."""
        by_name = {one.name: one.shape for one in self.inputs}
        return tuple(by_name.values()) if self._is_tuple else by_name

    @property
    def shapes_of_network(self) -> dict[str, tuple[int, ...]] | tuple[Any, ...]:
        """As `shapes`, without labels; of a single input its shape."""
        own = self.without_labels if self.hold_labels else self
        return own.shape if isinstance(own, Input) else own.shapes

    @property
    def without_labels(self) -> NamedInputs | Input:
        """The inputs as the data have them, without labels beside them; a single one is no longer among several."""
        own = tuple(one for one in self.inputs if one.name != LABELS)
        return own[0] if len(own) == 1 else NamedInputs(own, self.uneven)

    @property
    def _is_tuple(self) -> bool:
        return self.inputs[0].name.isdecimal()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the samples: int64 if all inputs are whole, else float32."""
        whole = all(one.kind in ("int64", "bool") for one in self.inputs)
        return np.dtype(np.int64 if whole else np.float32)

    @property
    def size(self) -> int:
        """Numbers of one sample, D."""
        return sum(math.prod(one.shape) for one in self.inputs)

    # ------------------------------------------------------------------ samples
    def pack(self, place: str, given: Mapping[str, Given], *, signed: bool = False) -> np.ndarray:
        """Samples [n, D] of these inputs.

        Args:
            place: origin of the samples, for messages.
            given: n samples of each input, by name; shorter sequences are padded with 0.
            signed: whether whole numbers may be negative, as labels may; ids may not.

        Raises:
            ConfigError: naming the place and the input that does not fit, or a number that the cast would change.
        """
        has_mask = ATTENTION_MASK in given
        _check_names(place, given, [one.name for one in self.inputs] if has_mask else self.names, "the others")
        lengths = {name: len(one) for name, one in given.items()}
        num = next(iter(lengths.values()))
        for name, length in lengths.items():
            if length != num:
                raise ConfigError(f"{place}: {name} has {length} samples, and {self.names[0]} has {num}; give as many")
        if self.uneven and not has_mask:
            given = {**given, ATTENTION_MASK: self._mask(place, given)}
        rows = [self._rows(place, one, given[one.name], signed) for one in self.inputs]
        return np.concatenate(rows, axis=1, dtype=self.dtype)

    def _mask(self, place: str, given: Mapping[str, Given]) -> Given:
        """The mask: 1 at each position of the padded sequences, whose lengths must agree."""
        first, *others = (np.array([len(one) for one in given[name]], dtype=np.int64) for name in self.uneven)
        for name, lengths in zip(self.uneven[1:], others, strict=True):
            if (wrong := np.flatnonzero(lengths != first)).size:
                raise ConfigError(
                    f"{place}: sample {wrong[0]} has {first[wrong[0]]} numbers in {self.uneven[0]} and "
                    f"{lengths[wrong[0]]} in {name}, and one {ATTENTION_MASK} cannot mark both; give each a mask"
                )
        return [np.ones(length, dtype=np.int64) for length in first]

    def _rows(self, place: str, one: Input, given: Given, signed: bool) -> np.ndarray:
        """Samples [n, size] of one input."""
        rows = np.zeros((len(given), *one.shape), dtype=np.float32 if one.kind == "uint8" else one.kind)
        if isinstance(given, np.ndarray) and len(given):
            _check_sample(place, one, given.shape[1:], _kind_of(given))
            rows[(slice(None), *map(slice, given.shape[1:]))] = given
        for row, array in zip(rows, given if isinstance(given, list) else (), strict=False):
            _check_sample(place, one, array.shape, _kind_of(array))
            row[tuple(map(slice, array.shape))] = array
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise ConfigError(f"{place}: {one.name} contains NaN or infinity; clean or drop these samples")
        if rows.size and rows.dtype.kind == "i" and rows.min() < 0 and not signed:
            raise ConfigError(f"{place}: {one.name} contains {rows.min()}; number ids from 0, or store floats")
        if rows.size and rows.dtype.kind == "i" and self.dtype.kind == "f" and np.abs(rows).max() > LARGEST:
            raise ConfigError(
                f"{place}: {one.name} contains {np.abs(rows).max()}, and beside inputs of floats whole numbers are "
                f"exact up to {LARGEST}; number its values anew from 0"
            )
        return (rows / np.float32(255) if one.kind == "uint8" else rows).reshape(len(rows), math.prod(one.shape))

    # ------------------------------------------------------------------ the network's side
    def arguments(self, x: Tensor) -> tuple[tuple[Tensor, ...], Leaves]:
        """Arguments by position and by name of a network for samples [B, D]."""
        sizes = [math.prod(one.shape) for one in self.inputs]
        given = {
            one.name: _typed(part.reshape(x.shape[0], *one.shape), one.kind)
            for one, part in zip(self.inputs, x.split(sizes, dim=1), strict=True)
        }
        return (tuple(given.values()), {}) if self._is_tuple else ((), given)

    def joined(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Samples [B, D] of the inputs by position or by name: the inverse of `arguments`."""
        parts = given or [named[one.name] for one in self.inputs]
        dtype = torch.int64 if self.dtype.kind == "i" else torch.float32
        return torch.cat([part.reshape(part.shape[0], -1).to(dtype) for part in parts], dim=1)

    def joined_rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Samples [n, D] of inputs that are in rows already, and of labels.

        Args:
            x: inputs [n, D'].
            y: labels [n, ...].

        Raises:
            ConfigError: if labels are too large beside floats.
        """
        dtype = torch.int64 if self.dtype.kind == "i" else torch.float32
        if dtype == torch.float32 and y.numel() and not y.is_floating_point() and int(y.abs().max()) > LARGEST:
            raise ConfigError(
                f"labels go up to {int(y.abs().max())}, and beside inputs of floats whole numbers are exact up to "
                f"{LARGEST}; number them anew from 0"
            )
        return torch.cat([x.to(dtype), y.reshape(len(y), math.prod(y.shape[1:])).to(dtype)], dim=1)

    def reader(self, function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        """A function of the inputs, such as the first part of a network's `split`, as a function of samples [B, D]."""

        def read(x: Tensor) -> Tensor:
            positional, named = self.arguments(x)
            return function(*positional, **named)

        return read

    def example(self) -> Tensor:
        """Two samples [2, D] that differ in their floats; ids, whose range is unknown here, are 0, and masks 1."""
        x, at = torch.linspace(0, 1, 2 * self.size).view(2, self.size), 0
        for one in self.inputs:
            size = math.prod(one.shape)
            if one.kind in ("int64", "bool"):
                x[:, at : at + size] = float(one.kind == "bool" or one.name.endswith("mask"))
            at += size
        return x.to(torch.int64 if self.dtype.kind == "i" else torch.float32)

    # ------------------------------------------------------------------ plain types
    def plain(self) -> dict[str, Any]:
        """The fields as tuples and strings."""
        return {"inputs": tuple(map(tuple, self.inputs)), "uneven": self.uneven, "hold_labels": self.hold_labels}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `plain`, also after a round trip through JSON."""
        return cls(
            tuple(Input(name, tuple(shape), kind) for name, shape, kind in plain["inputs"]),
            tuple(plain["uneven"]),
            plain.get("hold_labels", False),
        )


def read_by_name(network: nn.Module, inputs: NamedInputs) -> nn.Module:
    """The network with a hook that calls its `forward` with these inputs; parameters keep their names.

    Raises:
        ConfigError: if `forward` does not take them.
    """
    positional, named = inputs.arguments(torch.empty(0, inputs.size))
    signature = inspect.signature(network.forward)
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        raise ConfigError(
            f"the data have the inputs {inputs}, and {type(network).__name__}.forward{_shown(signature)} does not take "
            f"them ({error}); name its parameters like the inputs, or choose another --model.network"
        ) from error
    network.named_inputs = inputs  # type: ignore[assignment] # no module
    network.register_forward_pre_hook(_taken_apart, with_kwargs=True)
    return network


def _taken_apart(network: Any, given: tuple[Tensor], _: Any) -> tuple[tuple[Tensor, ...], Leaves]:
    return network.named_inputs.arguments(*given)  # type: ignore[no-any-return]


def _shown(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"


def _typed(part: Tensor, kind: str) -> Tensor:
    """An input in the type for the network; floats keep the type of the samples."""
    return part.bool() if kind == "bool" else part.long() if kind == "int64" else part


def _check_names(place: str, given: Mapping[str, Given], names: Sequence[str], like: str) -> None:
    if set(given) != set(names):
        raise ConfigError(
            f"{place}: the inputs are {', '.join(map(str, given))}, those of {like} {', '.join(names)}; give the same"
        )


def kind_of(leaf: Tensor) -> str:
    """The kind of an input of this type."""
    return "float32" if leaf.is_floating_point() else "bool" if leaf.dtype == torch.bool else "int64"


def _kind_of(array: np.ndarray) -> str:
    return "uint8" if array.dtype == np.uint8 else KINDS.get(array.dtype.kind, "")


def _input_of(name: str, groups: list[tuple[str, Given]]) -> tuple[Input, bool]:
    """The input with this name, and whether its samples differ in length."""
    found: dict[tuple[tuple[int, ...], str], str] = {}  # shapes and types with the first place of each
    for place, given in groups:
        for array in [given[:0]] if isinstance(given, np.ndarray) else given:
            shape = array.shape[1:] if isinstance(given, np.ndarray) else array.shape
            found.setdefault((shape, _kind_of(array)), place)
    (shape, kind), *others = found
    place = found[shape, kind]
    if not kind:
        raise ConfigError(f"{place}: {name} holds no numbers; give floats, integers or truth values")
    if kind == "uint8" and len(shape) < 2:
        raise ConfigError(f"{place}: {name} is uint8, which means pixels; store ids as int64, masks as bool")
    for other in others:
        if other[1] != kind or not (_is_padded(Input(name, shape, kind)) and len(other[0]) == 1):
            raise ConfigError(
                f"{found[other]}: {name} is {other[1] or 'no number'} of shape {list(other[0])}, that of {place} "
                f"{kind} of shape {list(shape)}; give one type and shape (only sequences of whole numbers are padded)"
            )
    return Input(name, max(one for one, _ in found), kind), bool(others)


def _is_padded(one: Input) -> bool:
    """Whether shorter samples of this input are padded: sequences of whole numbers or truth values."""
    return len(one.shape) == 1 and one.kind in ("int64", "bool")


def _check_sample(place: str, one: Input, shape: tuple[int, ...], kind: str) -> None:
    shorter = _is_padded(one) and len(shape) == 1 and shape[0] < one.shape[0]
    if kind != one.kind or not (shorter or shape == one.shape):
        raise ConfigError(
            f"{place}: {one.name} is {kind or 'no number'} of shape {list(shape)}, and should be {one.kind} of shape "
            f"{list(one.shape)}; give this type and shape{' or shorter lists' if _is_padded(one) else ''}"
        )
