"""Files of tensors that notice damage: PyTorch's own archives, with a seal in the place of the archive's comment.

PyTorch writes a CRC-32 of every entry and never compares it. Here every entry is compared before anything is read from
the file; the seal is a digest of all that no CRC covers: the names of the entries, their places, sizes and CRCs.
`torch.load` reads a sealed file like any other.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

__all__ = ["DamagedFileError", "load_sealed", "save_sealed"]

CHUNK = 2**18
"""Bytes of a file that are compared at a time."""

MOST_LETTERS = 200
"""Of the name of an entry, which PyTorch makes: `archive/data/12`."""

SEAL = b"lit_fed seal 1 "
"""What the comment of a sealed archive begins with; the digest follows in hexadecimal digits."""

DIGEST_BYTES = 16

COMMENT_LENGTH = len(SEAL) + 2 * DIGEST_BYTES

END, END_MARK = struct.Struct("<4s16sH"), b"PK\x05\x06"
"""The end of an archive without a comment: its mark, numbers that are in the directory, too, length of the comment."""

LOCAL, ENTRY_MARK = struct.Struct("<4s22sHH"), b"PK\x03\x04"
"""What stands before an entry: mark, numbers, length of the name, length of what follows the name."""


class DamagedFileError(ValueError):
    """A file is not what was written; the message says what is wrong with it, without naming it."""


class _Entry(NamedTuple):
    name: str
    start: int  # of its content, in bytes from the beginning of the file
    end: int
    crc: int


def save_sealed(content: Any, file: IO[bytes]) -> None:
    """Write what `load_sealed` reads.

    Args:
        content: tensors and plain types, nested.
        file: new, to be read, too.
    """
    torch.save(content, file)
    file.seek(-2, os.SEEK_END)  # the length of the comment
    file.write(struct.pack("<H", COMMENT_LENGTH) + bytes(COMMENT_LENGTH))
    seal = _seal(file, _entries(file, COMMENT_LENGTH))
    file.seek(-COMMENT_LENGTH, os.SEEK_END)
    file.write(seal)


def load_sealed(path: Path, *, values: bool = True) -> Any:
    """The content of a file, on the CPU; tensors and plain types only, so that nothing in it is ever executed.

    A file without a seal, such as one of an earlier version or one that was written again by `torch.save`, is taken if
    all of its entries have their CRC.

    Args:
        path: the file.
        values: read the values of tensors; else these are on the device `meta`.

    Raises:
        DamagedFileError: if it is not what was written, is no such file, or holds anything else.
        OSError: if it cannot be opened.
    """
    stat = path.stat()
    _verify(path.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns)
    try:
        return torch.load(path, map_location="cpu" if values else "meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DamagedFileError("it holds something else than tensors and plain types, which is never loaded") from error
    except Exception as error:  # a file that was made up: what damage leaves has been refused by now
        raise DamagedFileError(f"its content makes no sense to PyTorch, {type(error).__name__}") from error


@lru_cache(maxsize=8)  # a command reads the arguments in a checkpoint first, then its state
def _verify(path: Path, *_stamp: int) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        comment = _read(file, size - COMMENT_LENGTH, COMMENT_LENGTH) if size > COMMENT_LENGTH else b""
        is_sealed = comment.startswith(SEAL)
        entries = _entries(file, COMMENT_LENGTH if is_sealed else 0)
        if is_sealed and comment != _seal(file, entries):
            raise DamagedFileError("its directory is not the one that was written")
        buffer = memoryview(bytearray(CHUNK))
        for entry in entries:
            if _crc(file, entry, buffer) != entry.crc:
                raise DamagedFileError(f"its entry {entry.name} does not have the content that was written")


def _crc(file: IO[bytes], entry: _Entry, buffer: memoryview) -> int:
    """The CRC-32 of an entry's content, read piece by piece into a buffer."""
    crc, left, raw = 0, entry.end - entry.start, file.fileno()
    os.lseek(raw, entry.start, os.SEEK_SET)
    while left > 0:
        num_read = os.readv(raw, [buffer[:left]])
        if num_read == 0:
            return -1
        crc, left = zlib.crc32(buffer[:num_read], crc), left - num_read
    return crc


def _read(file: IO[bytes], place: int, length: int) -> bytes:
    file.seek(place)
    return file.read(length)


def _entries(file: IO[bytes], comment: int) -> list[_Entry]:
    """The entries in the order of the file, each behind the one before.

    Args:
        file: the file.
        comment: bytes of the comment that it ends with.

    Raises:
        DamagedFileError: if the file is no archive of whole, uncompressed entries with different names.
    """
    size = file.seek(0, os.SEEK_END)
    end = _read(file, max(0, size - END.size - comment), END.size)
    if len(end) < END.size or END.unpack(end)[::2] != (END_MARK, comment):
        raise DamagedFileError("its end is missing, or it never was a file of this kind")
    try:
        with zipfile.ZipFile(file) as archive:
            listed, directory = sorted(archive.infolist(), key=lambda one: one.header_offset), archive.start_dir
            found = [_entry(file, one) for one in listed]
    except DamagedFileError:
        raise
    except Exception as error:  # whatever a damaged directory makes the reader raise
        raise DamagedFileError("its directory cannot be read") from error
    ends = [0, *(one.end for one in found)]
    starts = [*(one.header_offset for one in listed), directory]
    if not found or starts[0] != 0 or any(after < before for before, after in zip(ends, starts, strict=True)):
        raise DamagedFileError("its entries lie over each other")
    if len({one.name for one in found}) < len(found):
        raise DamagedFileError("two of its entries have one name")
    return found


def _entry(file: IO[bytes], listed: zipfile.ZipInfo) -> _Entry:
    """An entry of the directory, where its content lies."""
    name, place = listed.filename, listed.header_offset
    mark, _, name_length, extra_length = LOCAL.unpack(_read(file, place, LOCAL.size))
    start = place + LOCAL.size + name_length + extra_length
    own_name = file.read(min(name_length, MOST_LETTERS))
    stored = listed.compress_type == zipfile.ZIP_STORED and listed.file_size == listed.compress_size
    if mark != ENTRY_MARK or own_name != name.encode() or not stored:
        raise DamagedFileError(f"its entry {name[:MOST_LETTERS]!r} is not the one that its directory names")
    return _Entry(name, start, start + listed.file_size, listed.CRC)


def _seal(file: IO[bytes], entries: list[_Entry]) -> bytes:
    """The seal of an archive that ends with room for it: of all bytes but those of contents and of the seal itself."""
    digest, place = hashlib.blake2b(digest_size=DIGEST_BYTES), 0
    size = file.seek(0, os.SEEK_END) - COMMENT_LENGTH
    for start, end in [*((one.start, one.end) for one in entries), (size, size)]:
        digest.update(_read(file, place, start - place))
        place = end
    return SEAL + digest.hexdigest().encode()
