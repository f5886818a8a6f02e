"""An algorithm around another: what all wrappers have in common.

A wrapper changes what clients send (`encode`) and what reaches the algorithm's server step (`decode`); nothing in the
file of an algorithm knows of it. What a wrapper remembers of a client is that client's state, and what it remembers
from round to round is shared state, so that checkpoints, files of client states and ranks carry both without more code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import NOT_SENT
from lit_fed.core.context import Context
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, Reduced, Tree

__all__ = [
    "Around",
    "WrappedShared",
    "WrappedState",
    "WrappedWork",
    "WrapperSettings",
    "buffer_names",
    "innermost",
    "own_work",
    "wrapper_of",
]


class WrappedState(NamedTuple):
    """State of a client of a wrapper with a memory of its clients."""

    inner: Any  # what the algorithm lets it keep
    memory: Any  # what the wrapper lets it keep

    @property
    def mixture(self) -> Tensor:
        """Mixture weights of the client, [M], where the algorithm has some."""
        return self.inner.mixture  # type: ignore[no-any-return]


class WrappedWork(NamedTuple):
    """A client's phase under such a wrapper."""

    inner: Any  # the algorithm's own work
    memory: Any  # the wrapper's memory of the client, from before the phase
    optimizer: Any  # the algorithm's, where the client trainer finds it; () where it has none


class WrappedShared(NamedTuple):
    """Shared state of a wrapper that remembers something from round to round."""

    inner: Any  # the algorithm's shared state
    own: Any  # the wrapper's


@dataclass(frozen=True)
class Around:
    """An algorithm that hands every function on to another; alone it changes no bit.

    What it does not define itself, class attributes among them, is the algorithm's. A message without leaves, and one
    of the phase `adapt`, never leaves its client, so wrappers do not see it.

    Args:
        inner: the algorithm, which may be a wrapper itself.
    """

    inner: Any

    def __getattr__(self, name: str) -> Any:
        """What the algorithm says of itself."""
        if name.startswith("__") or "inner" not in self.__dict__:  # while it is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    # ------------------------------------------------------------------ what a wrapper is
    @property
    def has_client_state(self) -> bool:
        """Whether `client_memory` makes something that a client keeps."""
        return False

    @property
    def has_server_state(self) -> bool:
        """Whether `server_memory` makes something that the server keeps."""
        return False

    def client_memory(self, ctx: Context, shared: Tree, data: ClientData) -> Tree:
        """What a client keeps for the wrapper before its first round; `shared` is the algorithm's."""
        return ()

    def server_memory(self, ctx: Context, shared: Tree) -> Tree:
        """What the server keeps for the wrapper before the first round; `shared` is the algorithm's."""
        return ()

    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, dict[str, Tensor]]:
        """What a client sends instead of the algorithm's message.

        Args:
            ctx: what every client knows.
            shared: what the wrapper knows of the round; `heard` is the part that the algorithm's client saw.
            message: the algorithm's; its value has leaves.
            memory: what the client keeps for the wrapper, from before the phase.
            data: its samples.

        Returns:
            The message, the client's new memory, and metrics, which are averaged with the weights of messages.
        """
        return message, memory, {}

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Tree]:
        """What reaches the algorithm's server step, and what the server remembers from now on.

        Args:
            ctx: what every client knows.
            shared: as for `encode`.
            reduced: the reduction of what clients sent; its value has leaves.
            client_ids: clients of the phase, [C].
        """
        return reduced, shared.own if self.has_server_state else ()

    def charged(self, ctx: Context, own: Tree, client_ids: Tensor, sends: bool) -> Tree:
        """`own` after these clients were asked to take part in a phase; privacy is charged here.

        Args:
            ctx: what every client knows.
            own: what the wrapper remembers of rounds.
            client_ids: all clients that were asked, [C], whatever becomes of their messages.
            sends: whether messages of this phase have leaves.
        """
        return own

    def inner_shared(self, shared: Tree) -> Tree:
        return shared.inner if self.has_server_state else shared

    def broadcast_view(self, ctx: Context, shared: Tree) -> Tree:
        """The algorithm's shared state as clients hear it."""
        return self.inner_shared(shared)

    def client_view(self, own: Tree, client_id: int) -> Tree:
        """What a client must know of `own`, which the wrapper remembers of rounds."""
        return NOT_SENT

    # ------------------------------------------------------------------ an algorithm's functions
    def shared_init(self, ctx: Context) -> Tree:
        """The algorithm's, with the wrapper's memory."""
        shared = self.inner.shared_init(ctx)
        return WrappedShared(shared, self.server_memory(ctx, shared)) if self.has_server_state else shared

    def state_init(self, ctx: Context, shared: Tree, data: ClientData) -> Tree:
        """The algorithm's, with the wrapper's memory of the client."""
        heard = self.broadcast_view(ctx, shared)
        state = self.inner.state_init(ctx, heard, data)
        return WrappedState(state, self.client_memory(ctx, heard, data)) if self.has_client_state else state

    def shared_losses(self, ctx: Context, shared: Tree, batch: Batch) -> Tensor | None:
        """The algorithm's, under what clients hear."""
        return self.inner.shared_losses(ctx, self.broadcast_view(ctx, shared), batch)  # type: ignore[no-any-return]

    def client_init(self, ctx: Context, shared: Tree, state: Tree, data: ClientData, losses: Any) -> Tree:
        heard = self.broadcast_view(ctx, shared)
        if not self.has_client_state:
            return self.inner.client_init(ctx, heard, state, data, losses)
        work = self.inner.client_init(ctx, heard, state.inner, data, losses)
        return WrappedWork(work, state.memory, getattr(work, "optimizer", ()))

    def client_step(self, ctx: Context, shared: Tree, work: Tree, batch: Batch) -> Tree:
        heard = self.broadcast_view(ctx, shared)
        if not self.has_client_state:
            return self.inner.client_step(ctx, heard, work, batch)
        stepped = self.inner.client_step(ctx, heard, own_work(work), batch)
        return WrappedWork(stepped, work.memory, getattr(stepped, "optimizer", ()))

    def client_final(self, ctx: Context, shared: Tree, work: Tree, data: ClientData) -> ClientResult:
        """The algorithm's; what it sends is encoded."""
        own, memory = (own_work(work), work.memory) if self.has_client_state else (work, ())
        heard = self.broadcast_view(ctx, shared)
        result: ClientResult = self.inner.client_final(ctx, heard, own, data)
        message, metrics = result.message, result.metrics
        if self.has_server_state and message.bits_down is None:  # its size is not that of what the wrapper remembers
            bits = sum(map(tree.bits, tree.models(heard)))
            message = message._replace(bits_down=torch.full_like(message.weight, bits))
        if ctx.phase != "adapt" and tree.leaves(message.value):
            message, memory, more = self.encode(ctx, shared, message, memory, data)
            metrics = metrics | more
        state = WrappedState(result.state, memory) if self.has_client_state else result.state
        return ClientResult(message, state, metrics)

    def server_step(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> Tree:
        own = shared.own if self.has_server_state else ()
        if tree.leaves(reduced.value):
            reduced, own = self.decode(ctx, shared, reduced, client_ids)
        new = self.inner.server_step(ctx, self.inner_shared(shared), reduced, client_ids)
        return WrappedShared(new, own) if self.has_server_state else new

    def charge(self, ctx: Context, shared: Tree, client_ids: Tensor, sends: bool) -> Tree:
        """The shared state before the server's step, in which every wrapper has charged the clients of a phase.

        A message that was sent costs privacy also if a rule drops it, it comes too late, or the round is void.
        """
        inner = self.inner_shared(shared)
        if isinstance(self.inner, Around):
            inner = self.inner.charge(ctx, inner, client_ids, sends)
        return (
            WrappedShared(inner, self.charged(ctx, shared.own, client_ids, sends)) if self.has_server_state else inner
        )

    def sent(self, ctx: Context, shared: Tree, client_id: int) -> Tree:
        """The algorithm's, of what clients hear, with what this one must know of the wrapper's memory."""
        inner = self.inner.sent(ctx, self.broadcast_view(ctx, shared), client_id)
        return WrappedShared(inner, self.client_view(shared.own, client_id)) if self.has_server_state else inner

    def received(self, ctx: Context, sent: Tree, client_id: int) -> Tree:
        if not self.has_server_state:
            return self.inner.received(ctx, sent, client_id)
        return WrappedShared(self.inner.received(ctx, sent.inner, client_id), sent.own)

    def collaboration(self, ctx: Context, shared: Tree, states: Tree) -> Tensor | None:
        states = states.inner if self.has_client_state else states
        return self.inner.collaboration(ctx, self.inner_shared(shared), states)  # type: ignore[no-any-return]

    def num_payloads(self, ctx: Context, shared: Tree, num_clients: int) -> int:
        return self.inner.num_payloads(ctx, self.inner_shared(shared), num_clients)  # type: ignore[no-any-return]

    def shared_outputs(self, ctx: Context, shared: Tree, x: Tensor) -> Tree | None:
        """The algorithm's, under what clients hear."""
        return self.inner.shared_outputs(ctx, self.broadcast_view(ctx, shared), x)

    def log_prob(self, ctx: Context, shared: Tree, state: Tree, x: Tensor, outputs: Any) -> Tensor:
        state = state.inner if self.has_client_state else state
        return self.inner.log_prob(ctx, self.broadcast_view(ctx, shared), state, x, outputs)  # type: ignore[no-any-return]


class WrapperSettings(ABC):
    """Settings that a user gives for a wrapper; subclasses are frozen dataclasses."""

    @abstractmethod
    def around(self, algorithm: Any) -> Around:
        """The wrapper around an algorithm, which may be a wrapper itself."""


def own_work(work: Any) -> Any:
    """The algorithm's work, with the optimizer that the client trainer may have put in."""
    return work.inner._replace(optimizer=work.optimizer) if hasattr(work.inner, "optimizer") else work.inner


def innermost(algorithm: Any) -> Any:
    """The algorithm inside all wrappers."""
    while isinstance(algorithm, Around):
        algorithm = algorithm.inner
    return algorithm


Wrapper = TypeVar("Wrapper", bound=Around)


def wrapper_of(algorithm: Any, kind: type[Wrapper]) -> Wrapper | None:
    """The outermost wrapper of a kind around an algorithm; None: there is none."""
    while isinstance(algorithm, Around):
        if isinstance(algorithm, kind):
            return algorithm
        algorithm = algorithm.inner
    return None


def buffer_names(paths: Iterable[str]) -> list[str]:
    """Names of buffers for the leaves at these paths; what the algorithm has is named as without wrappers.

    Example:
        >>> buffer_names(["inner/inner/mixture", "inner/memory", "memory"])
        ['mixture', 'memory', 'memory_2']
    """
    names: list[str] = []
    for path in paths:
        while path.startswith("inner/"):
            path = path.removeprefix("inner/")
        name, several = path.replace("/", "__").replace(".", "_"), 2
        while name in names:  # two wrappers that remember something of the same name
            name, several = f"{name.removesuffix(f'_{several - 1}')}_{several}", several + 1
        names.append(name)
    return names
