"""What server and nodes of a training have to have in common, beside its settings."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.errors import ConfigError
from lit_fed.core.targets import Target
from lit_fed.core.types import Tree
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.facts import TrainingFacts

__all__ = ["check_start", "facts_from_json", "facts_to_json", "marks_of_start", "session_name"]

SAME_START = 1e-3
"""By what share sizes may differ of numbers that two machines draw from one seed; other models differ by far more."""


def session_name(sent: dict[str, Any]) -> str:
    """By what the packets of a training name its settings."""
    return hashlib.blake2b(json.dumps(sent, sort_keys=True).encode(), digest_size=16).hexdigest()


def marks_of_start(algorithm: Any, terms: Context, shared: Tree) -> list[float]:
    """The mean size of the numbers in each part of what clients start from, frozen layers among them, for JSON.

    Args:
        algorithm: the algorithm.
        terms: what every client knows.
        shared: the initial shared state.
    """
    start = [*tree.leaves(algorithm.sent(terms, shared, terms.num_clients)), *terms.task.frozen.values()]
    return [float(leaf.double().abs().mean()) for leaf in start if leaf.numel()]


def check_start(wanted: Sequence[float], found: Sequence[float]) -> None:
    """Refuse to train models that begin elsewhere than the server's: their first states would be others, unnoticed.

    Raises:
        ConfigError: if marks of one start are not those of the other.
    """
    alike = len(wanted) == len(found)
    if not alike or not all(map(partial(math.isclose, rel_tol=SAME_START, abs_tol=1e-9), wanted, found)):
        raise ConfigError(
            "the models that clients start from are others here than at the server; install the same version of torch, "
            "have the same files of a pretrained network on both, and leave out --init_from"
        )


def facts_to_json(facts: TrainingFacts) -> dict[str, Any]:
    """Facts for JSON, without what is for the server alone: groups, attackers, names and sizes of single clients."""
    facts = facts._replace(groups=None, attackers=None, columns=None, class_names=None, named=None, sizes=None)
    return facts._replace(learned=()).plain()


def facts_from_json(plain: Mapping[str, Any]) -> TrainingFacts:
    """The inverse of `facts_to_json`.

    Raises:
        ConfigError: if they are something else.
    """
    try:
        constants = plain["normalisation"]
        shapes = {name: tuple(plain[name]) for name in ("input_shape", "label_shape")}
        return TrainingFacts(
            **dict(plain) | shapes | {
                "target": Target.from_plain(*plain["target"]),
                "normalisation": None if constants is None else Normalisation(*map(tuple, constants)),
            }
        )  # fmt: skip
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"the server sends facts that make no sense here ({error}); install its version") from error
