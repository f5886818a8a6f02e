"""Errors that speak to the person at the keyboard: the value, the place and the fix."""

from __future__ import annotations

import errno
import math
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

__all__ = [
    "ClientError", "ConfigError", "NotFiniteError", "WriteError", "check_settings", "logged", "notice", "stamped",
]  # fmt: skip


class ConfigError(ValueError):
    """Wrong input, found before training starts; the message names the value, the place and the fix."""


class ClientError(RuntimeError):
    """One client's computation failed, or its state cannot be read.

    Attributes:
        client_id: index of the client.
        stage: the algorithm's function that failed (`client_init`, `client_step`, …).
        round_idx: round, from 0; None: in none.
        reason: what went wrong.
        inputs: the arguments of that function, attached by the `debug` client trainer only.
        client_name: what the data call the client; "" until the data module hears of the error.
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
    """What one client returns holds NaN or infinity."""


def stamped(text: str) -> str:
    """A line of a log: the time in UTC, then the text."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}"


def logged(text: str) -> None:
    """A line of a process that runs for hours beside others, as `notice`, with the time."""
    notice(stamped(text))


def notice(text: str) -> None:
    """A line for the person at the keyboard, beside the results: something looks wrong, and the run goes on."""
    sys.stderr.write(f"lit_fed: {text}\n")


class WriteError(RuntimeError):
    """The system refused to write a file; an older file of that name is left as it was.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        fixes = {errno.ENOSPC: "free space", errno.EDQUOT: "free space", errno.EFBIG: "lift the limit (ulimit -f)"}
        reason, fix = error.strerror or type(error).__name__, fixes.get(error.errno or 0, "see to its folder")
        super().__init__(f"{path} cannot be written: {reason}; {fix}")
        self.path = path


def check_settings(settings: object, checks: Mapping[str, tuple[bool, str]], prefix: str = "--model.algorithm") -> None:
    """Refuse settings outside their range.

    Args:
        settings: whose fields they are.
        checks: for each field whether it may stand, and what to give instead.
        prefix: what stands before the field's name on the command line.

    Raises:
        ConfigError: naming the first wrong field, its value and what to give instead.
    """
    for name, (holds, wanted) in checks.items():
        value = getattr(settings, name)
        infinite = isinstance(value, float) and not math.isfinite(value)  # 1e400 is a number to parsers
        if not holds or infinite:
            raise ConfigError(f"{prefix}.{name} is {value}; give {wanted}")
