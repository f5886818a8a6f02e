"""Packets over HTTPS: answers, nodes that die, come twice or too late, a server that was started again."""

import os
import socket
import time

import pytest
from background import IN_ORDER, PATIENCE, InBackground, ServingThread, fetch, until

from lit_fed.deployment import https_mailbox
from lit_fed.deployment.https_node import Link
from lit_fed.deployment.https_protocol import WORK
from lit_fed.deployment.https_server import shared_server
from lit_fed.errors import ConfigError

MOST = {"anna": 5_000_000, "ben": 5_000_000}


def reverse(packet):
    return packet[::-1]


def call(server, packets, seconds=PATIENCE, most_bytes=MOST):
    return server.call(packets, most_bytes=most_bytes, seconds=seconds)


def test_nodes_answer_under_the_names_of_their_certificates(start_server, tls):
    server = start_server(tls, listen="localhost:0")
    nodes = [ServingThread(reverse, server.address, tls / name) for name in ("ben", "anna")]
    assert server.wait_for(2, PATIENCE) == ["anna", "ben"]
    large = os.urandom(3_000_000)
    assert call(server, {"anna": b"abc", "ben": large}) == {"anna": b"cba", "ben": large[::-1]}
    assert call(server, {"ben": b""}) == {"ben": b""}
    assert call(server, {}) == {}
    assert sorted(server.said) == ["anna is here", "ben is here"]
    assert nodes[0].said == [f"connected to {server.address}"]


def test_who_does_not_answer_in_time_is_missing_and_answers_for_nobody(start_server, process):
    server = start_server()
    ServingThread(reverse, server.address, None, name="ben")
    anna = process(server)
    assert anna.ask("GET", WORK).status == 204
    waiting = InBackground(call, server, {"anna": b"1", "ben": b"ab"}, seconds=0.3)
    packet = fetch(anna)
    assert waiting.result() == {"ben": b"ba"}
    waiting = InBackground(call, server, {"anna": b"2"})
    for late in (b"late", b"x" * 2_000_000):
        anna.answer(packet, late)
    packet = fetch(anna)
    assert packet.body == b"2"
    anna.answer(packet, b"in time")
    anna.answer(packet, b"again")
    assert waiting.result() == {"anna": b"in time"}


def test_a_killed_node_gets_its_packet_again(start_server, process):
    server = start_server()
    waiting = InBackground(call, server, {"anna": b"work"})
    first = process(server)
    packet = fetch(first)
    first.close()
    until(lambda: server.said == ["anna is here", "anna disconnected before it answered; its question stays open"])
    second = process(server)
    again = fetch(second)
    assert (again.key, again.body) == (packet.key, b"work")
    second.answer(again, b"done")
    assert waiting.result() == {"anna": b"done"}
    assert server.said[2:] == ["anna is here"]
    second.close()
    until(lambda: server.said[3:] == ["anna disconnected"])


def test_a_node_away_gets_its_packet_when_it_comes(start_server):
    server = start_server()
    waiting = InBackground(call, server, {"anna": b"abc"})
    time.sleep(0.1)
    ServingThread(reverse, server.address, None, name="anna")
    assert waiting.result() == {"anna": b"cba"}


def test_a_connection_that_broke_is_no_news(start_server, process, monkeypatch):
    monkeypatch.setattr(https_mailbox, "SECONDS_UNTIL_GONE", 3.0)
    server = start_server()
    waiting = InBackground(call, server, {"anna": b"work"})
    anna = process(server)
    packet = fetch(anna)
    anna.close()
    anna.answer(packet, b"done")
    assert waiting.result() == {"anna": b"done"}
    time.sleep(0.2)
    assert server.said == ["anna is here"]


def test_a_node_at_work_keeps_its_connection_and_others_do_not(start_server, process):
    server = start_server()
    idle, anna = process(server, "ben"), process(server)
    assert idle.ask("GET", WORK).status == 204
    waiting = InBackground(call, server, {"anna": b"work"})
    packet = fetch(anna)
    until(lambda: "ben disconnected" in server.said)
    assert "anna disconnected before it answered; its question stays open" not in server.said
    anna.answer(packet, b"done")
    assert waiting.result() == {"anna": b"done"}


def test_of_two_processes_the_newer_one_goes_on(start_server, process):
    server = start_server()
    older = ServingThread(reverse, server.address, None, name="anna")
    server.wait_for(1, PATIENCE)
    waiting = InBackground(call, server, {"anna": b"work"})
    assert waiting.result() == {"anna": b"krow"}
    newer = process(server)
    assert newer.ask("GET", WORK).status == 204
    assert "another process has come for anna" in older.join()
    assert server.said == ["anna is here", "anna was started twice; the process that came last goes on"]


def test_the_older_process_cannot_answer(start_server, process):
    server = start_server()
    waiting = InBackground(call, server, {"anna": b"work"})
    older, newer = process(server), process(server)
    packet = fetch(older)
    again = fetch(newer)
    with pytest.raises(ConfigError, match="refuses this node: another process has come for anna"):
        older.answer(packet, b"older")
    newer.answer(again, b"newer")
    assert waiting.result() == {"anna": b"newer"}


def test_nodes_find_a_server_that_was_started_again(start_server, tls):
    server = start_server(tls)
    anna = ServingThread(reverse, server.address, tls / "anna", patience=60.0)
    server.wait_for(1, PATIENCE)
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < 10.0
    until(lambda: len(anna.said) == 2)
    again = start_server(tls, listen=server.address)
    assert call(again, {"anna": b"abc"}) == {"anna": b"cba"}
    assert [line.partition(" (")[0] for line in anna.said] == [
        f"connected to {server.address}", f"{server.address} cannot be reached", f"connected to {server.address}",
    ]  # fmt: skip


def test_answers_to_a_server_before_are_for_nobody(start_server, process):
    server = start_server()
    anna = process(server)
    waiting = InBackground(call, server, {"anna": b"before"}, seconds=0.2)
    packet = fetch(anna)
    assert waiting.result() == {}
    server.close()
    again = start_server(listen=server.address)
    waiting = InBackground(call, again, {"anna": b"after"})
    anna._patience = 60.0
    anna.answer(packet, b"late")
    anna.answer(fetch(anna), b"in time")
    assert waiting.result() == {"anna": b"in time"}


def test_a_node_ends_where_there_is_no_server_for_long():
    node = ServingThread(reverse, "127.0.0.1:9", None, name="anna", patience=0.05)
    assert "127.0.0.1:9: cannot be reached for 0.05 s (Connection refused); start it, or" in node.join()
    assert node.said == ["127.0.0.1:9 cannot be reached (Connection refused); trying again for 0.05 s"]


def test_a_node_does_not_send_more_than_is_taken(start_server):
    server = start_server()
    node = ServingThread(lambda packet: packet * 3, server.address, None, name="anna")
    assert call(server, {"anna": b"abc"}, seconds=0.3, most_bytes={"anna": 8}) == {}
    assert node.join() == f"--server {server.address} takes 8 bytes; an answer has 9"


def test_a_large_answer_may_take_longer_than_a_pause_may():
    """What has a limit is how long a connection stands still, not how long all of a body takes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        server = InBackground(slow_reader, listener)
        link = Link(f"127.0.0.1:{listener.getsockname()[1]}", None, "anna", 0.0, lambda line: None)
        link._connection.timeout = 0.5
        start = time.monotonic()
        assert link._try("POST", "/v1/answers/1", b"x" * 12_000_000).status == 204
        assert time.monotonic() - start > link._connection.timeout
        link.close()
        assert server.result() >= 12_000_000


def slow_reader(listener):
    """How many bytes came, of which a few are read at a time."""
    connection, read = listener.accept()[0], 0
    with connection:
        while read < 12_000_000:
            read += len(connection.recv(2**17))
            time.sleep(0.01)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
    return read


def test_waiting_for_nodes_says_who_came(start_server):
    server = start_server()
    with pytest.raises(
        ConfigError, match=f"0.1 s for 1 nodes, and none came; .*`lit-fed client --server {server.address} "
    ):
        server.wait_for(1, 0.1)
    ServingThread(reverse, server.address, None, name="anna")
    server.wait_for(1, PATIENCE)
    with pytest.raises(ConfigError, match=r"for 2 nodes, and 1 \(anna\) came; start the others with"):
        server.wait_for(2, 0.1)


def test_what_a_handler_raises_ends_the_node(start_server):
    server = start_server()

    def handle(packet):
        raise ConfigError("the disk is full")

    node = ServingThread(handle, server.address, None, name="anna")
    assert call(server, {"anna": b""}, seconds=0.3) == {}
    assert node.join() == "the disk is full"


def test_an_interrupt_ends_a_call(start_server, monkeypatch):
    server = start_server()

    def interrupted(future):
        until(lambda: server._mailbox.members)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(server, {"anna": b"1"})
    until(lambda: all(one.packet is None for one in server._mailbox.members.values()))


def test_nodes_end_when_the_training_is_over(start_server):
    """Those that wait for work hear it at once; one that comes later finds no server, as after any other end."""
    server = start_server()
    nodes = [ServingThread(reverse, server.address, None, name=name) for name in ("anna", "ben")]
    server.wait_for(2, PATIENCE)
    begun = time.monotonic()
    server.close(over=True)
    assert time.monotonic() - begun < 1.5
    assert [node.join() for node in nodes] == [IN_ORDER] * 2
    late = ServingThread(reverse, server.address, None, name="carl")
    assert "cannot be reached" in late.join()


def test_nodes_wait_for_a_server_that_was_cut_short(start_server):
    server = start_server()
    node = ServingThread(reverse, server.address, None, name="anna", patience=PATIENCE)
    server.wait_for(1, PATIENCE)
    server.close()
    until(lambda: any("trying again" in line for line in node.said))
    again = start_server(listen=server.address)
    assert again.wait_for(1, PATIENCE) == ["anna"]


def test_the_server_says_at_once_for_whom_it_waits(start_server, process):
    server = start_server(nodes=["anna", "ben"])
    waiting = InBackground(server.wait_for, 2, PATIENCE)
    until(lambda: server.waits == [f"waiting at {server.address} for 2 of 2 nodes (anna, ben)"])
    anna = process(server)
    assert anna.ask("GET", WORK).status == 204
    until(lambda: server.waits[1:] == [f"waiting at {server.address} for 1 of 2 nodes (ben)"])
    ServingThread(reverse, server.address, None, name="ben")
    assert waiting.result() == ["anna", "ben"]
    anna.close()
    until(lambda: "anna disconnected" in server.said)
    waiting = InBackground(call, server, {"anna": b"abc"})
    until(lambda: server.waits[2:] == ["waiting for anna, which is not connected"])
    ServingThread(reverse, server.address, None, name="anna")
    assert waiting.result() == {"anna": b"cba"}


def test_federations_of_one_process_share_a_port():
    """Nodes stay connected from one fit to the next; other options take the port over."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    first = shared_server(address, None, None)
    node = ServingThread(reverse, address, None, name="anna", patience=PATIENCE)
    first.wait_for(1, PATIENCE)
    assert shared_server(address, None, None) is first
    other = shared_server(address, None, ("anna",))
    assert (first.is_open, other.is_open) == (False, True)
    assert other.wait_for(1, PATIENCE) == ["anna"]
    other.close(over=True)
    assert node.join() == IN_ORDER
    last = shared_server(address, None, ("anna",))
    assert last is not other
    last.close()
