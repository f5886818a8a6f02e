"""Files of `torch.save` whose checksums are verified before anything is read."""

from __future__ import annotations

import pickle
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["DamagedFileError", "load_checked"]

MOST_LETTERS = 200
"""Of the name of an entry in a message; PyTorch names them `archive/data/12`."""


class DamagedFileError(ValueError):
    """A damaged file; the message describes the damage, without naming the file."""


def load_checked(path: Path, *, values: bool = True) -> Any:
    """The content of a file of `torch.save`, on the CPU, if each entry has its CRC, which PyTorch does not verify.

    Only tensors and plain types are loaded, so nothing in the file is ever executed.

    Args:
        path: the file.
        values: read the values of tensors; otherwise they are on the device `meta`.

    Raises:
        DamagedFileError: if it is damaged, is no such file, or contains anything else.
        OSError: if it cannot be opened.
    """
    stat = path.stat()
    _verify(path.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns)
    try:
        return torch.load(path, map_location="cpu" if values else "meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DamagedFileError("it holds something else than tensors and plain types, which is never loaded") from error
    except Exception as error:  # damage outside the entries, or a forged file
        raise DamagedFileError(f"its content makes no sense to PyTorch, {type(error).__name__}") from error


@lru_cache(maxsize=8)  # a command reads the arguments in a checkpoint first, then its state
def _verify(path: Path, *_stamp: int) -> None:
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
        except zipfile.BadZipFile as error:
            raise DamagedFileError("its end is missing, or it never was a file of this kind") from error
        except Exception as error:  # a damaged directory can make the reader raise anything
            raise DamagedFileError("its directory cannot be read") from error
    if damaged is not None:
        raise DamagedFileError(f"its entry {damaged[:MOST_LETTERS]!r} does not have the content that was written")
