"""Features: what a user puts around any algorithm by options of `--model`. Nothing outside its room names one."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lit_fed.core.context import Context
from lit_fed.core.types import Tree
from lit_fed.data.facts import TrainingFacts

if TYPE_CHECKING:
    from lit_fed.data.module import FederatedDataModule

__all__ = ["KINDS", "Feature", "features"]

KINDS = {
    "rows": "keeps rows of single clients at the server",
    "multiples": "sends models times numbers that are the client's own",
    "nothing": "sends nothing to a server",
    "statistics": "sends statistics of samples, and no models",
}
"""Kinds of messages that hold neither models nor changes of models, as a reason to refuse them."""


@dataclass(frozen=True)
class Feature:
    """A feature as a user chose it. A subclass is a frozen dataclass; its fields are options of `--model`.

    It lies in the file `feature.py` of a folder of its own here, by which it is found.
    """

    order: ClassVar[int]
    """Its place around the algorithm, from the inside out. At a client the innermost acts first, at the server the
    outermost. What changes a client's message stands within privacy, whose bound has to hold for what is summed."""

    reasons: ClassVar[dict[str, str]] = {}
    """Keys of `Algorithm.incompatible` that are about this feature → the feature in words."""

    acts: ClassVar[dict[str, str]] = {}
    """Facts under which it acts on messages → what is said to an algorithm whose messages it does not accept, with
    `%s` for the reason."""

    accepts: ClassVar[frozenset[str]] = frozenset()
    """Kinds of messages that it accepts beside `models` and `changes`."""

    kinds: ClassVar[dict[str, str]] = {}
    """Reasons in place of those of `KINDS`."""

    refused: ClassVar[dict[str, str]] = {}
    """Further combinations that are refused, see `lit_fed.wrappers.compatibility`."""

    callbacks: ClassVar[tuple[str, ...]] = ()
    """Callbacks that every run with this feature has, by their names."""

    only_serves: ClassVar[bool] = False
    """Whether it changes nothing but how clients are served."""

    acts_on_messages: ClassVar[bool] = False
    """Whether it changes rounds and messages alone: clients adapt and are served by the models as without it."""

    is_private: ClassVar[bool] = False
    """Whether only their owner may read files with results of clients."""

    own_options: ClassVar[tuple[str, ...]] = ()
    """Paths of options below `model` that a server and its nodes choose each for itself."""

    @property
    def is_given(self) -> bool:
        """Whether some option was given."""
        return any(getattr(self, one.name) != one.default for one in fields(self))

    @classmethod
    def rows(cls) -> dict[str, str]:
        """The combinations that it refuses, for the table of all: facts → message."""
        kinds = {kind: reason for kind, reason in (KINDS | cls.kinds).items() if kind not in cls.accepts}
        return {f"{fact} {kind}": said % reason for fact, said in cls.acts.items() for kind, reason in kinds.items()}

    # ------------------------------------------------------------------ checks and facts
    def check(self) -> None:
        """Refuse values that are wrong for any data and any algorithm.

        Raises:
            ConfigError: naming the option.
        """

    def facts(self, algorithm: Any) -> dict[str, Any]:
        """Its facts, for the refusals; False or None where a fact does not hold."""
        return {}

    def usual_weighting(self) -> Literal["samples", "uniform"] | None:
        """Weight of a client's message where `--model.weighting` is not given; None: as without the feature."""
        return None

    @property
    def weight_cap(self) -> int | None:
        """Maximum of a client's weight; None: without."""
        return None

    def check_clients(self, facts: TrainingFacts, num_messages: int) -> None:
        """Refuse what does not suit the clients.

        Args:
            facts: sizes of the data.
            num_messages: maximum number of clients in a round.

        Raises:
            ConfigError: naming the option.
        """

    def more_facts(self, facts: TrainingFacts, data: FederatedDataModule) -> TrainingFacts:
        """The facts of the training with those that the feature needs."""
        return facts

    # ------------------------------------------------------------------ building
    def around(self, algorithm: Any) -> Any:
        """The algorithm, which may be inside wrappers already, inside that of the feature."""
        return algorithm

    def around_all(self, algorithm: Any) -> Any:
        """The algorithm inside a wrapper that lies around those of all features."""
        return algorithm

    def terms(self, terms: Context) -> Context:
        """The context of all rounds with what the feature adds.

        Raises:
            ConfigError: if the network does not suit it.
        """
        return terms

    def check_models(self, algorithm: Any, terms: Context, shared: Tree) -> None:
        """Refuse what does not suit rounds or first models.

        Args:
            algorithm: inside all its wrappers.
            terms: the context of all rounds.
            shared: the first shared state.

        Raises:
            ConfigError: naming the option.
        """

    def start(self, federation: Any) -> None:
        """Tell the rounds what they have to do otherwise."""

    def at_node(self) -> Feature:
        """The feature as a client on a machine of its own has it."""
        return self

    def node_secret(self) -> bool:
        """Whether each node draws a secret of its own."""
        return False

    # ------------------------------------------------------------------ checkpoints
    def check_terms(self, before: dict[str, Any], now: Any) -> None:
        """Refuse to go on with a run under other terms.

        Args:
            before: terms of the rounds so far, by name.
            now: object with the terms of the coming rounds as attributes.

        Raises:
            ConfigError: naming what differs.
        """

    def spent(self, federation: Any, start: dict[str, Any] | None, *, starts: bool) -> dict[str, Any] | None:
        """The privacy spent on the run's models, for runs that start from them; None: nothing is promised.

        Args:
            federation: the run's `FederatedRounds`.
            start: the same of the models that the run started from.
            starts: whether the run started from models of another.
        """
        return None


@cache
def features() -> tuple[type[Feature], ...]:
    """All features that are there, from the inside out."""
    for file in sorted(Path(__file__).parent.glob("*/feature.py")):
        importlib.import_module(f"{__package__}.{file.parent.name}.feature")
    return tuple(sorted(Feature.__subclasses__(), key=lambda one: one.order))
