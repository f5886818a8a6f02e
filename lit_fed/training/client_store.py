"""Per-client states, stacked on a leading axis of clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lit_fed.core import tree
from lit_fed.core.reduce import gather_rows
from lit_fed.core.types import Tree

__all__ = ["ClientStore"]

BUFFER_NAMES = {"mixture": "mixture_weights"}
"""Fields of a client's state whose stacked form has a name of its own in the field."""


class ClientStore(nn.Module):
    """What every client keeps between rounds; one buffer [T, ...] for each leaf of a client's state.

    New states are staged and become visible to the table, and so to checkpoints, only by `commit`: a round that is cut
    off leaves no trace.

    Args:
        states: initial state of each client, T trees of one structure; [] or stateless trees make an empty store.
    """

    def __init__(self, states: list[Tree]) -> None:
        super().__init__()
        self.template = tree.map_leaves(lambda leaf: leaf.clone(), states[0])
        self._names = [self._name(path) for path, _ in tree.items(self.template)]
        for name, leaf in zip(self._names, tree.leaves(self.template), strict=True):
            self.register_buffer(name, torch.empty(len(states), *leaf.shape, dtype=leaf.dtype))
        for client_id, state in enumerate(states):
            for name, leaf in zip(self._names, tree.leaves(state), strict=True):
                getattr(self, name)[client_id] = leaf
        self._staged: list[tuple[Tensor, Tree]] = []

    @staticmethod
    def _name(path: str) -> str:
        parts = path.removeprefix("state/").split("/")
        return "__".join(BUFFER_NAMES.get(part, part) for part in parts).replace(".", "_")

    @property
    def table(self) -> Tree:
        """Committed states of all clients, leaves [T, ...]."""
        return tree.rebuild(self.template, [getattr(self, name) for name in self._names])

    def gather(self, client_ids: Tensor) -> Tree:
        """States [C, ...] of some clients: staged in this round if they are, else committed."""
        rows = tree.index(self.table, client_ids)
        for staged_ids, staged in self._staged:
            position = {client_id: row for row, client_id in enumerate(staged_ids.tolist())}
            found = [(row, position[one]) for row, one in enumerate(client_ids.tolist()) if one in position]
            if found:
                rows = _overlay(rows, staged, torch.tensor(found, device=client_ids.device).T)
        return rows

    def stage(self, client_ids: Tensor, states: Tree) -> None:
        """Keep new states [C, ...] aside until `commit`."""
        if self._names:
            self._staged.append((client_ids, states))

    def exchange(self, positions: Tensor, counts: list[int], client_ids: Tensor, from_entry: int) -> None:
        """Give every rank the states that any rank staged since entry `from_entry`, in the order of `client_ids`.

        Args:
            positions: place in `client_ids` of each rank's staged rows, rank after rank, [C].
            counts: staged rows of each rank.
            client_ids: clients of the phase, [C].
            from_entry: number of staged entries before this phase.
        """
        if not self._names:
            return
        mine = [states for _, states in self._staged[from_entry:]]
        empty = tree.map_leaves(lambda leaf: leaf[:0], self.table)
        rows = tree.map_leaves(lambda *parts: torch.cat(parts), empty, *mine)
        del self._staged[from_entry:]
        self._staged.append((client_ids, gather_rows(rows, positions, counts)))

    @property
    def num_staged(self) -> int:
        """Number of staged entries."""
        return len(self._staged)

    def commit(self) -> None:
        """Write what is staged into the table."""
        for client_ids, states in self._staged:
            for name, leaf in zip(self._names, tree.leaves(states), strict=True):
                getattr(self, name)[client_ids] = leaf
        self._staged.clear()

    def discard(self) -> None:
        """Forget what is staged."""
        self._staged.clear()


def _overlay(rows: Tree, staged: Tree, found: Tensor) -> Tree:
    """Rows with those at found[0] replaced by the staged ones at found[1]."""
    return tree.map_leaves(lambda leaf, new: leaf.index_copy(0, found[0], new[found[1]]), rows, staged)
