"""What a module says of itself where it is printed."""

from __future__ import annotations

import dataclasses
import textwrap
from functools import partial
from typing import Any, Literal

from lightning.pytorch import LightningModule
from torch import Tensor

from lit_fed.clients.store import ClientStore
from lit_fed.core.types import Tree
from lit_fed.rounds import FederatedRounds

__all__ = ["Described"]


class Described(LightningModule):
    """A module that says what it holds, and is printed as what it trains: its states would be hundreds of lines."""

    federation: FederatedRounds
    store: ClientStore

    @property
    def is_built(self) -> bool:
        """Whether the module has its federation."""
        return "federation" in self.__dict__

    @property
    def shared(self) -> Tree:
        """What the server knows: within a round as its last phase left it."""
        return self.federation.shared

    @property
    def mixture_weights(self) -> Tensor:
        """Mixture weights of all clients, [T, M]; an `AttributeError` if the algorithm has none."""
        return self.store.mixture_weights  # type: ignore[return-value]

    @property
    def num_rounds_done(self) -> int:
        """Completed rounds."""
        return self.federation.server.rounds_done

    @property
    def num_rounds(self) -> int:
        """Rounds of the fit, those done before a resume included."""
        return self.federation.terms.num_rounds

    def __repr__(self) -> str:
        """Algorithm, solver and network with their settings; once it is built, parameters and clients."""
        module: Any = self
        said = {"algorithm": _with_settings(module.settings.algorithm, "all")}
        said["solver"] = _with_settings(module.settings.solver, "changed")
        said["network"] = _network(module) if module.is_built else _made_by(module.settings.network)
        said["clients"] = (
            _clients(module) if module.is_built else "not known yet: the trainer builds the states from the data"
        )
        lines = [_wrapped(f"  {name + ':':<11}{text}") for name, text in said.items()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False)


def _with_settings(part: Any, shown: Literal["all", "changed"]) -> str:
    """A dataclass with its settings: all of them, or its rate and what differs from the defaults."""
    settings = [
        f"{field.name}={getattr(part, field.name)!r}"
        for field in dataclasses.fields(part)
        if field.init and (shown == "all" or field.name == "lr" or getattr(part, field.name) != field.default)
    ]
    return f"{type(part).__name__}({', '.join(settings)})"


def _made_by(factory: Any) -> str:
    """The network that a factory will make."""
    if isinstance(factory, partial):
        settings = [*map(repr, factory.args), *(f"{name}={value!r}" for name, value in factory.keywords.items())]
        return f"{_made_by(factory.func)}({', '.join(settings)})"
    return getattr(factory, "__name__", type(factory).__name__)


def _network(module: Any) -> str:
    """The network with its parameters, and how many of it the server holds."""
    network = module.federation.terms.task.network
    sizes = dict.fromkeys((True, False), 0)
    for parameter in network.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    frozen = f", {sizes[False]:,} frozen" if sizes[False] else ""
    many = f", {module.algorithm.num_models} models" if module.algorithm.num_models > 1 else ""
    return f"{type(network).__name__}, {sizes[True]:,} parameters trained{frozen}{many}"


def _clients(module: Any) -> str:
    facts = module.facts
    mean = facts.total_samples / facts.num_clients
    samples = f"{facts.total_samples:,} samples, of a client {mean:,.0f} on average and {facts.most_samples:,} at most"
    return f"{facts.num_clients:,} in training with {samples}"
