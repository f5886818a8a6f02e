"""Files of `torch.save` whose checksums are verified before anything is read."""

from __future__ import annotations

import pickle
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_fed.system.readers import FormError

__all__ = ["DamagedFileError", "is_dense", "load_checked", "tensor"]

MOST_LETTERS = 200
"""Of the name of an entry in a message; PyTorch names them `archive/data/12`."""

DTYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex128, torch.complex64,
}  # fmt: skip
"""Types of tensors with which PyTorch computes; it only stores others, such as float8 and uint16."""


class DamagedFileError(ValueError):
    """A damaged file; the message describes the damage, without naming the file."""


def load_checked(path: Path, *, values: bool = True) -> Any:
    """The content of a file of `torch.save`, on the CPU, if each entry has its CRC, which PyTorch does not verify.

    Only tensors and plain types are loaded, so nothing in the file is ever executed.

    Args:
        path: the file.
        values: read the values of tensors; otherwise each is read from the file when it is used.

    Raises:
        DamagedFileError: if it is damaged, is no such file, or contains anything else.
        OSError: if it cannot be opened.
    """
    stat = path.stat()
    _verify(path.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns)
    try:
        return torch.load(path, map_location="cpu", mmap=not values, weights_only=True)
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


def is_dense(value: Any) -> bool:
    """Whether a value is a tensor whose values are all in memory, each in its own place, in one of `DTYPES`.

    A few bytes describe a tensor of 2⁴⁰ values that share one place, or of the device `meta`, which has no values.
    """
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
        return False
    return value.dtype in DTYPES and value.untyped_storage().nbytes() >= value.numel() * value.itemsize


def tensor(value: Any, place: str) -> Tensor:
    """Read a dense tensor."""
    if not is_dense(value):
        raise FormError(f"{place} is not a dense tensor of a usual type")
    return value  # type: ignore[no-any-return]
