"""Errors for users: they name the value, the place and the fix."""

from __future__ import annotations

import errno
import inspect
import math
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = [
    "Check", "ClientError", "ConfigError", "DivergedError", "LostNodesError", "NotFiniteError", "WriteError",
    "check_settings", "logged", "notice", "refuse_ignored_defaults", "stamped",
]  # fmt: skip


class ConfigError(ValueError):
    """Wrong input, found before training starts; the message names the value, the place and the fix."""


class LostNodesError(RuntimeError):
    """Machines of clients that a run needs gave no usable answer."""


class ClientError(RuntimeError):
    """One client's computation failed, or its state cannot be read.

    Attributes:
        client_id: index of the client.
        stage: the algorithm's function that failed (`client_init`, `client_step`, …).
        round_idx: round, from 0; None: in none.
        reason: what went wrong.
        inputs: the arguments of that function, attached by the `debug` client trainer only.
        client_name: name of the client in the data; "" until the data module adds it.
    """

    def __init__(
        self, client_id: int, stage: str, round_idx: int | None, reason: str, inputs: dict | None = None
    ) -> None:
        super().__init__(client_id, stage, round_idx, reason)
        self.client_id, self.stage, self.round_idx, self.inputs = client_id, stage, round_idx, inputs
        self.reason, self.client_name = reason, ""

    def __str__(self) -> str:
        name = f"{self.client_name!r} ({self.client_id})" if self.client_name else self.client_id
        when = "" if self.round_idx is None else f"round {self.round_idx}, "
        return f"client {name}, {when}{self.stage}: {self.reason}"


class NotFiniteError(ClientError):
    """The result of a client contains NaN or infinity."""


class DivergedError(RuntimeError):
    """A training whose loss is not finite at the end.

    Attributes:
        round_idx: the last round, from 0.
    """

    def __init__(self, reason: str, num_rounds: int) -> None:
        super().__init__(reason)
        self.round_idx = num_rounds - 1


def stamped(text: str) -> str:
    """A line of a log: the time in UTC, then the text."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}"


def logged(text: str) -> None:
    """A line as of `notice`, with the time, for long-running processes."""
    notice(stamped(text))


def notice(text: str) -> None:
    """Print a warning to stderr; the run continues."""
    sys.stderr.write(f"lit_fed: {text}\n")


class WriteError(RuntimeError):
    """The system refused to write a file; an older file of that name is unchanged.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        fixes = {errno.ENOSPC: "free space", errno.EDQUOT: "free space", errno.EFBIG: "lift the limit (ulimit -f)"}
        reason, fix = error.strerror or type(error).__name__, fixes.get(error.errno or 0, "see to its folder")
        super().__init__(f"{path} cannot be written: {reason}; {fix}")
        self.path = path


Check = str | tuple[bool, str]


def check_settings(
    settings: Any, checks: Mapping[str, Check] | None = None, prefix: str = "--model.algorithm", **more: Check
) -> None:
    """Refuse settings outside their range, and values that the `Literal` of their field does not list.

    A field may name its range itself, as `range` of its metadata, for all subclasses.

    Args:
        settings: object with the fields. If the type of a field allows None, None is in every range.
        checks: for each field its range, `> 0`, `>= 0` or an interval such as `[0, 1)`; or whether it is valid, and the
            fix.
        prefix: prefix of the field's name on the command line.
        **more: checks by the names of fields.

    Raises:
        ConfigError: naming the first wrong field, its value and the fix.
    """
    types = _field_types(settings.__class__)
    words = [name for name, kinds in types.items() if all(get_origin(kind) is Literal for kind in kinds - {NoneType})]
    own = fields(settings) if is_dataclass(settings) else ()
    ranges = {one.name: one.metadata["range"] for one in own if one.metadata.get("range")}
    for name, check in {**dict.fromkeys(words, ""), **ranges, **(checks or {}), **more}.items():
        value = getattr(settings, name)
        holds, wanted = _ranged(value, check, types[name]) if isinstance(check, str) else check
        infinite = isinstance(value, float) and not math.isfinite(value)  # 1e400 is a number to parsers
        if not holds or infinite:
            raise ConfigError(f"{prefix}.{name} is {value}; give {wanted}")


def refuse_ignored_defaults(cls: type, option: str) -> None:
    """Refuse a class that sets another default of an inherited field in a way that dataclasses ignore.

    Args:
        cls: a dataclass.
        option: the option that names it.

    Raises:
        ConfigError: naming class and field, and what to write.
    """
    for one in fields(cls) if is_dataclass(cls) else ():
        found = inspect.getattr_static(cls, one.name, one.default)
        ignored = one.default is not MISSING and not isinstance(found, property) and found != one.default
        if ignored:
            kind = getattr(one.type, "__name__", one.type)
            raise ConfigError(
                f"{option} {cls.__name__} sets {one.name} to {found}, which is ignored: write `{one.name}: {kind} = "
                f"{found!r}`, and @dataclass(frozen=True) above the class"
            )


@cache
def _field_types(cls: type) -> dict[str, frozenset[Any]]:
    """The types that each field of a dataclass may have."""
    hints = get_type_hints(cls) if is_dataclass(cls) else {}
    types = {field.name: hints[field.name] for field in (fields(cls) if hints else ())}
    several = {name: get_origin(one) in (Union, UnionType) for name, one in types.items()}
    return {name: frozenset(get_args(one) if several[name] else (one,)) for name, one in types.items()}


def _ranged(value: Any, check: str, kinds: frozenset[Any]) -> tuple[bool, str]:
    """Whether a value of a field with these types is in a range ("": in its `Literal`), and the fix."""
    if check:
        words = f"from {check[1:-1].replace(',', ' to')}" if int in kinds else f"in {check}"
        wanted = f"a {'whole ' * (int in kinds)}number {check if check[0] == '>' else words}"
    else:
        known = [word for kind in kinds for word in get_args(kind)]
        wanted = f"{', '.join(known[:-1])} or {known[-1]}"
    if NoneType in kinds:
        wanted += ", or null"
        if value is None:
            return True, wanted
    return (_is_within(value, check) if check else value in known), wanted


def _is_within(value: float, wanted: str) -> bool:
    if wanted[0] == ">":
        sign, least = wanted.split()
        return value > float(least) or (sign == ">=" and value == float(least))
    low, high = (float(end) for end in wanted[1:-1].split(","))
    return low < value < high or (wanted[0] == "[" and value == low) or (wanted[-1] == "]" and value == high)
