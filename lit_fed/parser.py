"""The parser of the command line."""

from __future__ import annotations

from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from lit_fed.algorithms import Algorithm
from lit_fed.core.errors import ConfigError
from lit_fed.core.surrogate import Surrogate
from lit_fed.core.topology import Topology
from lit_fed.data import DataSet, Partition
from lit_fed.models import Network

__all__ = ["FederatedParser"]


class FederatedParser(LightningArgumentParser):
    """A parser whose errors are a message, not a usage page."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Stop with a message that says what is known.

        Raises:
            ConfigError: always.
        """
        hints = [
            f"{option} takes {', '.join(sorted(_names(base)))}, or the path of a class of your own"
            for option, key, base in (
                ("--model.algorithm", "model.algorithm", Algorithm),
                ("--model.algorithm.surrogate", "surrogate", Surrogate),
                ("--model.algorithm.topology", "topology", Topology),
                ("--model.network", "model.network", Network),
                ("--data.dataset", "data.dataset", DataSet),
                ("--data.partition", "data.partition", Partition),
            )
            if f'"{key}"' in message or f"'{key}'" in message
        ]
        lines = [line for line in str(message).splitlines() if line.strip()]
        raise ConfigError("\n".join([*lines[:12], *hints])) from ex

    def instantiate(self, *args: Any, **kwargs: Any) -> Namespace:
        """Make the objects; where one may be null, what it refuses reaches the terminal without the rest.

        Raises:
            ConfigError: if an object refuses its arguments.
        """
        try:
            return super().instantiate(*args, **kwargs)
        except ValueError as error:
            if isinstance(error.__cause__, ConfigError):
                raise error.__cause__ from None
            raise


def _names(base: type) -> list[str]:
    return [name for one in base.__subclasses__() for name in ([] if _is_base(one) else [one.__name__]) + _names(one)]


def _is_base(one: type) -> bool:
    return bool(getattr(one, "__abstractmethods__", None))
