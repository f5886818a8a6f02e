"""Base of all wrappers: an algorithm around another.

A wrapper changes the messages of clients (`encode`) and the input of the algorithm's server step (`decode`); algorithms
do not know it. Its memory of a client is part of the client's state, its memory of rounds part of the shared state:
checkpoints, files of client states and ranks handle both without further code.
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
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, Message, Reduced, Tree

__all__ = [
    "AlgorithmWrapper", "WrappedShared", "WrappedState", "WrappedWork", "WrapperSettings", "averages_statistics",
    "buffer_names", "innermost", "own_work", "part_of",
]  # fmt: skip


class WrappedState(NamedTuple):
    """A client's state under a wrapper with a memory of clients."""

    inner: Any  # the algorithm's state of the client
    memory: Any  # the wrapper's

    @property
    def mixture(self) -> Tensor:
        """Mixture weights of the client, [M], if the algorithm has some."""
        return self.inner.mixture  # type: ignore[no-any-return]


class WrappedWork(NamedTuple):
    """A client's phase under such a wrapper."""

    inner: Any  # the algorithm's own work
    memory: Any  # the wrapper's memory of the client, from before the phase
    optimizer: Any  # the algorithm's, where the client trainer finds it; () if it has none


class WrappedShared(NamedTuple):
    """Shared state under a wrapper with a memory of rounds."""

    inner: Any  # the algorithm's shared state
    own: Any  # the wrapper's


@dataclass(frozen=True)
class AlgorithmWrapper:
    """An algorithm that delegates every function to another, and by itself changes nothing.

    Attributes that it does not define are the algorithm's, as are functions without a docstring. Messages without
    leaves, and those of the phase `adapt`, never leave their client: `encode` and `decode` are not called for them.

    Args:
        inner: the algorithm, which may be a wrapper itself.
    """

    inner: Any

    def __getattr__(self, name: str) -> Any:
        """Attributes of the algorithm."""
        if name.startswith("__") or "inner" not in self.__dict__:  # during copying or unpickling
            raise AttributeError(name)
        return getattr(self.inner, name)

    # ------------------------------------------------------------------ functions of a wrapper
    @property
    def has_client_state(self) -> bool:
        """Whether clients keep a `client_memory`."""
        return False

    @property
    def has_server_state(self) -> bool:
        """Whether the server keeps a `server_memory`."""
        return False

    def client_memory(self, ctx: Context, shared: Tree, data: ClientData) -> Tree:
        """The wrapper's memory of a client before its first round; `shared` is the algorithm's."""
        return ()

    def server_memory(self, ctx: Context, shared: Tree) -> Tree:
        """The wrapper's memory of rounds before the first one; `shared` is the algorithm's."""
        return ()

    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, Leaves]:
        """The message that a client sends in place of the algorithm's.

        Args:
            ctx: the context.
            shared: the wrapper's shared state; the algorithm's client saw its `broadcast_view`.
            message: the algorithm's; its value has leaves.
            memory: the wrapper's memory of the client, from before the phase.
            data: its samples.

        Returns:
            The message, the client's new memory, and metrics, which are averaged with the weights of messages.
        """
        return message, memory, {}

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Tree]:
        """The input of the algorithm's server step, and the new memory of rounds.

        Args:
            ctx: the context.
            shared: as for `encode`.
            reduced: the reduced messages; its value has leaves.
            client_ids: clients of the phase, [C].
        """
        return reduced, shared.own if self.has_server_state else ()

    def charged(self, ctx: Context, own: Tree, client_ids: Tensor, sends: bool) -> Tree:
        """The memory of rounds after these clients were sampled for a phase; privacy is charged here.

        Args:
            ctx: the context.
            own: the memory of rounds.
            client_ids: all sampled clients, [C], including those whose messages are lost.
            sends: whether messages of this phase have leaves.
        """
        return own

    def inner_shared(self, shared: Tree) -> Tree:
        """The shared state of the inner algorithm."""
        return shared.inner if self.has_server_state else shared

    def broadcast_view(self, ctx: Context, shared: Tree) -> Tree:
        """The algorithm's shared state as clients receive it."""
        return self.inner_shared(shared)

    def client_view(self, own: Tree, client_id: int) -> Tree:
        """The part of the memory of rounds that a client needs."""
        return NOT_SENT

    # ------------------------------------------------------------------ an algorithm's functions
    def shared_init(self, ctx: Context) -> Tree:
        """The algorithm's state, with the wrapper's memory."""
        shared = self.inner.shared_init(ctx)
        return WrappedShared(shared, self.server_memory(ctx, shared)) if self.has_server_state else shared

    def state_init(self, ctx: Context, shared: Tree, data: ClientData) -> Tree:
        """The algorithm's state, with the wrapper's memory of the client."""
        seen = self.broadcast_view(ctx, shared)
        state = self.inner.state_init(ctx, seen, data)
        return WrappedState(state, self.client_memory(ctx, seen, data)) if self.has_client_state else state

    def shared_losses(self, ctx: Context, shared: Tree, batch: Batch) -> Tensor | None:
        """The algorithm's, of what clients receive."""
        return self.inner.shared_losses(ctx, self.broadcast_view(ctx, shared), batch)  # type: ignore[no-any-return]

    def client_init(self, ctx: Context, shared: Tree, state: Tree, data: ClientData, losses: Any) -> Tree:
        seen = self.broadcast_view(ctx, shared)
        if not self.has_client_state:
            return self.inner.client_init(ctx, seen, state, data, losses)
        work = self.inner.client_init(ctx, seen, state.inner, data, losses)
        return WrappedWork(work, state.memory, getattr(work, "optimizer", ()))

    def client_step(self, ctx: Context, shared: Tree, work: Tree, batch: Batch) -> Tree:
        seen = self.broadcast_view(ctx, shared)
        if not self.has_client_state:
            return self.inner.client_step(ctx, seen, work, batch)
        stepped = self.inner.client_step(ctx, seen, own_work(work), batch)
        return WrappedWork(stepped, work.memory, getattr(stepped, "optimizer", ()))

    def client_final(self, ctx: Context, shared: Tree, work: Tree, data: ClientData) -> ClientResult:
        """The algorithm's result, with its message encoded."""
        own, memory = (own_work(work), work.memory) if self.has_client_state else (work, ())
        seen = self.broadcast_view(ctx, shared)
        result: ClientResult = self.inner.client_final(ctx, seen, own, data)
        message, metrics = result.message, result.metrics
        if self.has_server_state and message.bits_down is None:  # its size excludes the wrapper's memory
            bits = tree.bits(self.inner.sent(ctx, seen, 0))
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
        """The shared state before the server's step, after every wrapper has charged the clients of a phase.

        A message that was sent costs privacy even if a rule drops it, it is late, or the round is void.
        """
        inner = self.inner_shared(shared)
        if isinstance(self.inner, AlgorithmWrapper):
            inner = self.inner.charge(ctx, inner, client_ids, sends)
        return (
            WrappedShared(inner, self.charged(ctx, shared.own, client_ids, sends)) if self.has_server_state else inner
        )

    def sent(self, ctx: Context, shared: Tree, client_id: int) -> Tree:
        """The algorithm's, of what clients receive, with the part of the wrapper's memory that this one needs."""
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
        """The algorithm's, of what clients receive."""
        return self.inner.shared_outputs(ctx, self.broadcast_view(ctx, shared), x)

    def log_prob(self, ctx: Context, shared: Tree, state: Tree, x: Tensor, outputs: Any) -> Tensor:
        state = state.inner if self.has_client_state else state
        return self.inner.log_prob(ctx, self.broadcast_view(ctx, shared), state, x, outputs)  # type: ignore[no-any-return]


class WrapperSettings(ABC):
    """Settings that a user gives for a wrapper; subclasses are frozen dataclasses."""

    @abstractmethod
    def around(self, algorithm: Any) -> AlgorithmWrapper:
        """The wrapper around an algorithm, which may be a wrapper itself."""


def own_work(work: Any) -> Any:
    """The algorithm's work, with the optimizer that the client trainer may have restored."""
    return work.inner._replace(optimizer=work.optimizer) if hasattr(work.inner, "optimizer") else work.inner


def innermost(algorithm: Any) -> Any:
    """The algorithm inside all wrappers."""
    while isinstance(algorithm, AlgorithmWrapper):
        algorithm = algorithm.inner
    return algorithm


Wrapper = TypeVar("Wrapper", bound=AlgorithmWrapper)


def averages_statistics(algorithm: Any, ctx: Context) -> bool:
    """Whether clients send running statistics of BatchNorm: the network has some, and they are not personal."""
    return bool(ctx.task.norm_names - algorithm.kept_names(ctx))


def part_of(algorithm: Any, shared: Tree, kind: type[Wrapper]) -> tuple[Wrapper, Any] | None:
    """The outermost wrapper of a kind with its memory of rounds; None: there is none."""
    while isinstance(algorithm, AlgorithmWrapper):
        if isinstance(algorithm, kind):
            return algorithm, shared.own
        algorithm, shared = algorithm.inner, algorithm.inner_shared(shared)
    return None


def buffer_names(paths: Iterable[str]) -> list[str]:
    """Names of buffers for the leaves at these paths; the algorithm's leaves are named as without wrappers.

    Example:
        >>> buffer_names(["inner/inner/mixture", "inner/memory", "memory"])
        ['mixture', 'memory', 'memory_2']
    """
    names: list[str] = []
    for path in paths:
        while path.startswith("inner/"):
            path = path.removeprefix("inner/")
        name, several = path.replace("/", "__").replace(".", "_"), 2
        while name in names:  # two wrappers with memories of the same name
            name, several = f"{name.removesuffix(f'_{several - 1}')}_{several}", several + 1
        names.append(name)
    return names
