"""The transport over Flower's Grid, with a Grid that loses, delays and spoils messages; without flwr."""

import re
from types import SimpleNamespace

import pytest

from lit_fed.deployment import flower_transport
from lit_fed.deployment.flower_transport import FlowerTransport
from lit_fed.errors import ConfigError

PAUSE = 0.002
ANNA, BEN = 11, 2**64 - 5


class Lossy:
    """A Grid of nodes that answer in capitals, as soon as they are looked at.

    Attributes:
        nodes: what is told of each node that is there.
        fates: what becomes of the next messages of each node: `answer`, `lose`, `late` (one look more), a number, which
            is an error of Flower, or what is answered in the place of the answer.
        pushed: of each message its node, packet and lifetime.
    """

    def __init__(self, *nodes):
        self.nodes = {node_id: SimpleNamespace(node_id=node_id, name=name) for name, node_id in nodes}
        self.fates, self.pushed, self.waiting = {}, [], {}

    def get_nodes(self):
        return list(self.nodes.values())

    def push_messages(self, messages):
        for message in messages:
            self.pushed.append(message)
            self.waiting[str(len(self.pushed))] = (message, (self.fates.get(message[1]) or ["answer"]).pop(0))
        return [str(len(self.pushed))]

    def pull_messages(self, message_ids):
        found = []
        for number in message_ids:
            (data, node_id, _), fate = self.waiting.get(number, ((b"", 0, 0), "lose"))
            if fate == "late":
                self.waiting[number] = (self.waiting[number][0], "answer")
            elif fate != "lose":
                del self.waiting[number]
                found.append(reply(number, node_id, data.upper() if fate == "answer" else fate))
        return found


def reply(number, node_id, said):
    metadata = SimpleNamespace(reply_to_message_id=number, src_node_id=node_id)
    error = SimpleNamespace(code=said) if isinstance(said, int) else None
    return SimpleNamespace(metadata=metadata, error=error, has_error=lambda: error is not None, said=said)


@pytest.fixture
def grid():
    return Lossy(("anna", ANNA), ("ben", BEN))


def ask(transport, seconds=5.0, **packets):
    packets = packets or {"anna": b"a", "ben": b"b"}
    return transport.call(packets, most_bytes=dict.fromkeys(packets, 10), seconds=seconds)


@pytest.fixture
def transport(grid):
    made = FlowerTransport(grid, PAUSE)
    assert made.wait_for(2, 5.0) == ["anna", "ben"]
    return made


@pytest.fixture(autouse=True)
def _without_flower(monkeypatch):
    """Messages are tuples, and pauses short."""
    monkeypatch.setattr(flower_transport, "FIRST_PAUSE", PAUSE)
    monkeypatch.setattr(flower_transport, "message_of", lambda data, node_id, seconds: (data, node_id, seconds))
    monkeypatch.setattr(flower_transport, "bytes_of", lambda one: one.said if isinstance(one.said, bytes) else None)


def test_each_node_gets_its_packet_once(transport, grid):
    grid.fates = {ANNA: ["late"]}
    assert ask(transport) == {"anna": b"A", "ben": b"B"}
    assert [one[:2] for one in grid.pushed] == [(b"a", ANNA), (b"b", BEN)]


@pytest.mark.parametrize("code", [5, 8, 2])
def test_errors_are_followed_by_the_same_packet(transport, grid, code, capsys):
    grid.fates = {BEN: [code, code]}
    assert ask(transport) == {"anna": b"A", "ben": b"B"}
    assert [one[:2] for one in grid.pushed] == [(b"a", ANNA), *[(b"b", BEN)] * 3]
    assert re.fullmatch(rf"lit_fed: \S+Z node ben: Flower's error {code}, sent again\n", capsys.readouterr().err)


def test_a_message_that_is_lost_is_sent_again_by_the_next_call(transport, grid):
    grid.fates = {BEN: ["lose"]}
    assert ask(transport, 0.02) == {"anna": b"A"}
    assert ask(transport, ben=b"b") == {"ben": b"B"}
    assert len(grid.pushed) == 3


def test_a_node_that_has_come_anew_gets_its_packet_again(transport, grid):
    grid.nodes[BEN].last_activated_at = "1"
    grid.fates = {BEN: ["lose"]}
    grid.nodes[ANNA].last_activated_at = "1"
    pull, looks = grid.pull_messages, []

    def restarted(numbers):
        looks.append(numbers)
        grid.nodes[BEN].last_activated_at = str(1 + len(looks) // 3)
        return pull(numbers)

    grid.pull_messages = restarted
    assert ask(transport) == {"anna": b"A", "ben": b"B"}
    assert [one[1] for one in grid.pushed] == [ANNA, BEN, BEN]


def test_a_late_answer_counts_for_its_packet_and_no_other(transport, grid):
    grid.fates = {BEN: ["lose"] * 3}
    assert ask(transport, 0.01, ben=b"b") == {}
    assert ask(transport, 0.01, ben=b"b") == {}
    grid.waiting["1"] = (grid.waiting["1"][0], "answer")
    assert ask(transport, ben=b"b") == {"ben": b"B"}
    grid.fates = {BEN: ["lose"]}
    assert ask(transport, 0.01, ben=b"c") == {}
    number = str(len(grid.pushed))
    grid.waiting[number] = (grid.waiting[number][0], "answer")
    assert ask(transport, ben=b"d") == {"ben": b"D"}


def test_a_node_that_is_away_gets_its_packet_when_it_comes(transport, grid):
    away = grid.nodes.pop(BEN)
    assert ask(transport, 0.02) == {"anna": b"A"}
    assert [one[1] for one in grid.pushed] == [ANNA]
    grid.nodes[BEN] = away
    assert ask(transport, ben=b"b") == {"ben": b"B"}


@pytest.mark.parametrize("spoilt", [b"x" * 11, None], ids=["too long", "no bytes"])
def test_answers_that_cannot_be_used_are_none(transport, grid, spoilt, capsys):
    grid.fates = {ANNA: [spoilt, b"fine"]}
    assert ask(transport, anna=b"a") == {"anna": b"fine"}
    assert "node anna: " in capsys.readouterr().err


def test_a_reply_is_that_of_the_node_that_was_asked_whatever_stands_in_it(transport, grid):
    """Flower knows who answered which message; the reply itself is made by the node."""
    pull = grid.pull_messages

    def forged(numbers):
        assert len(numbers) == 1
        return [reply("1", ANNA, one.said) for one in pull(numbers)]

    grid.pull_messages = forged
    assert ask(transport) == {"anna": b"A", "ben": b"B"}


def test_a_message_that_the_superlink_does_not_take_is_tried_again(transport, grid):
    push = grid.push_messages

    def refuse(messages):
        grid.push_messages = push
        return [None]

    grid.push_messages = refuse
    assert ask(transport, anna=b"a") == {"anna": b"A"}


def test_messages_end_after_the_time_in_which_their_answer_can_be_used(transport, grid):
    ask(transport, 30.0)
    assert all(30 < one[2] <= 600 for one in grid.pushed)


def test_too_few_nodes_are_an_error_that_names_those_that_came(grid):
    with pytest.raises(ConfigError, match=r"2 of 3 SuperNodes are there after 0.01 s \(anna, ben\)"):
        FlowerTransport(grid, PAUSE).wait_for(3, 0.01)


def test_nodes_without_a_name_of_their_own_go_by_their_numbers():
    grid = Lossy(("", 7), ("anna", 9), ("anna", 8), ("../x", 6))
    transport = FlowerTransport(grid, PAUSE)
    assert transport.wait_for(4, 1.0) == ["6", "7", "8", "anna"]
    assert ask(transport, **{"8": b"a"}) == {"8": b"A"}
    assert grid.pushed[0][1] == 8
