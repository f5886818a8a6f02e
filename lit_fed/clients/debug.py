"""The sequential client trainer with the offending inputs attached to every failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.core import tree
from lit_fed.errors import ClientError, NotFiniteError

__all__ = ["DebugTrainer"]

Value = TypeVar("Value")


class DebugTrainer(SequentialTrainer):
    """Clients one after another, slowly: every function's result is checked, so the first bad one is named.

    A failure is a `ClientError` whose `inputs` are the arguments of the function that failed.
    """

    name = "debug"

    def _call(self, client_id: int, round_idx: int, function: Callable[..., Value], *arguments: Any) -> Value:
        stage = function.__name__.strip("_")
        inputs = dict(zip(("ctx", "shared", "first", "second", "third"), arguments, strict=False))
        try:
            value = function(*arguments)
        except Exception as error:
            raise ClientError(client_id, stage, round_idx, f"{type(error).__name__}: {error}", inputs) from error
        for path, leaf in tree.items(value):
            if leaf.is_floating_point() and not leaf.isfinite().all():
                raise NotFiniteError(client_id, stage, round_idx, f"its result {path or ''} is NaN or infinite", inputs)
        return value
