"""A thousand packets changed at random, for the server and for a node; FUZZED_PACKETS=1000000 takes an hour."""

import copy
import json
import os
import random
import struct

import pytest
import torch
from attacked import descriptors, header_of, raw, resident
from in_process import InProcess, InProcessFederation, make_nodes, node_folders
from test_runs import fit, module_of
from watched import watched

import lit_fed
from lit_fed.deployment.messages import (
    REFUSALS,
    facts_of_answer,
    kept_of_answer,
    rows_of_answer,
    session_name,
    worked_of_answer,
)
from lit_fed.deployment.node_pool import Most, NodePool
from lit_fed.deployment.remote import implausible_message, implausible_rows
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.system.readers import FormError

NUMBER = int(os.environ.get("FUZZED_PACKETS", "1000"))

VALUES = [
    None, True, False, -1, 0, 1, 2, 7, 2**31 + 1, 2**47, 2**62, 2**63, -(2**63), 1e300, -0.5, 0.5, "", "x", "5",
    "../../x", "/etc/passwd", "\x1b[2J", "\u202e", "float64", "bool", "seen", "unseen", "not finite", "x" * 70_000, [],
    {}, [[]], [0], ["2"], {"5": 5}, {"": None}, [[["float32", [0, 2**47, 2**47]]]], ["float32", [2**40]], "os.system",
]  # fmt: skip
FLOATS = [float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45, 0.0, -1.0, 1e20]


def places(value, path=()):
    """Paths of all values inside of one."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield from places(one, (*path, name))


def in_header(chance, data):
    """One to three values or names in the header are others, are gone, or are new."""
    header, payload = header_of(data)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice([one for one in places(header) if one] or [()])
        if not path:  # nothing is left
            return raw(chance.choice([header, []]), payload)
        inner = header
        for name in path[:-1]:
            inner = inner[name]
        value = copy.deepcopy(chance.choice(VALUES))
        if chance.random() < 0.1:
            del inner[path[-1]]
        elif isinstance(inner, dict) and chance.random() < 0.2:
            inner[chance.choice(["", "x", "0", "5", "refused", "needs", "failed", "../x"])] = value
        else:
            inner[path[-1]] = value
    settings = header.get("facts", {}).get("settings") if isinstance(header.get("facts"), dict) else None
    if settings and chance.random() < 0.8:
        header["facts"]["session"] = session_name(settings)
    return raw(header, payload, level=1)


def in_bytes(chance, data):
    """Some bytes are others, gone or new, before or after compression."""
    length = struct.unpack_from("<8sQ", data)[1]
    inside = chance.random() < 0.5
    whole = bytearray(json.dumps(header_of(data)[0]).encode() if inside else data)
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(whole) + 1)
        kind = chance.randrange(4)
        if kind == 0 and place < len(whole):
            whole[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del whole[place : place + chance.randint(1, 20)]
        elif kind == 2:
            whole[place:place] = chance.randbytes(chance.randint(1, 20))
        else:
            whole[place : place + 8] = struct.pack("<Q", chance.choice([0, 1, 2**31, 2**63, 2**64 - 1]))
    return raw(bytes(whole), data[16 + length :], level=1) if inside else bytes(whole)


def in_tensors(chance, data):
    """Numbers of some tensors are others."""
    packet = from_bytes(data)
    leaves = [leaf for some in packet.trees.values() for leaf in some if leaf.is_floating_point() and leaf.numel()]
    for leaf in chance.sample(leaves, min(len(leaves), 3)):
        flat = leaf.view(-1)
        flat[chance.randrange(len(flat))] = chance.choice(FLOATS)
    return to_bytes(packet)


CHANGES = [in_header, in_header, in_header, in_bytes, in_tensors]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A whole run: folders of nodes, settings, and questions and answers of ben and carl by kind."""
    place, module = tmp_path_factory.mktemp("recorded"), module_of()
    folders = node_folders(place / "data")
    transport = InProcess(make_nodes(folders, place / "states", settings=module.settings))
    fit(place / "run", InProcessFederation(transport), module, rounds=2)
    asked = [
        (from_bytes(question).facts["kind"], question, answer)
        for node, question, answer in transport.log
        if node == "ben" and "needs" not in from_bytes(answer).facts
    ]
    return folders, module, asked


@pytest.fixture
def flat():
    """Memory and descriptors are at the end of a test what they were at its beginning."""
    before = resident(), descriptors()
    yield
    assert resident() - before[0] < 100 * 2**20
    assert descriptors() <= before[1] + 2


def slow_work(data):
    """Whether a question asks for work that takes long: a node does what its server asks, for as long as that takes."""
    try:
        work = from_bytes(data).facts.get("work")
    except FormError:
        return False
    return isinstance(work, dict) and any(isinstance(one, int) and one > 100 for one in work.values())


def test_a_node_survives_changed_questions(recorded, flat, tmp_path, capsys):
    folders, module, asked = recorded
    chance = random.Random(0)
    nodes, codes = {}, set()
    for number in range(NUMBER):
        if number % 100 == 0:  # in part fresh, in part with states
            nodes = make_nodes({"ben": folders["ben"]}, tmp_path / str(number % 300), settings=module.settings)
        kind, question, _ = chance.choice(asked)
        data = chance.choice(CHANGES)(chance, question)
        if slow_work(data):
            continue
        with watched(tmp_path, folders["ben"]) as touched:
            answer = from_bytes(nodes["ben"].handle(data)).facts
        assert not touched, (number, kind)
        assert answer.get("refused", "error") in REFUSALS
        codes.add(answer.get("refused") or ("needs" if "needs" in answer else kind))
        said = capsys.readouterr().err
        assert "Traceback" not in said, (number, kind, said)
        assert said.replace("\n", "").isprintable(), (number, kind, said)
    assert codes >= {"packet", "needs", "train", "states missing"}


class Answers:
    """A transport that has one answer."""

    def call(self, packets, *, most_bytes, seconds):
        return {"ben": self.answer} if len(self.answer) <= most_bytes["ben"] else {}


def read_like_the_server(kind, question, module):
    """Reads an answer to a question of the run, as the server does."""
    ids, rounds = question.facts.get("clients"), module.federation
    ctx = rounds.context("train")

    def worked(answer):
        found = worked_of_answer(answer, ids, worked.form)
        for one, sent in found.sent.items():
            implausible_message(rounds.algorithm, ctx, rounds.shared, one, sent, 20, 10.0)
        return found

    def measured(answer):
        rows = rows_of_answer(answer, ids, 3)
        return implausible_rows(rows, torch.full((len(ids),), 4), is_share=True)

    return {
        "facts": lambda answer: facts_of_answer(answer, lit_fed.__version__, 1000), "train": worked,
        "measure": measured, "keep": lambda answer: kept_of_answer(answer, ids),
    }[kind], worked  # fmt: skip


def test_the_server_survives_changed_answers(recorded, flat, tmp_path, capsys):
    _, module, asked = recorded
    chance, transport = random.Random(1), Answers()
    pool, outcomes = NodePool(transport, missing="drop", seconds=0.0, patience=0.0), set()
    for number in range(NUMBER):
        kind, question, answer = chance.choice(asked)
        packet = Packet(from_bytes(question).facts | {"kind": kind})
        read, worked = read_like_the_server(kind, packet, module)
        leaves = next(iter(from_bytes(answer).trees.values()), [])
        worked.form = [[leaves[:-4], *leaves[-4:-1]], {"loss": leaves[-1]}] if kind == "train" else None
        transport.answer = chance.choice(CHANGES)(chance, answer)
        with watched(tmp_path) as touched:
            most = {"ben": Most(2**22, 2**17)}
            found = pool.ask({"ben": packet}, most, lambda _, one, read=read: read(one), may_drop=True)
        assert not touched, (number, kind)
        outcomes.add((kind, bool(found)))
        said = capsys.readouterr().err
        assert said.replace("\n", "").isprintable(), (number, kind, said)
        assert len(said) < 1000
    assert {one for _, one in outcomes} == {True, False}
    assert {kind for kind, _ in outcomes} == {"facts", "train", "measure", "keep"}
