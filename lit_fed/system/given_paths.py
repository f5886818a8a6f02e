"""Paths that people give: those that no system can open are refused where they are given."""

from __future__ import annotations

import os
from pathlib import Path

from lit_fed.errors import ConfigError

__all__ = ["given_path", "reason", "require_file", "shown"]

SHOWN = 200
"""Characters of a path too long that an error repeats."""

INSIDE = 200
"""Characters left for the names of files inside."""


def shown(path: str | Path) -> str:
    """A path as a message repeats it: the beginning of one that is longer than any file system allows."""
    text = str(path)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} letters)"


def reason(error: Exception) -> str:
    """Why the system refused a path, in its own words."""
    return getattr(error, "strerror", None) or str(error)


def given_path(path: str, option: str) -> Path:
    """A path of the command line, with `~` written out; there may be nothing yet.

    Args:
        path: as it was given.
        option: where, for the message.

    Raises:
        ConfigError: if it is too long, or names a home that there is not.
    """
    try:
        expanded = Path(path).expanduser()
        os.stat(expanded / ("x" * INSIDE))
    except FileNotFoundError:
        return expanded
    except NotADirectoryError:  # a file, or something below one
        return expanded
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{option} {shown(path)!r}: {reason(error)}; give another path") from error
    return expanded


def require_file(path: Path, fix: str) -> None:
    """Refuse what cannot be read as a file: opening a pipe would wait for ever.

    Args:
        path: what was found in a folder.
        fix: what to do about it.

    Raises:
        ConfigError: saying what it is, or why it cannot be read.
    """
    if not path.exists() and not path.is_symlink():
        raise ConfigError(f"{path}: there is no such file; {fix}")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no file, but a pipe or a device" if path.exists() else "a broken link"
        raise ConfigError(f"{path} is {kind}; {fix}")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); {fix}") from error
