"""Errors that speak to the person at the keyboard: the value, the place and the fix."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ClientError", "ConfigError", "WriteError", "check_settings"]


class ConfigError(ValueError):
    """Wrong input, found before training starts; the message names the value, the place and the fix."""


class ClientError(RuntimeError):
    """One client's computation failed.

    Attributes:
        client_id: index of the client.
        stage: the algorithm's function that failed (`client_init`, `client_step`, …).
        round_idx: round, from 0.
        inputs: the arguments of that function, attached by the `debug` client trainer only.
    """

    def __init__(self, client_id: int, stage: str, round_idx: int, reason: str, inputs: dict | None = None) -> None:
        super().__init__(f"client {client_id}, round {round_idx}, {stage}: {reason}")
        self.client_id, self.stage, self.round_idx, self.inputs = client_id, stage, round_idx, inputs


class WriteError(RuntimeError):
    """The system refused to take a file; what stood in its place stands still.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        fixes = {errno.ENOSPC: "free space", errno.EDQUOT: "free space", errno.EFBIG: "lift the limit (ulimit -f)"}
        reason, fix = error.strerror or type(error).__name__, fixes.get(error.errno or 0, "see to its folder")
        super().__init__(f"{path} cannot be written: {reason}; {fix}")
        self.path = path


def check_settings(settings: object, checks: Mapping[str, tuple[bool, str]], place: str = "--model.algorithm") -> None:
    """Refuse settings outside their range.

    Args:
        settings: whose fields they are.
        checks: for each field whether it may stand, and what to give instead.
        place: what stands before the field's name on the command line.

    Raises:
        ConfigError: naming the first wrong field, its value and what to give instead.
    """
    for name, (holds, wanted) in checks.items():
        if not holds:
            raise ConfigError(f"{place}.{name} is {getattr(settings, name)}; give {wanted}")
