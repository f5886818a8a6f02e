"""What server and nodes of a training have to have in common, beside its settings."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.targets import Target
from lit_fed.core.types import Tree
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.facts import TrainingFacts
from lit_fed.deployment.facts import MOST_CLASSES, MOST_CLIENTS
from lit_fed.deployment.typed import keyed, list_of, number, one_of, optional, record, text, whole
from lit_fed.deployment.wire import TYPES, WireError
from lit_fed.errors import ConfigError

__all__ = [
    "MOST_NUMBERS", "check_start", "facts_from_json", "facts_to_json", "marks_of_start", "read_session", "session_name",
]  # fmt: skip

MOST_NUMBERS = 10_000_000
"""Clients of a training: nodes keep an entry for each of them."""

NOTHING = one_of(None)
COUNT = whole(0, 2**52)
AXES = list_of(whole(1, 2**31 - 1), 8)

FACTS = record(
    {
        "input_shape": AXES, "input_type": one_of(*TYPES), "label_shape": AXES,
        "target": list_of(lambda value, _: value, 3, 3), "num_clients": whole(1, MOST_NUMBERS), "total_samples": COUNT,
        "most_samples": COUNT, "groups": NOTHING, "batch_size": whole(0, 2**31), "clients_per_block": whole(1, 2**31),
        "weighting": one_of("samples", "uniform"), "seed": whole(0, 2**63), "num_rounds": whole(1, 2**31),
        "normalisation": optional(list_of(list_of(number(), 2**16), 2, 2)), "class_names": NOTHING, "columns": NOTHING,
        "augment": optional(text(4096)), "sampling_probability": number(0, 1), "capped_samples": COUNT,
        "attackers": NOTHING, "learned": list_of(NOTHING, 0), "sizes": NOTHING, "named": NOTHING,
        "stored_type": text(16),
    }
)  # fmt: skip
"""Facts of a training, see `TrainingFacts`."""

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


def facts_from_json(plain: Any) -> TrainingFacts:
    """The inverse of `facts_to_json`.

    Raises:
        WireError: if they are something else.
    """
    read = FACTS(plain, "facts")
    target, constants = read["target"], read["normalisation"]
    try:
        read["target"] = Target.from_plain(
            text(32)(target[0], "facts.target"), whole(1, MOST_CLASSES)(target[1], "facts.target"),
            one_of(True, False)(target[2], "facts.target"),
        )  # fmt: skip
    except ConfigError as error:
        raise WireError(f"facts.target: {error}") from error
    read["normalisation"] = None if constants is None else Normalisation(*map(tuple, constants))
    given: Any = {name: tuple(one) if isinstance(one, list) else one for name, one in read.items()}
    return TrainingFacts(**given)


def read_session(value: Any, place: str) -> dict[str, Any]:
    """The settings of a training as a server sends them once, for which the model's section alone is not looked at.

    Raises:
        WireError: naming what is wrong.
    """
    reader = record(
        {
            "model": optional(lambda model, _: model), "facts": lambda facts, _: facts, "val_fraction": number(0, 1),
            "data_seed": whole(0, 2**63), "ids": keyed(text(200, ".+"), whole(0, MOST_NUMBERS), MOST_CLIENTS),
            "start": list_of(number(0), 2**18),
        }
    )  # fmt: skip
    sent = reader(value, place)
    if len(set(sent["ids"].values())) != len(sent["ids"]):
        raise WireError(f"{place}.ids is not one number for each client")
    if not (sent["model"] is None or isinstance(sent["model"], dict)):
        raise WireError(f"{place}.model is not an object")
    facts_from_json(sent["facts"])
    return value  # type: ignore[no-any-return] # digests are of these very values
