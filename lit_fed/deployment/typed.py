"""Typed reading of what the other side sends: names, types, ranges and sizes are checked before a value is used.

A reader takes a value and its place, and returns the value in the form in which it is used, or raises `WireError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from lit_fed.deployment.wire import WireError

__all__ = [
    "MOST_FLOAT", "Reader", "keyed", "list_of", "number", "number_of_text", "one_of", "optional", "record", "text",
    "whole",
]  # fmt: skip

Reader = Callable[[Any, str], Any]

MOST_FLOAT = 3.4028234663852886e38
"""Largest finite float32: no sample has a larger loss, and no update a larger entry."""


def whole(least: int = 0, most: int = 2**62) -> Reader:
    """Read a whole number in [least, most]."""

    def read(value: Any, place: str) -> int:
        if type(value) is not int or not least <= value <= most:
            _refuse(place, f"a whole number from {least} to {most}")
        return int(value)

    return read


def number(least: float = -MOST_FLOAT, most: float = MOST_FLOAT) -> Reader:
    """Read a finite number in [least, most]."""

    def read(value: Any, place: str) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            _refuse(place, f"a number from {least:g} to {most:g}")
        return float(value)

    return read


def number_of_text(least: int = 0, most: int = 2**62) -> Reader:
    """Read a whole number that is the key of a JSON object: its decimal digits, written in one way only."""
    inner = whole(least, most)

    def read(value: Any, place: str) -> int:
        if not isinstance(value, str) or re.fullmatch("0|[1-9][0-9]{0,18}", value) is None:
            _refuse(place, "a whole number as text")
        return int(inner(int(value), place))

    return read


def text(most: int, pattern: str | None = None) -> Reader:
    """Read a text of at most so many letters, all of which can be printed."""

    def read(value: Any, place: str) -> str:
        fits = isinstance(value, str) and len(value) <= most and (not value or value.isprintable())
        if not fits or (pattern is not None and re.fullmatch(pattern, value) is None):
            _refuse(place, f"a printable text of at most {most} letters" + (f" like {pattern}" if pattern else ""))
        return str(value)

    return read


def one_of(*values: Any) -> Reader:
    """Read one of these values, of the same type."""

    def read(value: Any, place: str) -> Any:
        if not any(type(value) is type(one) and value == one for one in values):
            _refuse(place, " or ".join(map(repr, values)))
        return value

    return read


def optional(inner: Reader) -> Reader:
    """Read None, or what another reader reads."""
    return lambda value, place: None if value is None else inner(value, place)


def list_of(inner: Reader, most: int, least: int = 0) -> Reader:
    """Read a list of `least` to `most` entries."""

    def read(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            _refuse(place, f"a list of {least} to {most} entries")
        return [inner(one, place) for one in value]

    return read


def keyed(key: Reader, inner: Reader, most: int) -> Reader:
    """Read an object whose names are data, of at most so many entries."""

    def read(value: Any, place: str) -> dict[Any, Any]:
        if not isinstance(value, dict) or len(value) > most:
            _refuse(place, f"an object of at most {most} entries")
        return {key(name, f"a name in {place}"): inner(one, place) for name, one in value.items()}

    return read


def record(fields: Mapping[str, Reader], *, may_miss: tuple[str, ...] = ()) -> Reader:
    """Read an object with exactly these names.

    Args:
        fields: the reader of each.
        may_miss: names that may be absent; they are then absent from the result.
    """

    def read(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            _refuse(place, "an object")
        if missing := [name for name in fields if name not in value and name not in may_miss]:
            _refuse(f"{place}.{missing[0]}", "there")
        if len(value) > sum(name in value for name in fields):
            _refuse(place, f"an object with no other names than {', '.join(fields)}")
        return {name: fields[name](one, f"{place}.{name}") for name, one in value.items()}

    return read


def _refuse(place: str, wanted: str) -> NoReturn:
    raise WireError(f"{place} is not {wanted}")
