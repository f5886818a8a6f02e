"""Which client files the checkpoints of a run need, as the files on the disk stand now."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from lit_fed.system.files import write_atomically
from lit_fed.system.sealed_files import DamagedFileError, load_sealed

__all__ = ["INDEX_KEY", "LAST", "PREVIOUS", "CheckpointIndex"]

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
"""A run's newest checkpoint, and the one before it, which is kept beside it."""

INDEX_KEY = "store.versions"
"""Where a checkpoint's `state_dict` keeps the version of each client's state, [T] int64."""

Stamp = tuple[int, int, int]


class CheckpointIndex:
    """The indices of all checkpoints that refer to one folder of client files.

    Those in the folder `checkpoints` beside it are found there, whoever put them there; paths elsewhere are listed in
    `checkpoints.txt` before such a checkpoint is written, so that a later process knows of them too. A checkpoint that
    no longer exists counts no longer.

    Args:
        clients: the folder of client files.
    """

    def __init__(self, clients: Path) -> None:
        self._folder = clients.parent / "checkpoints"
        self._list = clients / "checkpoints.txt"
        self._known: dict[Stamp, np.ndarray] = {}
        self._warned = False

    def announce(self, path: Path) -> None:
        """A checkpoint is about to be written."""
        path = path.absolute()
        listed = self._listed()
        if path.parent != self._folder and path not in listed:
            lines = [str(one) for one in listed if one.exists()] + [str(path)]
            write_atomically(self._list, "\n".join(lines) + "\n")

    def written(self, path: Path, index: np.ndarray) -> None:
        """A checkpoint with this index [T] has been written; it need not be read to know what it refers to."""
        self._known[_stamp(path)] = index.copy()

    def read(self) -> list[np.ndarray] | None:
        """The indices of all existing checkpoints, each [T]; None if one of them cannot be read."""
        found = self._found()
        return None if found is None else list(found.values())

    def without(self, client_id: int, version: int) -> Path | None:
        """The newest checkpoint that does not need this version of a client's state; None without any."""
        found = self._found() or {}
        spared = [path for path, index in found.items() if client_id < len(index) and index[client_id] != version]
        return max(spared, key=lambda path: path.stat().st_mtime_ns, default=None)

    def _found(self) -> dict[Path, np.ndarray] | None:
        """The index of each existing checkpoint; one that got another name since it was read is known."""
        known: dict[Stamp, np.ndarray] = {}
        found: dict[Path, np.ndarray] = {}
        listed = self._listed()
        for path in {*self._folder.glob("*.ckpt"), *listed, *(one.with_name(PREVIOUS) for one in listed)}:
            try:
                stamp = _stamp(path)
                found[path] = known[stamp] = self._known[stamp] if stamp in self._known else _load(path)
            except FileNotFoundError:
                continue
            except Exception as error:
                self._warn(path, error)
                return None
        self._known = known
        return found

    def _listed(self) -> list[Path]:
        return [Path(line) for line in self._list.read_text().splitlines()] if self._list.is_file() else []

    def _warn(self, path: Path, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{path} cannot be read ({error if isinstance(error, DamagedFileError) else type(error).__name__}), so "
                "client files that it may need are kept; move it elsewhere to have them deleted",
                stacklevel=2,
            )


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _load(path: Path) -> np.ndarray:
    """The index of a checkpoint, [T]; empty for one without client files."""
    content = load_sealed(path)
    index = content["state_dict"].get(INDEX_KEY)
    return np.empty(0, dtype=np.int64) if index is None else index.numpy().copy()
