"""What clients keep between rounds, on the machine where they live: a file for each version of each client's state.

The server knows versions alone. It names them with everything that it asks for, so a node has no memory that a killed
process could lose, and a server that goes on from an older checkpoint finds the older states.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_fed.clients.store import ClientStore
from lit_fed.clients.store_files import CheckpointIndex, ClientFiles
from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.system.files import whole_file

__all__ = ["NodeStates", "VersionStore", "node_key"]

KEY_FILE = "key"
KEY_BYTES = 32


class NodeStates:
    """The states of a node's clients; for `serving` and for training what a `ClientStore` is elsewhere.

    Args:
        folder: of this run, made when the first state is written.
        initial: a client's initial state by its number.
        names: of this node's clients by their numbers, after which the files are named.

    Attributes:
        kept: versions by which clients are served after the training, which stay whatever the server needs.
    """

    def __init__(self, folder: Path, initial: Callable[[int], dict[str, Tree]], names: Mapping[int, str]) -> None:
        self.folder, self._initial, self._names = folder, initial, names
        self.template = initial(min(names))  # the form of all
        leaves = [str(position) for position, _ in enumerate(tree.items(self.template))]
        self.files = ClientFiles(leaves, names.__getitem__) if leaves else None
        if self.files is not None:
            self.files.folder = folder
        self.versions: Mapping[int, int] = {}
        self.kept: Mapping[int, int] = {}

    def gather(self, client_ids: Tensor) -> dict[str, Tree]:
        """States [C, ...] of some clients, of the versions that `versions` says; −1: the initial one.

        Raises:
            ClientError: naming the file that is missing or damaged.
        """
        return tree.stack([self.read(one) for one in client_ids.tolist()])  # type: ignore[no-any-return]

    def read(self, client_id: int) -> dict[str, Tree]:
        """The state of one client, leaves without an axis of clients; see `gather`."""
        version = self.versions[client_id]
        if version < 0 or self.files is None:
            return self._initial(client_id)
        wanted, leaves = tree.leaves(self.template), self.files.read(client_id, version)
        for leaf, one in zip(leaves, wanted, strict=True):
            if leaf.shape != one.shape or leaf.dtype != one.dtype:
                raise self.files.unreadable(client_id, version, f"it is {leaf.dtype} of shape {list(leaf.shape)}")
        return tree.rebuild(self.template, leaves)  # type: ignore[no-any-return]

    def write(self, client_id: int, version: int, state: dict[str, Tree]) -> None:
        """Keep a state, leaves without an axis of clients."""
        if self.files is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.files.write(client_id, version, tree.leaves(state))

    def sweep(self, needed: Mapping[int, list[int]]) -> None:
        """Delete the versions of some clients that no checkpoint of the server needs any more.

        Args:
            needed: for each of these clients the versions that stay.
        """
        stay = {self._names[one]: {str(version) for version in versions} for one, versions in needed.items()}
        for one in needed.keys() & self.kept.keys():
            stay[self._names[one]].add(str(self.kept[one]))
        for path in self.folder.glob("*.*.pt"):
            name, _, version = path.stem.rpartition(".")
            if name in stay and version not in stay[name]:
                path.unlink(missing_ok=True)


class VersionStore(ClientStore):
    """The server's side: for each client the version of its state, −1 for one that has never trained.

    Versions never come twice, whatever is killed and started again: each process of the server counts from a random
    number of its own.

    Args:
        num_clients: T.

    Attributes:
        run: what the nodes call the run's folder of states, [] int64.
    """

    run: Tensor
    versions: Tensor
    holds_states = False

    def __init__(self, num_clients: int) -> None:
        super().__init__(lambda _: {"state": {"versions": torch.tensor(-1)}}, num_clients)
        self._trained.fill_(True)  # checkpoints hold the whole index, by which the nodes' files are found
        self.register_buffer("run", torch.tensor(secrets.randbits(62)))
        self._next = _first_version()
        self._checkpoints: CheckpointIndex | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Count anew: the process that this store was pickled in may go on."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._next = _first_version()

    def next_version(self) -> int:
        """A version that no state has."""
        self._next += 1
        return self._next

    def open(self, folder: Path | None, root: Path, **_: Any) -> None:
        """Look for the checkpoints of the run, which need states of older versions."""
        self._checkpoints = None if folder is None else CheckpointIndex(folder)

    def needed(self, client_ids: list[int]) -> dict[int, list[int]] | None:
        """Versions of some clients that checkpoints or the round under way refer to; None where that is not known."""
        older = None if self._checkpoints is None else self._checkpoints.read()
        if older is None:
            return None
        client_ids = [one for one in client_ids if one < len(self.versions)]  # unseen ones keep nothing
        ids = torch.tensor(client_ids, dtype=torch.int64, device=self.versions.device)
        under_way = self.gather(ids)["state"]["versions"].cpu()
        indices = [*older, self.versions.cpu().numpy()]
        found = {one: {int(index[one]) for index in indices if one < len(index)} for one in client_ids}
        for one, version in zip(client_ids, under_way.tolist(), strict=True):
            found[one].add(version)
        return {one: sorted(version for version in versions if version >= 0) for one, versions in found.items()}


def _first_version() -> int:
    return secrets.randbits(30) << 32


def node_key(folder: Path) -> bytes:
    """The secret by which a node's digests are keyed; made when it is first asked for."""
    path = folder / KEY_FILE
    if path.is_file():
        return path.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    key = secrets.token_bytes(KEY_BYTES)
    with whole_file(path, private=True) as file:
        file.write(key)
    return key
