"""What clients keep before their first round."""

from __future__ import annotations

from typing import Any

from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.context import Context
from lit_fed.core.types import ClientData, Tree

__all__ = ["fresh_optimizer", "start_alike"]


class _Untold:
    """A client of whom nothing is known."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def start_alike(algorithm: Algorithm, ctx: Context, shared: Tree) -> bool:
    """Whether all clients start alike: nothing of a client is asked for its state.

    Args:
        algorithm: the algorithm.
        ctx: what every client knows.
        shared: the initial shared state.
    """
    try:
        algorithm.state_init(ctx, shared, _Untold())  # type: ignore[arg-type]
    except Exception:  # whatever asking brings: the clients are asked one by one
        return False
    return True


def fresh_optimizer(algorithm: Algorithm, ctx: Context, shared: Tree, state: Tree, data: ClientData) -> Tree:
    """The state of an optimizer that has taken no step, in the shape that is the algorithm's affair; None without one.

    Args:
        algorithm: the algorithm.
        ctx: what every client knows.
        shared: the initial shared state.
        state: the first state of some client.
        data: its samples.
    """
    losses = SequentialTrainer().losses(ctx, shared, algorithm, data)
    there = tree.map_leaves(lambda leaf: leaf.to(data.mask.device), state)
    return getattr(algorithm.client_init(ctx, shared, there, data, losses), "optimizer", None)
