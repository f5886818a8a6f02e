"""Client states, stacked on a client axis; the larger leaves are in files if memory is short."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_fed.clients.store_files import INDEX_KEY, ClientFiles, choose_leaves, folder_beside
from lit_fed.core import tree
from lit_fed.core.reduce import gather_rows
from lit_fed.core.types import Leaves, Tree
from lit_fed.errors import ConfigError
from lit_fed.system.machine import aligned
from lit_fed.wrappers.base import buffer_names

__all__ = ["BUFFER_NAMES", "ClientStore", "StoredStates"]

STATES_AT_ONCE, BYTES_AT_ONCE = 1024, 2**24
"""Initial states written to the table at once: one copy per small state is slow."""

BYTES_PER_BLOCK = 16 * 2**20
"""Memory limit of the states of one block read from files; a single client may exceed it."""

TRAINED = "trained"
"""Key in a checkpoint of the ids of the clients whose rows it holds, [n] int64."""

BUFFER_NAMES = {"mixture": "mixture_weights"}
"""Buffer names of state fields with an established name."""


class ClientStore(nn.Module):
    """States of all clients between rounds; one buffer [T, ...] for each leaf of a client's state.

    New states are staged and enter the table, and so checkpoints, only by `commit`: an interrupted round leaves no
    trace.

    Where all states together exceed the budget, the largest leaves go to files (`ClientFiles`). The buffer `versions`
    [T] is then their index: −1 for a client that has never trained, whose state is recomputed whenever it is needed.

    A checkpoint holds the rows of clients that have trained, and as `trained` their ids, until all of them have: what
    the others start from is computed anew.

    Args:
        initial: a client's initial state by its id, trees of one structure; stateless trees make a store without
            buffers.
        num_clients: T.
        memory_bytes: memory limit for the states of all clients.
        alike: whether all clients start from the same state, so that one copy is enough.

    Attributes:
        clients_per_block: most clients whose states may be gathered at once; unlimited if all states are in memory.
        holds_states: whether states are stored here; otherwise they stay with the clients, and rows refer to them.
    """

    versions: Tensor
    holds_states = True

    def __init__(
        self, initial: Callable[[int], Tree], num_clients: int, memory_bytes: float = math.inf, *, alike: bool = False
    ) -> None:
        super().__init__()
        self._initial, self._alike = initial, alike
        self.template = tree.map_leaves(lambda leaf: leaf.clone(), initial(0))
        self._leaves = dict(zip(_names(self.template), tree.leaves(self.template), strict=True))
        self._at_once = max(1, BYTES_AT_ONCE // max(sum(leaf.nbytes for leaf in self._leaves.values()), 1))
        chosen = choose_leaves([leaf.nbytes for leaf in self._leaves.values()], num_clients, memory_bytes)
        in_files = [name for position, name in enumerate(self._leaves) if position in chosen]
        self._names = [name for name in self._leaves if name not in in_files]
        # leaves whose rows a checkpoint may omit; the index of files is always whole
        self._rows = [name for name in self._names if name != INDEX_KEY.removeprefix("store.")]
        self.files = ClientFiles(in_files) if in_files else None
        self.clients_per_block = sys.maxsize
        if self.files is not None:
            self.register_buffer("versions", torch.full((num_clients,), -1))
            self.clients_per_block = max(1, BYTES_PER_BLOCK // sum(self._leaves[name].nbytes for name in in_files))
        for name in self._names:
            leaf = self._leaves[name]
            self.register_buffer(name, torch.empty(num_clients, *leaf.shape, dtype=leaf.dtype))
        self._trained = torch.zeros(num_clients, dtype=torch.bool)
        self._fill(num_clients)
        self._staged: list[tuple[Tensor, list[Tensor]]] = []
        self._exchanged = 0  # staged entries known to every rank
        self._staged_versions: Tensor | None = None
        self._version = 0  # of the next file
        self._collects = False  # only one rank deletes

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the function of initial states, which holds the clients' samples."""
        return {name: value for name, value in self.__dict__.items() if name != "_initial"}

    def start_from(self, initial: Callable[[int], Tree]) -> None:
        """Set the function of initial states after unpickling."""
        self.__dict__.setdefault("_initial", initial)

    def _fill(self, num_clients: int) -> None:
        """Write the initial states into the buffers [T, ...]."""
        if self._alike:
            first = self._by_name(self._initial(0))
            for name in self._names:
                getattr(self, name).copy_(first[name])
            return
        at_once = min(STATES_AT_ONCE, self._at_once)
        states, start = (self._by_name(self._initial(one)) for one in range(num_clients if self._names else 0)), 0
        while some := list(islice(states, at_once)):
            for name in self._names:
                getattr(self, name)[start : start + len(some)] = torch.stack([state[name] for state in some])
            start += len(some)

    def _by_name(self, states: Tree) -> Leaves:
        return dict(zip(self._leaves, tree.leaves(states), strict=True))

    @property
    def table(self) -> Tree:
        """Committed states of all clients, leaves [T, ...], in memory all at once."""
        leaves = {name: getattr(self, name) for name in self._names}
        if self.files is not None:
            leaves |= self._read(torch.arange(len(self.versions), device=self.versions.device), self.versions)
        return tree.rebuild(self.template, [leaves[name] for name in self._leaves])

    @property
    def has_mixtures(self) -> bool:
        """Whether clients keep mixture weights, the buffer `mixture_weights` [T, M]."""
        return BUFFER_NAMES["mixture"] in self._names

    def portions(self, num_clients: int) -> list[slice]:
        """Slices of a block whose states are gathered together: one slice unless states are large."""
        on_cpu = all(leaf.device.type == "cpu" for leaf in self.buffers())  # elsewhere clients may run all at once
        at_once = self._at_once if on_cpu else max(num_clients, 1)
        return [slice(lo, min(lo + at_once, num_clients)) for lo in range(0, num_clients, at_once)]

    # ------------------------------------------------------------------ one round
    def gather(self, client_ids: Tensor) -> Tree:
        """States [C, ...] of some clients: staged in this round if there are any, else committed; read only."""
        rows = [_read_rows(getattr(self, name), client_ids) for name in self._names]
        for staged_ids, staged in self._staged:
            rows = _overlay(rows, client_ids, staged, staged_ids)
        leaves = dict(zip(self._names, rows, strict=True))
        if self.files is not None:
            leaves |= self._read(client_ids, self.versions if self._staged_versions is None else self._staged_versions)
        return tree.rebuild(self.template, [leaves[name] for name in self._leaves])

    def _read(self, client_ids: Tensor, versions: Tensor) -> Leaves:
        """Leaves [C, ...] from the files of these versions [T], one client after another."""
        assert self.files is not None
        rows = [self._leaves[name].new_empty(len(client_ids), *self._leaves[name].shape) for name in self.files.names]
        pairs = zip(client_ids.tolist(), versions[client_ids].tolist(), strict=True)
        for row, (client_id, version) in enumerate(pairs):
            if version >= 0:
                leaves = self.files.read(client_id, version)
            else:
                with torch.autocast("cpu", enabled=False):  # the state that it would have had from the start
                    first = self._by_name(self._initial(client_id))
                leaves = [first[name] for name in self.files.names]
            for target, leaf in zip(rows, leaves, strict=True):
                if (leaf.shape, leaf.dtype) != (target.shape[1:], target.dtype):
                    raise self.files.unreadable(client_id, version, f"it is {leaf.dtype} of shape {list(leaf.shape)}")
                target[row] = leaf
        return dict(zip(self.files.names, (leaf.to(client_ids.device) for leaf in rows), strict=True))

    def stage(self, client_ids: Tensor, states: Tree) -> None:
        """Stage new states [C, ...] until `commit`; leaves in files are written now."""
        leaves = self._by_name(states)
        if self.files is not None:
            for row, client_id in enumerate(client_ids.tolist()):
                self.files.write(client_id, self._version, [leaves[name][row] for name in self.files.names])
            self._stage_version(client_ids)
        if self._names:
            self._staged.append((client_ids, [leaves[name] for name in self._names]))

    def _stage_version(self, client_ids: Tensor) -> None:
        """Set the staged version of these clients to that of the current phase."""
        assert self.files is not None
        if self._staged_versions is None:
            self._staged_versions = self.versions.clone()
        before = self._staged_versions[client_ids]
        old = before != self._version
        self.files.supersede(client_ids[old].tolist(), before[old].tolist())
        self._staged_versions[client_ids] = self._version

    def exchange(self, positions: Tensor, counts: list[int], client_ids: Tensor) -> None:
        """Exchange the states staged since the last exchange, in the order of `client_ids`.

        For states in files only the version is needed, one per phase, which every rank knows. The files exist: a rank
        arrives here after the reduction of messages, before which every rank has written its files.

        Args:
            positions: position in `client_ids` of each rank's staged rows, rank after rank, [C].
            counts: staged rows of each rank.
            client_ids: clients of the phase, [C].
        """
        if self.files is not None and len(client_ids):
            self._stage_version(client_ids)
            self._version += 1
        if self._names and len(counts) > 1 and len(client_ids):  # those of a single rank stay where they are
            self._staged.append((client_ids, self._of_all_ranks(positions, counts)))
            self._exchanged = len(self._staged)

    def _of_all_ranks(self, positions: Tensor, counts: list[int]) -> list[Tensor]:
        """The states that this rank staged since the last exchange, taken from there, with those of the others."""
        mine = [states for _, states in self._staged[self._exchanged :]]
        del self._staged[self._exchanged :]
        empty = [getattr(self, name)[:0] for name in self._names]
        rows: list[Tensor] = tree.map_leaves(lambda *parts: torch.cat(parts), empty, *mine)
        return gather_rows(rows, positions, counts)  # type: ignore[no-any-return]

    def commit(self) -> None:
        """Write staged states to the table; for states in files only the index changes."""
        tables = [getattr(self, name) for name in self._names]
        own = {table.untyped_storage().data_ptr() for table in tables}
        for client_ids, states in self._staged:
            # a client may have returned a part of its state as it got it, a view of the table
            apart = [leaf.clone() if leaf.untyped_storage().data_ptr() in own else leaf for leaf in states]
            for table, rows in zip(tables, apart, strict=True):
                if rows.nbytes < BYTES_AT_ONCE:
                    table[client_ids] = rows
                    continue
                for client_id, row in zip(client_ids.tolist(), rows, strict=True):  # a plain copy is faster
                    table[client_id].copy_(row)
            self._trained[client_ids.cpu()] = True
        self._staged.clear()
        self._exchanged = 0
        if self._staged_versions is not None:
            self.versions.copy_(self._staged_versions)
            self._staged_versions = None
            self._version = 1 + int(self.versions.max())  # a committed file is never written again
            self.collect()

    def discard(self) -> None:
        """Drop staged states."""
        self._staged.clear()
        self._exchanged, self._staged_versions = 0, None

    # ------------------------------------------------------------------ checkpoints
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._rows and not self._trained.all():
            destination[prefix + TRAINED] = ids = self._trained.nonzero().squeeze(1)
            for name in self._rows:
                whole = destination[prefix + name]
                destination[prefix + name] = whole[ids.to(whole.device)]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load the stored rows; the others are initial states, which a warm start may have changed."""
        given = dict(state_dict)
        ids = given.pop(prefix + TRAINED, None)
        if ids is None:  # all of them, as in checkpoints from before rows were left out
            self._trained.fill_(True)
        else:
            self._trained.fill_(False)[ids.cpu()] = True
            self._fill(len(self._trained))
            for name in self._rows:
                own, rows = getattr(self, name), given.get(prefix + name)
                if rows is not None and rows.shape == (len(ids), *own.shape[1:]):
                    own[ids.to(own.device)] = rows.to(own)
                    given[prefix + name] = own
        super()._load_from_state_dict(given, prefix, *rest)

    # ------------------------------------------------------------------ files of a run
    @property
    def in_files(self) -> list[str]:
        """Names of the leaves in files."""
        return [] if self.files is None else self.files.names

    @property
    def location(self) -> str | None:
        """Folder of the files, stored in checkpoints."""
        return None if self.files is None or self.files.folder is None else str(self.files.folder)

    def find(self, state: Leaves, checkpoint: str | Path | None, recorded: str | None) -> None:
        """Find the files of a checkpoint, before its index is loaded.

        Args:
            state: the checkpoint's `state_dict`.
            checkpoint: its path; None if unknown.
            recorded: the `location` of the run that wrote it; a run's folder that was moved is found by the path.
                Nothing is written there.

        Raises:
            ConfigError: naming the first client whose file is missing, or the checkpoint if it lists none.
        """
        if self.files is not None:
            if not isinstance(index := state.get(INDEX_KEY), Tensor):
                raise ConfigError(
                    f"{checkpoint or 'the checkpoint'} has no {INDEX_KEY}, which names the clients' files"
                )
            beside = [] if checkpoint is None else [folder_beside(Path(checkpoint).absolute().parent)]
            named = [] if recorded is None else [Path(recorded)]
            self.files.find(index, list(dict.fromkeys(beside + named)))
            if self.files.folder not in beside:
                self.files.checkpoints = None

    def open(
        self,
        folder: Path | None,
        root: Path,
        *,
        is_global_zero: bool = True,
        broadcast: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Prepare the folder of client files, on all ranks, before any of them writes.

        Only rank zero deletes and links files; the broadcast lets the others continue when it is done.

        Args:
            folder: the run's folder of client files; None takes a temporary one.
            root: parent of a temporary folder.
            is_global_zero: whether this is rank zero.
            broadcast: sends rank zero's value to all ranks.
        """
        if self.files is None:
            return
        self._collects = is_global_zero
        opened = self.files.open(folder, root, self.versions) if is_global_zero else None
        folder, self._version, taken = broadcast(opened)
        self.files.folder = folder
        if taken is not None:
            self.versions[self.versions >= 0] = taken

    @contextmanager
    def saving(self, path: Path, is_global_zero: bool) -> Iterator[None]:
        """Context of writing a checkpoint: its files are kept as long as it exists."""
        if self.files is None or self.files.folder is None or not is_global_zero:
            yield
            return
        if self.files.checkpoints is None:
            raise ConfigError(
                f"{path} cannot be written: its client states are in {self.files.folder}, which is not beside the "
                "given --ckpt_path but named in it, and nothing is written there; move that checkpoint into the "
                "folder checkpoints of its run, or save after a fit"
            )
        self.files.checkpoints.announce(path)
        yield
        self.files.checkpoints.written(path, self._index())
        self.collect()

    def collect(self) -> None:
        """Delete the files that neither the committed index nor an existing checkpoint needs."""
        if self.files is not None and self._collects:
            self.files.collect(self._index())

    def _index(self) -> np.ndarray:
        return self.versions.cpu().numpy()


class StoredStates:
    """States of seen clients in a checkpoint, without the data of the training.

    Args:
        leaves: the checkpoint's `state_dict`.
        initial: makes a client's first state; of other samples, if it reads them.
        alike: whether all clients start from it.
    """

    def __init__(self, leaves: Leaves, initial: Callable[[], Tree], *, alike: bool) -> None:
        ids = leaves.get(f"store.{TRAINED}")
        self._rows = None if ids is None else {one: row for row, one in enumerate(ids.flatten().tolist())}
        self._leaves, self._initial, self._alike = leaves, initial, alike

    def has_trained(self, client_id: int) -> bool:
        """Whether a client has a row; it may be in a file."""
        return self._rows is None or client_id in self._rows

    def holds(self, client_id: int) -> bool:
        """Whether the state of a client is here."""
        known = all(f"store.{one}" in self._leaves for one in _names({"state": self._fresh}))
        return known and INDEX_KEY not in self._leaves and (self._alike or self.has_trained(client_id))

    @cached_property
    def _fresh(self) -> Tree:
        return self._initial()

    def gather(self, client_ids: Tensor) -> Tree:
        """States [C, ...] of some clients that are here, see `ClientStore`.

        Raises:
            ConfigError: if the checkpoint's states have another form than those of this run.
        """
        fresh, first, each = self._fresh, tree.leaves(self._fresh), []
        tables = [self._leaves.get(f"store.{one}") for one in _names({"state": fresh})]
        for one in client_ids.tolist():
            row = one if self._rows is None else self._rows.get(one)
            each.append(first if row is None else [_row(*pair, row) for pair in zip(tables, first, strict=True)])
        return {"state": tree.stack([tree.rebuild(fresh, leaves) for leaves in each])}


def _row(table: Tensor | None, like: Tensor, row: int) -> Tensor:
    """A row of a checkpoint's table, which has other rows of this type."""
    if table is None or (table.dtype, table.ndim) != (like.dtype, like.ndim + 1) or row >= len(table):
        raise ConfigError("the checkpoint's states of clients are not those of this run; give one of its checkpoints")
    return table[row]


def _names(template: Tree) -> list[str]:
    """Names of the buffers for the leaves of a client's state, in their order."""
    paths = (path.removeprefix("state/").split("/") for path, _ in tree.items(template))
    return buffer_names("/".join(BUFFER_NAMES.get(part, part) for part in parts) for parts in paths)


def _read_rows(table: Tensor, client_ids: Tensor) -> Tensor:
    """Rows [C, ...] of a table [T, ...]; on a CPU a single row is a view, which saves copying a large model."""
    if len(client_ids) == 1 and table.device.type == "cpu":
        only = int(client_ids[0])
        return aligned(table[only : only + 1])
    return table.index_select(0, client_ids)


def _overlay(rows: list[Tensor], client_ids: Tensor, staged: list[Tensor], staged_ids: Tensor) -> list[Tensor]:
    """Rows of some clients [C] with those of which new ones are staged replaced by these."""
    position = {client_id: row for row, client_id in enumerate(staged_ids.tolist())}
    found = [(row, position[one]) for row, one in enumerate(client_ids.tolist()) if one in position]
    if not found:
        return rows
    here, there = torch.tensor(found, device=client_ids.device).T
    return [leaf.index_copy(0, here, new[there]) for leaf, new in zip(rows, staged, strict=True)]
