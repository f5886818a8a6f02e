"""Messages between server and node: questions, answers, refusals, and facts of data and training.

Each kind of packet has one reader here, which both sides use; every limit of a field is stated once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import BY_CLIENT, ByClient
from lit_fed.core.named_inputs import NamedInputs
from lit_fed.core.targets import Target
from lit_fed.core.types import Tree
from lit_fed.data.facts import (
    FACTS,
    FLAG,
    INPUTS,
    LARGE,
    MOST_CLASSES,
    MOST_NUMBERS,
    POSITIVE,
    SEED,
    SHAPE,
    SHARE,
    TrainingFacts,
)
from lit_fed.deployment.wire import TYPES, Packet, checked_tree
from lit_fed.errors import ConfigError
from lit_fed.system.readers import (
    FormError,
    Reader,
    keyed,
    list_of,
    number,
    number_of_text,
    one_of,
    optional,
    record,
    text,
    tuple_of,
    whole,
)

__all__ = [
    "POPULATIONS", "REFUSALS", "SPLITS", "ClientFacts", "Failure", "NodeFacts", "Worked", "facts_from_json",
    "facts_of_answer", "kept_of_answer", "marks_of_start", "read_question", "read_session",
    "refusal_of", "rows_of_answer", "session_name", "worked_of_answer",
]  # fmt: skip

SPLITS = ("train", "val", "test")

SETS = ("coverage", "size")
"""Means over a client's samples that a node sends of prediction sets, in place of chosen metrics."""
POPULATIONS = ("seen", "unseen")

MOST_CLIENTS = 2**17
"""Clients of one node."""

MOST_VALUES = 2**28
"""Numbers in one sample."""

NOTHING = one_of(None)
NAME = text(200, ".+")  # of a client
RELEASE = text(64)  # of lit_fed
POPULATION = one_of(*POPULATIONS)
CLIENT = whole(0, MOST_NUMBERS)
CLIENTS = list_of(CLIENT, MOST_CLIENTS, 1)
VERSION = whole(0)  # of a client's state

REFUSALS = {
    "packet": "the question cannot be read",
    "folders": "it was started without a folder or a configuration that it needs, or with one that it cannot use",
    "settings": "its own configuration has other settings, which its log names; start both sides from the same file",
    "start": (
        "the models that clients start from are others here, or data and settings do not go together; install the same "
        "version of torch, have the same files of a pretrained network on both, and leave out --init_from"
    ),
    "mixture": (
        "its operator does not let the server learn mixture weights, which clients of this algorithm send; start it "
        "with --reveal-mixture, or give --model.algorithm FedEM without --model.algorithm.start"
    ),
    "clients": "its clients are others than at the start; start the server's command again",
    "states missing": "the file of a client's state is missing; give it the folder --states that it had before",
    "states damaged": "the file of a client's state cannot be read; put it back from a copy",
    "disk": "its disk cannot be written to",
    "error": "an error",
}
"""Codes that a node sends if it cannot answer, with phrases for the server's operator; details stay in the node's log.

An answer with any other code is garbage.
"""


# ---------------------------------------------------------------------- facts of a node
class ClientFacts(NamedTuple):
    """Facts of a client's samples for the server."""

    population: str
    sizes: tuple[int, int, int]  # samples of each split
    largest_label: int | None  # of the training samples, where labels are classes


class NodeFacts(NamedTuple):
    """Facts of a node for the server."""

    clients: dict[str, ClientFacts]  # by name
    types: dict[str, tuple[str, list[int]]]  # type and shape of a sample of `x` and `y`
    stored: str  # the type in which inputs are stored: uint8 is scaled
    digest: str  # changes with the samples, and reveals nothing else: an HMAC with a key that stays on the node
    inputs: NamedInputs | None = None  # inputs that a sample concatenates

    def plain(self) -> dict[str, Any]:
        """The facts for JSON."""
        return self._asdict() | {"inputs": None if self.inputs is None else self.inputs.plain()}

    def empty(self, which: str) -> Tensor:
        """`x` or `y` of no sample, [0, ...]."""
        kind, shape = self.types[which]
        return torch.zeros(0, *shape, dtype=TYPES[kind])


def _sample(value: Any, place: str) -> tuple[str, list[int]]:
    kind, shape = tuple_of(one_of(*TYPES), SHAPE)(value, place)
    if torch.Size(shape).numel() > MOST_VALUES:
        raise FormError(f"{place} is not of at most {MOST_VALUES} numbers")
    return kind, shape


def _inputs(value: Any, place: str) -> NamedInputs:
    return NamedInputs.from_plain(INPUTS(value, place))


CLIENT_FACTS = tuple_of(POPULATION, tuple_of(LARGE, LARGE, LARGE), optional(whole(0, MOST_CLASSES - 1)))
NODE_FACTS = record(
    {
        "clients": keyed(NAME, lambda one, place: ClientFacts(*CLIENT_FACTS(one, place)), MOST_CLIENTS),
        "types": record({"x": _sample, "y": _sample}), "stored": text(16, "[a-z0-9]*"),
        "digest": text(128, "[0-9a-f]+"), "inputs": optional(_inputs),
    }
)  # fmt: skip


# ---------------------------------------------------------------------- facts of a training
PRIVATE = ("groups", "class_names", "columns", "attackers", "sizes", "named", "label_scale", "class_counts", "texts")
"""Facts of the server alone, see `TrainingFacts.public`."""

OF_TRAINING = record(
    FACTS
    | dict.fromkeys(PRIVATE, NOTHING)
    | {"input_type": one_of(*TYPES), "learned": tuple_of(), "of_clients": record({})}
)
"""Facts of a training, see `TrainingFacts.public`."""


def _of_client(option: ByClient) -> Reader:
    """Read a client's value of an option of the solver."""

    def read(value: Any, place: str) -> float:
        found: float = number()(value, place)
        if not option.fits(found):
            raise FormError(f"{place} is {found:g}; {option.wanted} are wanted")
        return found

    return read


SOLVER = record({name: _of_client(one) for name, one in BY_CLIENT.items()}, may_miss=tuple(BY_CLIENT))
"""Values of a client, see `BY_CLIENT`."""

SESSION = record(
    {
        "model": optional(lambda model, _: model), "facts": lambda facts, _: facts, "val_fraction": SHARE,
        "calibration_fraction": SHARE, "data_seed": SEED, "ids": keyed(NAME, CLIENT, MOST_CLIENTS),
        "start": list_of(number(0), 2**18),
        "solvers": keyed(NAME, SOLVER, MOST_CLIENTS),
    },
    may_miss=("calibration_fraction",),  # in what nodes kept of trainings up to version 0.3
)  # fmt: skip


def facts_from_json(plain: Any, target: Target | None = None) -> TrainingFacts:
    """Facts of a training from JSON, with the target of its settings; a `FormError` names the wrong one."""
    read = OF_TRAINING(plain, "facts")
    try:
        return TrainingFacts.from_plain(read, target)
    except ConfigError as error:
        raise FormError(f"facts.target: {error}") from error


def read_session(value: Any, place: str) -> dict[str, Any]:
    """The settings of a training, which a server sends once; the model's section is checked when it is built.

    Raises:
        FormError: naming the wrong part.
    """
    sent = SESSION(value, place)
    if len(set(sent["ids"].values())) != len(sent["ids"]):
        raise FormError(f"{place}.ids is not one number for each client")
    if not sent["solvers"].keys() <= sent["ids"].keys():
        raise FormError(f"{place}.solvers names clients that are not on this node")
    if len({frozenset(one) for one in sent["solvers"].values()}) > 1:
        raise FormError(f"{place}.solvers has other options for one client than for another")
    if not (sent["model"] is None or isinstance(sent["model"], dict)):
        raise FormError(f"{place}.model is not an object")
    if sent["model"] is None or sent["model"].get("target") is not None:
        OF_TRAINING(sent["facts"], "facts")  # the class of the target is checked with the settings, when they are made
    else:
        facts_from_json(sent["facts"])
    return value  # type: ignore[no-any-return] # digests are of these very values


def session_name(sent: dict[str, Any]) -> str:
    """Digest by which the packets of a training refer to its settings."""
    return hashlib.blake2b(json.dumps(sent, sort_keys=True).encode(), digest_size=16).hexdigest()


def marks_of_start(algorithm: Any, terms: Context, shared: Tree) -> list[float]:
    """Mean absolute value of each part of what clients start from, frozen layers included, for JSON."""
    start = [*tree.leaves(algorithm.sent(terms, shared, terms.num_clients)), *terms.task.frozen.values()]
    return [float(leaf.double().abs().mean()) for leaf in start if leaf.numel()]


# ---------------------------------------------------------------------- questions
MOST_STAGES = 16
"""Stages of the local work of a phase."""

WORK = record(
    {
        **dict.fromkeys(("epochs", "steps", "batch_size"), optional(LARGE)),
        "batches_per_step": whole(1, 2**16), "straggler_fraction": SHARE, "sample_rate": SHARE, "is_whole": FLAG,
        "stages": list_of(tuple_of(text(64, "[a-z_]*"), optional(LARGE), optional(LARGE), FLAG), MOST_STAGES),
    },
    may_miss=("stages",),
)  # fmt: skip

ROUND = {
    "session": text(64, "[0-9a-f]+"), "settings": read_session, "run": VERSION, "round": LARGE,
    "horizon": optional(LARGE), "num_rounds": POSITIVE, "clients": CLIENTS,
    "versions": list_of(whole(-1), MOST_CLIENTS), "phase": text(64, "[a-z_0-9/]+"),
    "needed": optional(keyed(number_of_text(), list_of(VERSION, 2**16), MOST_CLIENTS)),
}  # fmt: skip

OF_ROUND = {
    "train": {
        "version": VERSION, "work": WORK, "present": list_of(CLIENT, MOST_NUMBERS),
        "draws": optional(list_of(LARGE, MOST_NUMBERS)), "drawn_weight": optional(number(0)),
        "multiplicity": list_of(number(0, 2**53), MOST_CLIENTS),
    },
    "measure": {"population": POPULATION, "split": one_of(*SPLITS), "sets": FLAG},
    "keep": {},
}  # fmt: skip

QUESTIONS = {"facts": record({"kind": one_of("facts"), "version": RELEASE})} | {
    kind: record(ROUND | more | {"kind": one_of(kind)}, may_miss=("settings",)) for kind, more in OF_ROUND.items()
}
"""Questions to a node, by kind."""


def read_question(packet: Packet) -> dict[str, Any]:
    """The facts of a question to a node; a `FormError` names the fact that is missing or wrong."""
    kind = packet.facts.get("kind")
    if not isinstance(kind, str) or kind not in QUESTIONS:
        raise FormError("the kind of the question is not one of this version")
    facts: dict[str, Any] = QUESTIONS[kind](packet.facts, "the question")
    if kind == "facts":
        return facts
    clients = facts["clients"]
    if len(set(clients)) != len(clients):
        raise FormError("the question names a client twice")
    for name in ("versions", "multiplicity"):
        if len(facts.get(name, clients)) != len(clients):
            raise FormError(f"the question has {name} for another number of clients than it names")
    needed = facts["needed"]
    if needed is not None and any(
        version >= 0 and version not in needed.get(one, ())
        for one, version in zip(clients, facts["versions"], strict=True)
    ):
        raise FormError("the question needs a version of a state that it does not list as needed")
    return facts


# ---------------------------------------------------------------------- answers
class Failure(NamedTuple):
    """A client whose work failed on its node."""

    is_not_finite: bool  # it computed NaN or infinity
    stage: str  # the algorithm's function that failed
    kind: str  # name of the error


class Worked(NamedTuple):
    """Results of the clients of one node in a phase."""

    failed: dict[int, Failure]
    sent: dict[int, Tree]  # message and metrics of each client


WORD = text(64, "[A-Za-z0-9_ ]+")
FAILURES = keyed(number_of_text(0, MOST_NUMBERS), tuple_of(one_of("not finite", "error"), WORD, WORD), MOST_CLIENTS)


def refusal_of(packet: Packet) -> str | None:
    """Code of a node's refusal, `session` if it needs the settings; None: it answers.

    Raises:
        FormError: for an unknown refusal.
    """
    if "refused" in packet.facts:
        return str(record({"refused": one_of(*REFUSALS)})(packet.facts, "the refusal")["refused"])
    if "needs" in packet.facts:
        return str(record({"needs": one_of("session")})(packet.facts, "the answer")["needs"])
    return None


def facts_of_answer(packet: Packet, version: str, most_classes: int) -> NodeFacts:
    """A node's facts of its clients.

    Args:
        packet: the answer.
        version: of the server.
        most_classes: see `RemoteClients`.

    Raises:
        FormError: if it is of another version, malformed, or of clients that the training cannot take.
    """
    found = record({"version": RELEASE, "facts": lambda value, _: value})(_bare(packet), "the answer")
    if found["version"] != version:
        raise FormError(f"version {found['version'][:20]} of lit_fed, the server {version}; install the same on both")
    facts = NodeFacts(**NODE_FACTS(found["facts"], "facts"))
    is_float = TYPES[facts.types["y"][0]].is_floating_point
    if any((one.largest_label is None) != is_float for one in facts.clients.values()):
        raise FormError("facts.clients is not of labels of the type that facts.types says")
    for name, one in facts.clients.items():
        if one.population == "seen" and not one.sizes[0]:
            raise FormError(f"client {name!r} has no training sample")
        if one.largest_label is not None and one.largest_label >= most_classes:
            raise FormError(
                f"client {name!r} has the label {one.largest_label}; correct it, or allow more classes by "
                "--data.dataset.most_classes"
            )
    if facts.inputs is not None and facts.types["x"] != (facts.inputs.dtype.name, [facts.inputs.size]):
        raise FormError("facts.inputs is not of samples of the type that facts.types says")
    return facts


def worked_of_answer(packet: Packet, ids: Collection[int], form: Tree) -> Worked:
    """Results of the clients `ids` of a node in a phase.

    Raises:
        FormError: unless each of them has failed, or sent a result of this form.
    """
    facts = _answer(packet.facts, {"clients": CLIENTS, "failed": FAILURES}, "clients", ids)
    failed = {one: Failure(kind == "not finite", stage, name) for one, (kind, stage, name) in facts["failed"].items()}
    sent = [one for one in ids if one not in failed]
    if failed.keys() - set(ids) or packet.trees.keys() != {str(one) for one in sent}:
        raise FormError("the answer is not one message or failure of each client")
    return Worked(failed, {one: checked_tree(packet.trees[str(one)], form) for one in sent})


def rows_of_answer(packet: Packet, ids: Collection[int], width: int) -> Tensor:
    """Sums that a node measured for the C clients `ids`, [C, K = width] float64.

    Raises:
        FormError: if it has another form.
    """
    _answer(packet.facts, {"clients": CLIENTS}, "clients", ids)
    if packet.trees.keys() != {"rows"}:
        raise FormError("the answer has no rows, or more than these")
    rows: Tensor = checked_tree(packet.trees["rows"], [torch.zeros(len(ids), width, dtype=torch.float64)])[0]
    return rows


def kept_of_answer(packet: Packet, ids: Collection[int]) -> None:
    """Check that a node has stored the data for serving these clients; otherwise raise `FormError`."""
    _answer(_bare(packet), {"kept": CLIENTS}, "kept", ids)


def _answer(facts: Mapping[str, Any], fields: Mapping[str, Any], clients: str, ids: Collection[int]) -> dict[str, Any]:
    """The fields of an answer, including the list of its clients."""
    found: dict[str, Any] = record(fields)(facts, "the answer")
    if found[clients] != list(ids):
        raise FormError("the answer is of other clients than were asked")
    return found


def _bare(packet: Packet) -> Mapping[str, Any]:
    if packet.trees:
        raise FormError("the answer has tensors, and none were asked for")
    return packet.facts
