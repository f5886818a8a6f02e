"""Data frames of pandas in pickles that others may have written: read without calling anything that a pickle names.

A pickle is a program. Here its instructions build plain values, and what it would call is recorded by name, if that is
one of the eleven names in pickles of a frame; the frame is then made of checked arrays.
"""

from __future__ import annotations

import lzma
import math
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from lit_fed.system.machine import memory_limited
from lit_fed.system.packages import pd
from lit_fed.system.readers import FormError

__all__ = ["read_pickled_frame"]

FRAME, MANAGER = "pandas.core.frame.DataFrame", "pandas.core.internals.managers.BlockManager"
BLOCK, SLICE = "pandas._libs.internals._unpickle_block", "builtins.slice"
NEW_INDEX, RANGE = "pandas.core.indexes.base._new_Index", "pandas.core.indexes.range.RangeIndex"
NAMES = "pandas.core.indexes.base.Index"
FROM_BUFFER, DTYPE = "numpy.core.numeric._frombuffer", "numpy.dtype"
RECONSTRUCT, ARRAY = "numpy.core.multiarray._reconstruct", "numpy.ndarray"

ALLOWED = {
    FRAME, MANAGER, BLOCK, SLICE, NEW_INDEX, RANGE, NAMES, FROM_BUFFER, DTYPE, RECONSTRUCT, ARRAY,
}  # fmt: skip
"""Everything that a pickle may name; nothing of it is imported because of that."""

KINDS = {"i8": "<i8", "f8": "<f8", "b1": "?", "O8": "O"}
"""Types of columns: the pickle's word, and NumPy's."""

CELLS = (str, float, int, bool, type(None))
"""Types of cells in a column of objects."""

MOST_UNPACKED = 2**27
"""Upper limit of an unpacked pickle; the largest table of R's packages has 98 MB."""

MOST_WINDOW = 2**27
"""Upper limit of the memory of the xz decoder."""


def read_pickled_frame(packed: bytes) -> pd.DataFrame:
    """The frame in an xz stream of one pickle, with numbers, truth values and texts in its columns.

    Equal to that of `pandas.read_pickle`, whatever version of pandas wrote it with these names.

    Raises:
        FormError: naming what is not allowed, or not as pandas writes it.
    """
    try:
        with memory_limited():
            return _frame(_value(_unpacked(packed)))
    except FormError:
        raise
    except MemoryError as error:
        raise FormError("it does not fit into the free memory") from error
    except (lzma.LZMAError, EOFError) as error:
        raise FormError(f"it is no xz stream ({error})") from error
    except Exception as error:  # instructions in an impossible order, or values of other types than expected
        raise FormError(f"it is no pickle of a data frame ({type(error).__name__})") from error


def _unpacked(packed: bytes) -> bytes:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_WINDOW)
    content = decoder.decompress(packed, MOST_UNPACKED + 1)
    _require(len(content) <= MOST_UNPACKED, f"it unpacks to more than {MOST_UNPACKED:,} bytes")
    _require(decoder.eof and not decoder.unused_data, "its xz stream is cut short, or more follows it")
    return content


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise FormError(message)


# ---------------------------------------------------------------------- instructions
class _Name(str):
    """One of the allowed names, where a pickle wants what has that name."""


class _Call:
    """A call in a pickle, which is not made."""

    def __init__(self, name: Any, given: Any) -> None:
        _require(type(name) is _Name, "it calls something else than a name")
        self.name, self.given, self.state = name, given, None


class _Stack:
    """The values that a pickle's instructions have built."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []

    def push(self, value: Any) -> None:
        self.values.append(value)

    def pop(self, number: int) -> list[Any]:
        """The last values."""
        start = len(self.values) - number
        _require(start >= (self.marks[-1] if self.marks else 0), "an instruction lacks its values")
        return self.cut(start)

    def cut(self, start: int) -> list[Any]:
        """The values from a place on."""
        found = self.values[start:]
        del self.values[start:]
        return found

    def name(self, module: str, name: str) -> None:
        path = ".".join((module, name))
        _require(path in ALLOWED, f"it names {path[:100]!r}, which no table needs")
        self.push(_Name(path))

    def extend(self, given: list[Any]) -> None:
        _require(type(self.values[-1]) is list, "it appends to something else than a list")
        self.values[-1].extend(given)

    def set_items(self, given: list[Any]) -> None:
        target = self.values[-1]
        for key, value in zip(given[::2], given[1::2], strict=True):
            _require(type(target) is dict and type(key) is str, "an entry's key is no text")
            target[key] = value

    def build(self) -> None:
        (state,) = self.pop(1)
        _require(type(self.values[-1]) is _Call, "it sets the state of something else than a call")
        self.values[-1].state = state


PUSHED = ("SHORT_BINUNICODE", "BINUNICODE", "BINFLOAT", "BININT", "BININT1", "BININT2", "BYTEARRAY8", "SHORT_BINBYTES")
"""Instructions that push their argument."""

INSTRUCTIONS: dict[str, Callable[[_Stack, Any], Any]] = {
    **dict.fromkeys(PUSHED, _Stack.push),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda stack, place: stack.push(stack.memo[place])),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda stack, _: None),
    "MEMOIZE": lambda stack, _: stack.memo.append(stack.values[-1]),
    "NONE": lambda stack, _: stack.push(None),
    "NEWTRUE": lambda stack, _: stack.push(True),
    "NEWFALSE": lambda stack, _: stack.push(False),
    "EMPTY_TUPLE": lambda stack, _: stack.push(()),
    "EMPTY_LIST": lambda stack, _: stack.push([]),
    "EMPTY_DICT": lambda stack, _: stack.push({}),
    "MARK": lambda stack, _: stack.marks.append(len(stack.values)),
    "TUPLE": lambda stack, _: stack.push(tuple(stack.cut(stack.marks.pop()))),
    "TUPLE1": lambda stack, _: stack.push(tuple(stack.pop(1))),
    "TUPLE2": lambda stack, _: stack.push(tuple(stack.pop(2))),
    "TUPLE3": lambda stack, _: stack.push(tuple(stack.pop(3))),
    "APPEND": lambda stack, _: stack.extend(stack.pop(1)),
    "APPENDS": lambda stack, _: stack.extend(stack.cut(stack.marks.pop())),
    "SETITEM": lambda stack, _: stack.set_items(stack.pop(2)),
    "SETITEMS": lambda stack, _: stack.set_items(stack.cut(stack.marks.pop())),
    "GLOBAL": lambda stack, path: stack.name(*path.split(" ", 1)),
    "STACK_GLOBAL": lambda stack, _: stack.name(*stack.pop(2)),
    "REDUCE": lambda stack, _: stack.push(_Call(*stack.pop(2))),
    "NEWOBJ": lambda stack, _: stack.push(_Call(*stack.pop(2))),
    "BUILD": lambda stack, _: stack.build(),
}


def _value(content: bytes) -> Any:
    """The value that a pickle's instructions build, with a `_Call` for each call."""
    stack = _Stack()
    for instruction, given, _ in pickletools.genops(content):
        follow = INSTRUCTIONS.get(instruction.name)
        if follow is None:
            raise FormError(f"it has the instruction {instruction.name}, which no table needs")
        follow(stack, given)
    (value,) = stack.values
    return value


# ---------------------------------------------------------------------- frames
def _given(value: Any, name: str) -> Any:
    """What a call of this name is given."""
    _require(type(value) is _Call and value.name == name, f"it lacks a {name} where pandas writes one")
    return value.given


def _frame(value: Any) -> pd.DataFrame:
    """A frame from the blocks of its columns."""
    _given(value, FRAME)
    blocks, (columns, rows) = _given(value.state["_mgr"], MANAGER)
    name, labels = _given(columns, NEW_INDEX)
    names = _array(labels["data"])
    _require(name == NAMES and names.ndim == 1 and all(type(one) is str for one in names), "its columns have no names")
    name, span = _given(rows, NEW_INDEX)
    number = span["stop"]
    _require(name == RANGE and (span["start"], span["step"]) == (0, 1), "its rows are not numbered from 0")
    found: dict[int, np.ndarray] = {}
    for block in blocks:
        values, place, dimensions = _given(block, BLOCK)
        array, places = _array(values), _places(place)
        _require(dimensions == 2 and array.shape == (len(places), number), "a block of columns has another shape")
        _require(not found.keys() & set(places), "two blocks hold one column")
        found |= dict(zip(places, array, strict=True))
    _require(found.keys() == set(range(len(names))), "its blocks hold other columns than it names")
    series = [pd.Series(found[place], dtype=found[place].dtype) for place in range(len(names))]
    frame = pd.concat(series, axis=1) if series else pd.DataFrame(index=range(number))
    return frame.set_axis(pd.Index(names, dtype=object), axis=1)


def _places(value: Any) -> list[int]:
    """Numbers of the columns of a block."""
    if type(value) is _Call and value.name == SLICE:
        span = range(*_given(value, SLICE))
        _require(len(span) < MOST_UNPACKED, "a block has too many columns")
        return [*span]
    places = _array(value)
    _require(places.ndim == 1 and places.dtype.kind == "i", "a block does not say which columns it holds")
    return [*map(int, places)]


def _array(value: Any) -> np.ndarray:
    """An array of at most two axes, whose values are all there."""
    if type(value) is _Call and value.name == FROM_BUFFER:
        content, kind, shape, order = value.given
        _require(type(content) is bytearray, "an array has no bytes")
        values = np.frombuffer(content, _kind(kind))
    else:
        _given(value, RECONSTRUCT)
        _, shape, kind, by_columns, cells = value.state
        _require(type(cells) is list and all(type(one) in CELLS for one in cells), "a cell is no number or text")
        _require(_kind(kind) == "O", "an array of objects has another type")
        values, order = np.array(cells, dtype=object), "F" if by_columns else "C"
    _require(type(shape) is tuple and len(shape) <= 2 and all(type(one) is int for one in shape), "a shape is none")
    _require(min(shape) >= 0 and math.prod(shape) == len(values), "an array has another number of values than it says")
    return values.reshape(shape, order=order)


def _kind(value: Any) -> str:
    """NumPy's name of a type."""
    word, *_ = _given(value, DTYPE)
    _require(value.state[1] in "<|" and word in KINDS, "a type of values is none of those in tables")
    return KINDS[word]
