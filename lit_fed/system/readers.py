"""Typed readers of plain values from elsewhere: each checks name, type, range and size of a value.

A reader takes a value and its place, and returns the value as it is used, or raises `FormError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

__all__ = [
    "MOST", "MOST_FLOAT", "FormError", "Reader", "instance", "keyed", "list_of", "number", "number_of_text", "one_of",
    "optional", "plain", "record", "text", "tuple_of", "whole",
]  # fmt: skip

MOST = 2**62
"""Upper limit of lists and objects in files, which the size of the file bounds."""

MOST_FLOAT = 3.4028234663852886e38
"""Largest finite float32: no sample has a larger loss, and no update a larger entry."""


SHOWN = 60
"""Letters of the name of an entry that a place repeats."""


class FormError(ValueError):
    """A value of another form than expected; the message repeats nothing of its content."""


Reader = Callable[[Any, str], Any]


def whole(least: int = 0, most: int = 2**62) -> Reader:
    """Read a whole number in [least, most].

    Example:
        >>> whole(0, 3)(True, "the round")
        Traceback (most recent call last):
        ...
        lit_fed.system.readers.FormError: the round is not a whole number from 0 to 3
    """
    return _value(lambda one: type(one) is int and least <= one <= most, f"a whole number from {least} to {most}", int)


def number(least: float = -MOST_FLOAT, most: float = MOST_FLOAT) -> Reader:
    """Read a finite number in [least, most]."""

    def fits(one: Any) -> bool:
        return type(one) in (int, float) and math.isfinite(one) and least <= one <= most

    return _value(fits, f"a number from {least:g} to {most:g}", float)


def text(most: int, pattern: str = ".*") -> Reader:
    """Read a printable text of at most so many letters that matches a pattern."""

    def fits(one: Any) -> bool:
        is_text = isinstance(one, str) and len(one) <= most and one.isprintable()
        return is_text and re.fullmatch(pattern, one) is not None

    return _value(fits, f"a printable text of at most {most} letters like {pattern}", str)


def one_of(*values: Any) -> Reader:
    """Read one of these values, of the same type."""

    def fits(one: Any) -> bool:
        return any(type(one) is type(value) and one == value for value in values)

    return _value(fits, " or ".join(map(repr, values)), lambda one: one)


def instance(*kinds: type) -> Reader:
    """Read a value of one of these types, as it is."""

    def fits(one: Any) -> bool:
        return isinstance(one, kinds) and not (isinstance(one, bool) and int in kinds)

    return _value(fits, f"of type {' or '.join(kind.__name__ for kind in kinds)}", lambda one: one)


def number_of_text(least: int = 0, most: int = 2**62) -> Reader:
    """Read a whole number that is the key of a JSON object: its decimal digits without leading zeros."""
    digits, inner = text(19, "0|[1-9][0-9]*"), whole(least, most)
    return lambda value, place: inner(int(digits(value, place)), place)


def optional(inner: Reader) -> Reader:
    """Read None, or what another reader reads."""
    return lambda value, place: None if value is None else inner(value, place)


def list_of(inner: Reader, most: int, least: int = 0) -> Reader:
    """Read a list, or a tuple, of `least` to `most` entries."""

    def read(value: Any, place: str) -> list[Any]:
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            _refuse(place, f"a list of {least} to {most} entries")
        return [inner(one, f"{place}[{number}]") for number, one in enumerate(value)]

    return read


def tuple_of(*inner: Reader) -> Reader:
    """Read a list, or a tuple, with one entry for each of these readers."""

    def read(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            _refuse(place, f"a list of {len(inner)} entries")
        return tuple(reader(one, place) for reader, one in zip(inner, value, strict=True))

    return read


def keyed(key: Reader, inner: Reader, most: int) -> Reader:
    """Read an object whose names are data, of at most so many entries."""

    def read(value: Any, place: str) -> dict[Any, Any]:
        if not isinstance(value, dict) or len(value) > most:
            _refuse(place, f"an object of at most {most} entries")
        return {key(name, f"a name in {place}"): inner(one, place) for name, one in value.items()}

    return read


def plain(most: int = 2**20, deepest: int = 32) -> Reader:
    """Read lists and objects of texts, numbers, booleans and None: at most so many values, so many levels deep."""

    def read(value: Any, place: str) -> Any:
        waiting, count = [(value, place, 0)], 0
        while waiting:
            one, where, depth = waiting.pop()
            count += 1
            if count > most or depth > deepest:
                _refuse(place, f"of at most {most} values, nested at most {deepest} levels deep")
            if isinstance(one, dict):
                waiting += [(inner, _inside(where, name), depth + 1) for name, inner in one.items()]
            elif isinstance(one, list | tuple):
                waiting += [(inner, where, depth + 1) for inner in one]
            elif not isinstance(one, str | float | bool | None) and not (type(one) is int and abs(one) < 2**64):
                _refuse(where, "a text, a boolean or a number of at most 64 bits")
        return value

    return read


def record(fields: Mapping[str, Reader], *, may_miss: tuple[str, ...] = (), others: bool = False) -> Reader:
    """Read an object with exactly these names, of which some may be absent, also from the result.

    With `others` it may hold plain values of other names.
    """
    rest = plain()

    def read(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            _refuse(place, "an object")
        if missing := [name for name in fields if name not in value and name not in may_miss]:
            _refuse(f"{place}.{missing[0]}", "there")
        if not others and len(value) > sum(name in value for name in fields):
            _refuse(place, f"an object with no other names than {', '.join(fields)}")
        return {name: fields.get(name, rest)(one, _inside(place, name)) for name, one in value.items()}

    return read


def _inside(place: str, name: Any) -> str:
    """The place of an entry of an object."""
    if not isinstance(name, str):
        _refuse(place, "an object whose names are texts")
    return f"{place}.{name}" if name.isprintable() and len(name) <= SHOWN else place


def _value(fits: Callable[[Any], bool], wanted: str, made: Callable[[Any], Any]) -> Reader:
    """Read a value that fits, and make something of it."""

    def read(value: Any, place: str) -> Any:
        if not fits(value):
            _refuse(place, wanted)
        return made(value)

    return read


def _refuse(place: str, wanted: str) -> NoReturn:
    raise FormError(f"{place} is not {wanted}")
