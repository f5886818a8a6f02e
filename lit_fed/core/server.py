"""What the server keeps between rounds."""

from __future__ import annotations

from typing import Protocol

import torch

from lit_fed.core.task import Task
from lit_fed.core.types import Tree

__all__ = ["InMemoryServer", "Server"]


class Server(Protocol):
    """Keeps the shared state, in memory or as parameters of a module, and counts the rounds."""

    @property
    def task(self) -> Task:
        """The task, with what is frozen."""

    @property
    def initial_shared(self) -> Tree:
        """The shared state before the first round, from which states of clients begin."""

    @property
    def shared(self) -> Tree:
        """The shared state after the last complete round."""

    @property
    def rounds_done(self) -> int:
        """Complete rounds."""

    @property
    def device(self) -> torch.device:
        """Where all of it lies."""

    def commit(self, shared: Tree) -> None:
        """Write the shared state of one round more."""


class InMemoryServer:
    """A server whose state is an attribute.

    Args:
        task: the task.
        shared: the initial shared state.
        device: where both lie.
    """

    def __init__(self, task: Task, shared: Tree, device: torch.device) -> None:
        self.task, self.initial_shared, self.shared, self.device = task, shared, shared, device
        self.rounds_done = 0

    def commit(self, shared: Tree) -> None:
        """Keep the shared state of one round more."""
        self.shared, self.rounds_done = shared, self.rounds_done + 1
