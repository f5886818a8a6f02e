"""Files that are written whole or not at all, and paths given by users."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lit_fed.errors import ConfigError, WriteError

__all__ = [
    "given_path",
    "is_below",
    "os_error_text",
    "owner_only",
    "quote",
    "require_file",
    "whole_file",
    "write_atomically",
]

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def owner_only(private: bool) -> Iterator[None]:
    """Context in which all new files and folders are for their owner only, if `private`; else the umask decides.

    This holds for files of other libraries and for the processes that they start, such as those of W&B.
    """
    before = os.umask(OTHERS)
    try:
        os.umask(before | OTHERS if private else before)
        yield
    finally:
        os.umask(before)


@contextmanager
def whole_file(path: Path, *, private: bool = False, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """Context of writing a temporary file that replaces `path` at the end, or is deleted after an error.

    Args:
        path: the file; an existing one stays until the new one is whole.
        private: only the owner may read and write it, in every run; else `owner_only` decides.
        keep: new path of an existing file, in the same folder; None: it is overwritten.

    Raises:
        WriteError: naming the file, if the system refuses: a full disk, a limit of file sizes.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # left by a killed process
        with _opened_anew(partial, 0o666 & ~OTHERS if private else 0o666) as file:
            yield file
        if keep is not None:
            _set_aside(path, keep)
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        refused = _from_system(error)
        if refused is None:
            raise
        raise WriteError(path, refused) from error
    finally:
        partial.unlink(missing_ok=True)


def _opened_anew(path: Path, mode: int) -> IO[bytes]:
    """Open a file that does not exist, not even as a link that somebody else has put there."""
    follow = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
    return open(path, "x+b", opener=lambda name, flags: os.open(name, flags | os.O_EXCL | follow, mode))


def _set_aside(path: Path, keep: Path) -> None:
    """Link a file under another name; without hard links, rename it."""
    if not path.is_file():
        return
    beside = keep.with_name(f".{keep.name}.partial")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:
        path.replace(keep)
        return
    beside.replace(keep)
    beside.unlink(missing_ok=True)  # it remains if both names already link to the same file


def _from_system(error: BaseException) -> OSError | None:
    """The OSError behind an error: PyTorch's writer raises a RuntimeError."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__context__
    return found


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or nothing.

    Raises:
        WriteError: see `whole_file`.
    """
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


# ---------------------------------------------------------------------- paths given by users
SHOWN = 200
"""Characters of a long path in an error."""

INSIDE = 200
"""Characters reserved for names of files inside a folder."""


def quote(path: str | Path) -> str:
    """A path for a message, shortened if it is longer than any file system allows."""
    text = str(path)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} letters)"


def os_error_text(error: Exception) -> str:
    """Reason of an error, in the words of the operating system."""
    return getattr(error, "strerror", None) or str(error)


def given_path(path: str, option: str) -> Path:
    """Expand `~` in a path of the command line; it need not exist.

    Args:
        path: the given path.
        option: its option, for the message.

    Raises:
        ConfigError: if it is too long, or its home folder does not exist.
    """
    try:
        expanded = Path(path).expanduser()
        os.stat(expanded / ("x" * INSIDE))
    except FileNotFoundError:
        return expanded
    except NotADirectoryError:  # a file, or something below one
        return expanded
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{option} {quote(path)!r}: {os_error_text(error)}; give another path") from error
    return expanded


def is_below(path: str | Path, folder: str | Path) -> bool:
    """Whether a path leads to a folder or into it, links apart."""
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))


def require_file(path: Path, fix: str) -> None:
    """Refuse a path that is no readable file; opening a pipe would block.

    Args:
        path: the path.
        fix: what to do, for the message.

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
