"""Files that stand whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lit_fed.core.errors import WriteError

__all__ = ["whole_file", "write_atomically"]

OWNER_ONLY = 0o600
"""Mode of files that hold what one client keeps for itself."""


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """A file to write into beside `path`, which is moved there at the end, or deleted after an error.

    Args:
        path: where the file belongs; whatever stood there stands until the new one is whole.
        private: none but the owner may read or write it; else the umask decides.

    Raises:
        WriteError: naming the file, where the system refuses to take it: a full disk, a limit on the size of files.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed: its mode may be another
        if private:
            partial.touch(mode=OWNER_ONLY)
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        refused = _from_system(error)
        if refused is None:
            raise
        raise WriteError(path, refused) from error
    finally:
        partial.unlink(missing_ok=True)


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
