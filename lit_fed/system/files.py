"""Files that stand whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lit_fed.errors import WriteError

__all__ = ["whole_file", "write_atomically"]

OWNER_ONLY = 0o600
"""Mode of files that hold what one client keeps for itself."""


@contextmanager
def whole_file(path: Path, *, private: bool = False, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write into beside `path`, which is moved there at the end, or deleted after an error.

    Args:
        path: where the file belongs; whatever stood there stands until the new one is whole.
        private: none but the owner may read or write it; else the umask decides.
        keep: where whatever stood there is kept, in the same folder; None: it is gone.

    Raises:
        WriteError: naming the file, where the system refuses to take it: a full disk, a limit on the size of files.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed: its mode may be another
        if private:
            partial.touch(mode=OWNER_ONLY)
        with partial.open("w+b") as file:
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


def _set_aside(path: Path, keep: Path) -> None:
    """Let a file be found under another name, too; where there are no links, for a moment under that one alone."""
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
    beside.unlink(missing_ok=True)  # it is left where both names are of one file already


def _from_system(error: BaseException) -> OSError | None:
    """The system's error behind another one: PyTorch's writer turns it into a RuntimeError of its own."""
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
