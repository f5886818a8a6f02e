"""The questions of a server and the answers of a node, as both sides read them: everything that either may say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.types import Tree
from lit_fed.deployment.facts import MOST_CLIENTS, POPULATIONS, SPLITS, NodeFacts, read_facts
from lit_fed.deployment.forms import in_form
from lit_fed.deployment.refusal import REFUSALS
from lit_fed.deployment.session_facts import MOST_NUMBERS, read_session
from lit_fed.deployment.typed import (
    keyed,
    list_of,
    number,
    number_of_text,
    one_of,
    optional,
    record,
    text,
    whole,
)
from lit_fed.deployment.wire import Packet, WireError

__all__ = [
    "Failure",
    "Worked",
    "facts_of_answer",
    "kept_of_answer",
    "read_question",
    "refusal_of",
    "rows_of_answer",
    "worked_of_answer",
]  # fmt: skip

CLIENT = whole(0, MOST_NUMBERS)
CLIENTS = list_of(CLIENT, MOST_CLIENTS, 1)
VERSION = whole(0)

WORK = record(
    {
        **dict.fromkeys(("epochs", "steps", "batch_size"), optional(whole(0, 2**31))),
        "batches_per_step": whole(1, 2**16), "straggler_fraction": number(0, 1), "sample_rate": number(0, 1),
    }
)  # fmt: skip

ROUND = {
    "session": text(64, "[0-9a-f]+"), "settings": read_session, "run": VERSION, "round": whole(0, 2**31),
    "horizon": optional(whole(0, 2**31)), "num_rounds": whole(1, 2**31), "clients": CLIENTS,
    "versions": list_of(whole(-1), MOST_CLIENTS), "phase": text(64, "[a-z_0-9/]+"),
    "needed": optional(keyed(number_of_text(), list_of(VERSION, 2**16), MOST_CLIENTS)),
}  # fmt: skip

QUESTIONS = {
    "facts": record({"kind": one_of("facts"), "version": text(64)}),
    "train": record(
        ROUND | {
            "kind": one_of("train"), "version": VERSION, "work": WORK, "present": list_of(CLIENT, MOST_NUMBERS),
            "draws": optional(list_of(whole(0, 2**31), MOST_NUMBERS)), "drawn_weight": optional(number(0)),
            "multiplicity": list_of(number(0, 2**53), MOST_CLIENTS),
        },
        may_miss=("settings",),
    ),
    "measure": record(
        ROUND | {
            "kind": one_of("measure"), "population": one_of(*POPULATIONS), "split": one_of(*SPLITS),
        },
        may_miss=("settings",),
    ),
    "keep": record(ROUND | {"kind": one_of("keep")}, may_miss=("settings",)),
}  # fmt: skip
"""What a node may be asked, by kind."""

FAILURE = list_of(text(64, "[A-Za-z0-9_ ]+"), 3, 3)
ANSWER = {"clients": CLIENTS}


class Failure(NamedTuple):
    """One client whose work failed on its node."""

    is_not_finite: bool  # it computed NaN or infinity
    stage: str  # the algorithm's function that failed
    kind: str  # name of the error


class Worked(NamedTuple):
    """What the clients of one node made of a phase."""

    failed: dict[int, Failure]
    sent: dict[int, Tree]  # message and metrics of each client


def read_question(packet: Packet) -> dict[str, Any]:
    """What a node is asked.

    Raises:
        WireError: naming the fact that is missing or wrong.
    """
    kind = packet.facts.get("kind")
    if not isinstance(kind, str) or kind not in QUESTIONS:
        raise WireError("the kind of the question is not one of this version")
    facts: dict[str, Any] = QUESTIONS[kind](packet.facts, "the question")
    if kind == "facts":
        return facts
    clients = facts["clients"]
    if len(set(clients)) != len(clients):
        raise WireError("the question names a client twice")
    for name in ("versions", "multiplicity"):
        if len(facts.get(name, clients)) != len(clients):
            raise WireError(f"the question has {name} for another number of clients than it names")
    needed = facts["needed"]
    if needed is not None and any(
        version >= 0 and version not in needed.get(one, ())
        for one, version in zip(clients, facts["versions"], strict=True)
    ):
        raise WireError("the question needs a version of a state that it does not list as needed")
    return facts


def refusal_of(packet: Packet) -> str | None:
    """Code of a node's refusal, `session` if it needs the settings; None: it answers.

    Raises:
        WireError: for a refusal that is none of ours.
    """
    if "refused" in packet.facts:
        return str(record({"refused": one_of(*REFUSALS)})(packet.facts, "the refusal")["refused"])
    if "needs" in packet.facts:
        return str(record({"needs": one_of("session")})(packet.facts, "the answer")["needs"])
    return None


def facts_of_answer(packet: Packet, version: str) -> NodeFacts:
    """What a node says of its clients.

    Args:
        packet: the answer.
        version: of lit_fed on the server.

    Raises:
        WireError: if it is of another version, or says something else.
    """
    reader = record({"version": text(64), "facts": lambda value, _: value})
    found = reader(_bare(packet), "the answer")
    if found["version"] != version:
        raise WireError(f"version {found['version'][:20]} of lit_fed, the server {version}; install the same on both")
    return read_facts(found["facts"])


def worked_of_answer(packet: Packet, ids: Collection[int], form: Tree) -> Worked:
    """What some clients of a node made of a phase.

    Args:
        packet: the answer.
        ids: the clients that were asked.
        form: of what comes from each of them.

    Raises:
        WireError: unless each of them has failed, or sent what has this form.
    """
    failures = keyed(number_of_text(0, MOST_NUMBERS), FAILURE, len(ids))
    facts = record(ANSWER | {"failed": failures})(packet.facts, "the answer")
    _check_clients(facts, ids)
    failed = {}
    for one, (kind, stage, name) in facts["failed"].items():
        failed[one] = Failure(one_of("not finite", "error")(kind, "the kind of a failure") == "not finite", stage, name)
    sent = [one for one in ids if one not in failed]
    if failed.keys() - set(ids) or packet.trees.keys() != {str(one) for one in sent}:
        raise WireError("the answer is not one message or failure of each client")
    return Worked(failed, {one: in_form(packet.trees[str(one)], form) for one in sent})


def rows_of_answer(packet: Packet, ids: Collection[int], width: int) -> Tensor:
    """Sums that a node measured, [C, K] float64.

    Args:
        packet: the answer.
        ids: the C clients that were asked, in their order.
        width: K.

    Raises:
        WireError: if it has another form.
    """
    _check_clients(record(ANSWER)(packet.facts, "the answer"), ids)
    if packet.trees.keys() != {"rows"}:
        raise WireError("the answer has no rows, or more than these")
    rows: Tensor = in_form(packet.trees["rows"], [torch.zeros(len(ids), width, dtype=torch.float64)])[0]
    return rows


def kept_of_answer(packet: Packet, ids: Collection[int]) -> None:
    """Check that a node keeps what serving these clients takes.

    Raises:
        WireError: if it says something else.
    """
    facts = record({"kept": CLIENTS})(_bare(packet), "the answer")
    _check_clients({"clients": facts["kept"]}, ids)


def _bare(packet: Packet) -> Mapping[str, Any]:
    if packet.trees:
        raise WireError("the answer has tensors, and none were asked for")
    return packet.facts


def _check_clients(facts: Mapping[str, Any], ids: Collection[int]) -> None:
    if facts["clients"] != list(ids):
        raise WireError("the answer is of other clients than were asked")
