"""Client states in files, since together they may exceed the memory of a machine.

A file holds one version of one client's state and is never changed: training the client again writes another file, and
an index [T] says which version counts (−1: the client has never trained and has no file). Committing a round only
changes the index, so an interrupted round leaves only unreferenced files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lit_fed.errors import ClientError, ConfigError
from lit_fed.system.checked_archive import DamagedFileError, is_dense, load_checked
from lit_fed.system.files import os_error_text, whole_file, write_atomically

__all__ = [
    "INDEX_KEY", "KEPT_STATE", "LAST", "PREVIOUS", "CheckpointIndex", "ClientFiles", "choose_leaves", "folder_beside",
]  # fmt: skip

SMALL_LEAF = 1024
"""Bytes up to which a leaf of a client's state stays in memory whatever the budget: a file would cost more."""

KEPT_STATE = "its kept state"
"""Stage of the error of a file that cannot be read."""

OWNER = "lit_fed"
"""Key of a file for the client and version of its state."""


def choose_leaves(sizes: Sequence[int], num_clients: int, memory_bytes: float) -> list[int]:
    """Which leaves of a client's state go to files: the largest first, until the others fit into memory.

    Args:
        sizes: bytes of each leaf of one client's state.
        num_clients: T.
        memory_bytes: memory limit for the leaves of all clients.

    Returns:
        Positions of the leaves in ascending order. Leaves up to `SMALL_LEAF` stay in memory.

    Example:
        >>> choose_leaves([4000, 8, 8000], num_clients=10, memory_bytes=50_000)
        [2]
    """
    chosen: list[int] = []
    left = num_clients * sum(sizes)
    for position in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        if left <= memory_bytes or sizes[position] <= SMALL_LEAF:
            break
        chosen.append(position)
        left -= num_clients * sizes[position]
    return sorted(chosen)


def folder_beside(checkpoints: Path) -> Path:
    """Folder of the client files of a folder of checkpoints: beside it if it is `checkpoints`, else inside it."""
    return (checkpoints.parent if checkpoints.name == "checkpoints" else checkpoints) / "clients"


class ClientFiles:
    """Files `<client>.<version>.pt`, each a dict of tensors, in one folder, and the checkpoints that need them.

    Each file also names the client and version of its state, so that an exchanged file is noticed.

    Args:
        names: names of the leaves in a file.
        called: name of a file by the client's id; by default the id.
    """

    def __init__(self, names: Sequence[str], called: Callable[[int], str] = str) -> None:
        self.names, self._called = list(names), called
        self.folder: Path | None = None
        self.checkpoints: CheckpointIndex | None = None
        self._temporary: Path | None = None
        self._superseded: set[tuple[int, int]] = set()

    # ------------------------------------------------------------------ one state
    def _path(self, client_id: int, version: int) -> Path:
        assert self.folder is not None, "open() chooses the folder at the start of a fit"
        return self.folder / _file_name(self._called(client_id), version)

    def exists(self, client_id: int, version: int) -> bool:
        """Whether there is a file of this version."""
        return self._path(client_id, version).is_file()

    def write(self, client_id: int, version: int, leaves: Iterable[Tensor]) -> None:
        """Write a state beside its place and move it there.

        There is no fsync, since it costs more than the write. A killed process loses nothing that it has written. After
        a power failure a checkpoint may be newer than the last files that it refers to; a missing or truncated one is
        then an error that names the client.

        Args:
            client_id: the client.
            version: one without a file of this client in the index or in any checkpoint.
            leaves: in the order of `names`; rows of a larger tensor are cut out of it.
        """
        own = {name: leaf.detach().cpu().clone() for name, leaf in zip(self.names, leaves, strict=True)}
        with whole_file(self._path(client_id, version), private=True) as file:
            torch.save({OWNER: {"client": client_id, "version": version}, **own}, file)

    def read(self, client_id: int, version: int) -> list[Tensor]:
        """The leaves of a state, in the order of `names`, on the CPU.

        Raises:
            ClientError: naming the file, if it is missing or damaged; only the rank that reads it knows.
        """
        return self._leaves(self._path(client_id, version), client_id, version)

    def _leaves(self, path: Path, client_id: int, version: int) -> list[Tensor]:
        try:
            content = load_checked(path)
        except (DamagedFileError, OSError) as error:
            raise self.unreadable(client_id, version, os_error_text(error), path) from error
        entries = content if isinstance(content, dict) else {}
        if OWNER not in entries or not all(is_dense(entries.get(name)) for name in self.names):
            raise self.unreadable(client_id, version, "it holds something else", path)
        if (whose := entries[OWNER]) != {"client": client_id, "version": version}:
            raise self.unreadable(client_id, version, f"it holds another state, {whose}", path)
        return [entries[name] for name in self.names]

    def unreadable(self, client_id: int, version: int, why: str, path: Path | None = None) -> ClientError:
        """Message about a file that is not the expected state, and how to continue without it.

        Args:
            client_id: the client.
            version: version of the state.
            why: the problem.
            path: the file; None: in this folder.
        """
        other = None if self.checkpoints is None else self.checkpoints.without(client_id, version)
        instead = "go on from another checkpoint" if other is None else f"go on without it by --ckpt_path {other}"
        fix = f"put the file back from a copy, {instead}, or start a new run"
        return ClientError(
            client_id, KEPT_STATE, None, f"cannot be read from {path or self._path(client_id, version)}: {why}; {fix}"
        )

    # ------------------------------------------------------------------ the folder
    def find(self, index: Tensor, folders: Sequence[Path]) -> None:
        """Choose the first folder that holds every file of a checkpoint's index.

        Args:
            index: version of each client, [T]; −1 for a client without a file.
            folders: candidates, in this order.

        Raises:
            ConfigError: naming the first client whose file is missing, and where it should be.
        """
        wanted, lost = _pairs(index), []
        self.folder = None
        for folder in folders if wanted else ():
            present = set(os.listdir(folder)) if folder.is_dir() else set()
            absent = next((pair for pair in wanted if _file_name(*pair) not in present), None)
            if absent is None:
                self.folder, self.checkpoints = folder, CheckpointIndex(folder)
                return
            lost.append(f"{folder / _file_name(*absent)} of client {absent[0]}")
        if wanted:
            raise ConfigError(
                f"client states that the checkpoint refers to are missing: {', or '.join(lost)}; put the run's folder "
                "`clients` back beside its folder `checkpoints`, or start a new run without --ckpt_path. A run that "
                "writes no checkpoints of its own keeps client states only while it lasts"
            )

    def open(self, folder: Path | None, root: Path, index: Tensor) -> tuple[Path, int, int | None]:
        """Prepare a fit; on rank zero only, before any rank writes.

        Files that neither the index nor a checkpoint of the run needs are deleted, including truncated ones. Files of
        the index in other folders are linked; if the folder has files of the same names, which its checkpoints need,
        they are copied under a new version.

        Args:
            folder: the run's; None takes a temporary one, deleted with the store or at the end of the process.
            root: parent of a temporary folder.
            index: version of each client, [T].

        Returns:
            The folder, the first free version, and the version of all copied files, None without any.
        """
        source, folder = self.folder, folder or self._temporary or self._make_temporary(root)
        folder.mkdir(parents=True, exist_ok=True)
        elsewhere = source is not None and source.resolve() != folder.resolve()
        self.folder, self.checkpoints = folder, CheckpointIndex(folder)
        own = np.full(len(index), -1) if elsewhere else index.cpu().numpy()
        self._sweep(own)
        wanted, present = _pairs(index), self._present()
        free = 1 + max((version for _, version in (*wanted, *present)), default=-1)
        if source is None or not elsewhere:
            return folder, free, None
        if set(wanted).isdisjoint(present):
            for name in (_file_name(*pair) for pair in wanted):
                _link_or_copy(source / name, folder / name)
            return folder, free, None
        for client_id, version in wanted:
            self.write(client_id, free, self._leaves(source / _file_name(client_id, version), client_id, version))
        return folder, free + 1, free

    def _make_temporary(self, root: Path) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        self._temporary = Path(tempfile.mkdtemp(prefix="clients-", dir=root)).absolute()
        weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    def _present(self) -> list[tuple[int, int]]:
        """Client and version of every whole file."""
        assert self.folder is not None
        parts = [path.name.split(".") for path in self.folder.glob("*.*.pt")]
        return [(int(one[0]), int(one[1])) for one in parts if len(one) == 3 and one[0].isdigit() and one[1].isdigit()]

    # ------------------------------------------------------------------ garbage
    def _sweep(self, index: np.ndarray) -> None:
        """Delete leftovers of a previous process: truncated and unreferenced files."""
        assert self.folder is not None
        for partial in self.folder.glob(".*.pt.partial"):
            partial.unlink(missing_ok=True)
        self._superseded = {pair for pair in self._present() if not _refers(index, *pair)}
        self.collect(index)

    def supersede(self, client_ids: Iterable[int], versions: Iterable[int]) -> None:
        """Mark files for deletion as soon as neither the index nor a checkpoint needs them."""
        self._superseded.update(pair for pair in zip(client_ids, versions, strict=True) if pair[1] >= 0)

    def collect(self, index: np.ndarray) -> None:
        """Delete superseded files that are needed neither by the committed index [T] nor by any checkpoint.

        Only files known to be superseded are checked, never the whole folder: the cost grows with the cohort, and files
        being written by other ranks are not affected.
        """
        if not self._superseded:
            return
        needed = None if self.checkpoints is None else self.checkpoints.read()
        if needed is None:  # a checkpoint that cannot be read might need any of them
            return
        kept = {pair for pair in self._superseded if any(_refers(one, *pair) for one in (index, *needed))}
        for client_id, version in self._superseded - kept:
            self._path(client_id, version).unlink(missing_ok=True)
        self._superseded = kept


def _file_name(client: int | str, version: int) -> str:
    return f"{client}.{version}.pt"


def _pairs(index: Tensor) -> list[tuple[int, int]]:
    """Client and version of every file of an index."""
    return [(client_id, version) for client_id, version in enumerate(index.tolist()) if version >= 0]


def _refers(index: np.ndarray, client_id: int, version: int) -> bool:
    return client_id < len(index) and bool(index[client_id] == version)


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link if the file system allows it; since files never change, two runs may share one."""
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as whole, whole_file(target, private=True) as file:
            shutil.copyfileobj(whole, file)


LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
"""A run's newest checkpoint, and the one before it, which is kept beside it."""

INDEX_KEY = "store.versions"
"""Key of a checkpoint's `state_dict` for the version of each client's state, [T] int64."""

Stamp = tuple[int, int, int]


class CheckpointIndex:
    """The indices of all checkpoints that refer to one folder of client files.

    All checkpoints in the folder `checkpoints` beside it count; paths elsewhere are listed in
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
        """Record that a checkpoint is about to be written."""
        path = path.absolute()
        listed = self._listed()
        if path.parent != self._folder and path not in listed:
            lines = [str(one) for one in listed if one.exists()] + [str(path)]
            write_atomically(self._list, "\n".join(lines) + "\n")

    def written(self, path: Path, index: np.ndarray) -> None:
        """Record that a checkpoint with this index [T] was written, so that it need not be read."""
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
        """The index of each existing checkpoint, including checkpoints renamed since they were read."""
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
    content = load_checked(path)
    index = content["state_dict"].get(INDEX_KEY)
    return np.empty(0, dtype=np.int64) if index is None else index.numpy().copy()
