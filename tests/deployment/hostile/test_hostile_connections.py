"""Raw bytes over a connection, against both ends: neither reads without a limit, or stops. One line is one attack."""

import contextlib
import http.client
import itertools
import os
import socket
import ssl
import threading
import time

import pytest
from attacked import descriptors, resident
from background import PATIENCE, InBackground, ServingThread, connected, fetch, read_to_end, request, until

from lit_fed.deployment import https_mailbox, https_node, https_server
from lit_fed.deployment.https_node import Link, run_node
from lit_fed.deployment.https_protocol import ANSWERS, NAME, PACKET, PROCESS, WORK, Limits, address_of
from lit_fed.deployment.https_server import HttpsServer
from lit_fed.errors import ConfigError

QUICK = Limits(most_bytes=10_000_000, poll_seconds=0.3, idle_seconds=0.3, stall_seconds=0.2, least_speed=50_000)
ESCAPES = "\x1b]0;owned\x07\x1b[2J"


GET, POST = f"GET {WORK} HTTP/1.1", f"POST {ANSWERS}{'0' * 32} HTTP/1.1"

TO_SERVERS = {
    "silence: nothing": b"",
    "silence: half a line": b"GET /v1/wo",
    "silence: half a header": b"GET /v1/work HTTP/1.1\r\nLit-Fed-Na",
    "garbage: zeros": bytes(5000),
    "garbage: all bytes": bytes(range(256)) * 20,
    "garbage: empty lines": b"\r\n" * 5000,
    "garbage: TLS in TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "garbage: HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    "garbage: HTTP/0.9": b"GET /\r\n\r\n",
    "garbage: a version of HTTP": b"GET /v1/work HTTP/9.9\r\n\r\n",
    "lines: a long path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "lines: a long method": b"A" * 100_000,
    "lines: a long header": b"GET /v1/work HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "lines: a header without end": b"GET /v1/work HTTP/1.1\r\nX: " + b"a" * 5_000_000,
    "lines: many headers": request(GET, *(f"X-{one}: 1" for one in range(5000))),
    "lines: folded headers": request(GET, "X: 1\r\n 2\r\n 3"),
    "lines: a header without a name": request(GET, ": 1"),
    "lines: a header with a null": request(GET, "X: a\0b"),
    "lines: escape sequences": request(GET, f"X: {ESCAPES}"),
    "paths: another": request("GET /etc/passwd HTTP/1.1"),
    "paths: upwards": request("GET /v1/work/../../etc/passwd HTTP/1.1"),
    "paths: of another host": request("GET http://elsewhere.example/v1/work HTTP/1.1"),
    "paths: escape sequences": request(f"GET /{ESCAPES} HTTP/1.1"),
    "paths: a tunnel": request("CONNECT elsewhere.example:443 HTTP/1.1"),
    "methods: unknown": request("BREW /v1/work HTTP/1.1"),
    "methods: TRACE": request("TRACE /v1/work HTTP/1.1"),
    "names: a path": request(GET, name="../../x"),
    "names: escape sequences": request(GET, name=ESCAPES),
    "names: long": request(GET, name="x" * 5000),
    "names: two": request(GET, f"{NAME}: anna"),
    "processes: none": request(GET, process=""),
    "processes: long": request(GET, process="x" * 65),
    "lengths: negative": request(POST, "Content-Length: -1"),
    "lengths: no number": request(POST, "Content-Length: many"),
    "lengths: two": request(POST, "Content-Length: 1", "Content-Length: 2", body=b"xx"),
    "lengths: 2**80": request(POST, f"Content-Length: {2**80}"),
    "lengths: of a question": request(GET, "Content-Length: 5", body=b"hello"),
    "lengths: both": request(POST, "Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks: of no size": request(POST, "Transfer-Encoding: chunked", body=b"zz\r\n\r\n"),
    "chunks: of 2**80 bytes": request(POST, "Transfer-Encoding: chunked", body=b"f" * 20 + b"\r\n\r\n"),
    "chunks: of many": request(POST, "Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 5000),
    "bodies: compressed": request(POST, "Content-Encoding: gzip", "Content-Length: 3", body=b"abc"),
    "bodies: expected": request(POST, "Expect: 100-continue", "Content-Length: 100000"),
    "bodies: to be upgraded": request(GET, "Connection: Upgrade", "Upgrade: websocket", body=b"x" * 100_000),
    "bodies: of nobody's question": request(POST, "Content-Length: 5", body=b"hello"),
    "pipelines: ten thousand questions": request(GET) * 10_000,
}  # fmt: skip


def reply(status="200 OK", *headers, body=b""):
    """A server's reply, as bytes."""
    lines = [f"HTTP/1.1 {status}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


ID, ENDLESS = f"{PACKET}: {'a' * 32}", b"x" * 2**20

TO_NODES = {  # a reply, and what is sent behind it for ever
    "garbage: nothing": (b"", b""),
    "garbage: zeros": (bytes(5000), b""),
    "garbage: another protocol": (b"SSH-2.0-OpenSSH_9.9\r\n", b""),
    "garbage: escape sequences": (f"HTTP/1.1 {ESCAPES}\r\n\r\n".encode(), b""),
    "garbage: a status of text": (b"HTTP/1.1 yes OK\r\n\r\n", b""),
    "garbage: HTTP/9.9": (b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "lengths: none": (reply("200 OK", ID), ENDLESS),
    "lengths: negative": (reply("200 OK", ID, "Content-Length: -1"), ENDLESS),
    "lengths: no number": (reply("200 OK", ID, "Content-Length: many"), ENDLESS),
    "lengths: 5.5 GB": (reply("200 OK", ID, f"Content-Length: {5_500_000_000}"), ENDLESS),
    "lengths: 2**80": (reply("200 OK", ID, f"Content-Length: {2**80}"), ENDLESS),
    "lengths: too few bytes": (reply("200 OK", ID, "Content-Length: 100", body=b"abc"), b""),
    "chunks: without end": (reply("200 OK", ID, "Transfer-Encoding: chunked"), b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n"),
    "chunks: of 2**80 bytes": (reply("200 OK", ID, "Transfer-Encoding: chunked", body=b"f" * 20 + b"\r\n"), ENDLESS),
    "chunks: and a length": (reply("200 OK", ID, "Transfer-Encoding: chunked", "Content-Length: 5"), ENDLESS),
    "headers: without end": (b"HTTP/1.1 200 OK\r\nX: ", ENDLESS),
    "headers: many": (b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n" * 1000),
    "headers: a status line without end": (b"HTTP/1.1 200 ", ENDLESS),
    "ids: none": (reply("200 OK", "Content-Length: 3", body=b"abc"), b""),
    "ids: a path": (reply("200 OK", f"{PACKET}: ../../x", "Content-Length: 3", body=b"abc"), b""),
    "ids: another request": (reply("200 OK", f"{PACKET}: a HTTP/1.1\tX", "Content-Length: 3", body=b"abc"), b""),
    "limits: no number": (reply("200 OK", ID, "Lit-Fed-Most-Bytes: x", "Content-Length: 0"), b""),
    "statuses: to another place": (reply("302 Found", "Location: http://elsewhere.example/", "Content-Length: 0"), b""),
    "statuses: unknown": (reply("299 Fine", "Content-Length: 0"), b""),
    "statuses: another protocol": (reply("101 Switching Protocols", "Upgrade: x"), ENDLESS),
    "statuses: a server's error without end": (reply("503 Busy"), ENDLESS),
    "refusals: without end": (reply("403 Forbidden"), ENDLESS),
    "refusals: of a gigabyte": (reply("403 Forbidden", f"Content-Length: {2**30}"), ENDLESS),
    "refusals: escape sequences": (reply("403 Forbidden", "Content-Length: 20", body=(ESCAPES * 2).encode()[:20]), b""),
    "refusals: long": (reply("403 Forbidden", "Content-Length: 60000", body=b"n" * 60_000), b""),
}  # fmt: skip


# ---------------------------------------------------------------------- the server's end
@pytest.fixture(scope="module")
def servers(tls):
    """A server without and one with certificates, which all attacks meet one after another."""
    said = []
    made = {kind: HttpsServer("127.0.0.1:0", folder, limits=QUICK, say=said.append) for kind, folder in
            (("plain", None), ("tls", tls))}  # fmt: skip
    honest = {kind: node_of(one, folder) for (kind, one), folder in zip(made.items(), (None, tls), strict=True)}
    yield made, honest, said
    for one in (*honest.values(), *made.values()):
        one.close()


OPEN: list = []


@pytest.fixture(autouse=True)
def _closed():
    """Connections of a test are closed at its end."""
    yield
    while OPEN:
        OPEN.pop().close()


def joined(server, tls=None, node="ben"):
    """A connection, of a node that has certificates, which is closed at the end of the test."""
    OPEN.append(connected(server))
    if tls is not None:
        context = ssl.create_default_context(cafile=tls / "ca.pem")
        context.load_cert_chain(tls / node / "node.pem", tls / node / "node.key")
        OPEN.append(context.wrap_socket(OPEN[-1], server_hostname=address_of(server.address, "")[0]))
    return OPEN[-1]


def sent_and_read(connection, data, seconds=5.0):
    """What comes back until the other side closes the connection, as it has to, or for so long."""
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        connection.sendall(data)
    return read_to_end(connection, seconds)


def node_of(server, tls, name="anna"):
    """Asks for work as an honest node does, in its own process."""
    return Link(server.address, tls and tls / name, None if tls else name, 0.0, lambda line: None)


@pytest.mark.parametrize("kind", ["plain", "tls"])
@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in TO_SERVERS.items()])
def test_the_server_goes_on(data, kind, servers, tls, capfd):
    made, honest, said = servers
    folder = tls if kind == "tls" else None
    with joined(made[kind], folder) as stranger:
        back = sent_and_read(stranger, data, 2.0)
    assert b"Traceback" not in back
    assert b"\x1b" not in back
    assert not back.startswith(b"HTTP/1.1 5")
    assert len(back) < 2**20
    assert honest[kind].ask("GET", WORK).status == 204
    assert capfd.readouterr() == ("", "")
    assert all(line.isprintable() for line in said)


def test_outsiders_have_no_request(servers, tls):
    """Without a certificate nothing is read, whatever comes."""
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", TO_SERVERS["garbage: TLS in TLS"], bytes(100_000)):
        with joined(servers[0]["tls"]) as stranger:
            stranger.settimeout(https_server.HANDSHAKE_SECONDS + 5)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
            assert b"HTTP" not in sent_and_read(stranger, b"", 15.0)


# ---------------------------------------------------------------------- one node against the others
@pytest.fixture
def server(start_server, tls):
    return start_server(tls, limits=QUICK)


def test_one_node_cannot_take_all_connections(server, tls, monkeypatch):
    """A slow answer under ever new names of processes: two connections stay at most, and twenty processes a minute."""
    waiting = InBackground(server.call, {"ben": b"work"}, most_bytes={"ben": 9_000_000}, seconds=10.0)
    with contextlib.closing(node_of(server, tls, "ben")) as ben:
        packet = fetch(ben)
    before, held = descriptors(), []
    for number in range(40):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            connection = joined(server, tls)
            held.append(connection)
            path = f"POST {ANSWERS}{packet.key} HTTP/1.1"
            connection.sendall(request(path, "Content-Length: 9000000", body=b"x", process=f"p{number}"))
    own = len(held)
    until(lambda: descriptors() - before - own <= 2)
    ServingThread(lambda question: question[::-1], server.address, tls / "anna")
    assert server.call({"anna": b"abc"}, most_bytes={"anna": 9}, seconds=PATIENCE) == {"anna": b"cba"}
    replies = [sent_and_read(one, b"") for one in held]
    assert sum(b"503" in one for one in replies) >= 40 - https_mailbox.MOST_CHANGES
    assert any("ben was started twice" in line for line in server.said)
    assert len(server.said) < 10, "the log is not filled, either"
    for one in held:
        one.close()
    server.close()
    with contextlib.suppress(Exception):
        waiting.result()


@pytest.mark.parametrize("line", ["GET /elsewhere HTTP/1.1", POST])
def test_refused_requests_hold_no_descriptor(start_server, tls, line):
    """Their senders keep their side open, and do not agree that the connection is closed."""
    server = start_server(tls, limits=Limits(poll_seconds=0.3, idle_seconds=60.0))
    before, held = descriptors(), [joined(server, tls) for _ in range(15)]
    for number, one in enumerate(held):
        body = ("Content-Length: 10",) if line == POST else ()
        one.sendall(request(line, *body, body=b"x" * 10 * len(body), process=f"p{number}"))
    until(lambda: descriptors() - before <= len(held) + 2)  # those of this side alone
    for one in held:
        one.close()


def test_a_node_that_was_started_too_often_comes_later(server, tls, monkeypatch):
    monkeypatch.setattr(https_mailbox, "MOST_CHANGES", 3)
    monkeypatch.setattr(https_mailbox, "CHANGES_SECONDS", 0.5)
    for _ in range(3):
        with contextlib.closing(node_of(server, tls)) as link:
            link.ask("GET", WORK)
    said = []
    link = Link(server.address, tls / "anna", None, PATIENCE, said.append)
    with contextlib.closing(link):
        assert link.ask("GET", WORK).status == 204
    assert "too many processes came for anna" in said[0]


def test_of_two_connections_of_one_process_the_newer_one_stays(server, tls):
    older = joined(server, tls)
    older.sendall(request(GET))
    assert older.recv(100).startswith(b"HTTP/1.1 204")
    newer = joined(server, tls)
    newer.sendall(request(GET))
    assert newer.recv(100).startswith(b"HTTP/1.1 204")
    assert sent_and_read(older, b"", 2.0) == b""
    newer.sendall(request(GET))
    assert newer.recv(100).startswith(b"HTTP/1.1 204")
    newer.close()


def test_an_answer_has_a_least_speed(start_server, tls):
    """A byte now and then does not keep an answer open for as long as it likes."""
    limits = Limits(most_bytes=10_000_000, poll_seconds=0.3, idle_seconds=0.5, stall_seconds=0.3, least_speed=100_000)
    server = start_server(tls, limits=limits)
    waiting = InBackground(server.call, {"ben": b"work"}, most_bytes={"ben": 50_000}, seconds=PATIENCE)
    with contextlib.closing(node_of(server, tls, "ben")) as ben:
        packet = fetch(ben)
        process = ben._headers[PROCESS]
    connection, begun = joined(server, tls), time.monotonic()
    connection.sendall(request(f"POST {ANSWERS}{packet.key} HTTP/1.1", "Content-Length: 50000", process=process))
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while time.monotonic() - begun < 5.0:
            connection.sendall(b"x")
            time.sleep(0.1)
    assert time.monotonic() - begun < 5.0
    connection.close()
    server.close()
    with contextlib.suppress(Exception):
        waiting.result()


def test_descriptors_are_kept_for_the_process(start_server, monkeypatch):
    """Where the system's limit is near, new connections are closed, and those that there are go on."""
    server = start_server(limits=Limits(poll_seconds=0.3, idle_seconds=5.0))
    node = ServingThread(lambda packet: packet[::-1], server.address, None, name="anna")
    server.wait_for(1, PATIENCE)
    free = os.dup(0)
    os.close(free)
    monkeypatch.setattr("os.sysconf", lambda name: free + https_server.SPARE)
    strangers = [joined(server) for _ in range(20)]
    assert [sent_and_read(one, b"") for one in strangers] == [b""] * 20
    assert server.call({"anna": b"abc"}, most_bytes={"anna": 9}, seconds=PATIENCE) == {"anna": b"cba"}
    assert sum("files may be open (ulimit -n)" in line for line in server.said) == 1
    for one in strangers:
        one.close()
    assert node.ended is None


def test_one_address_leaves_places_for_strangers_of_others(start_server):
    server = start_server(limits=Limits(poll_seconds=0.3, idle_seconds=5.0, per_address=3))
    strangers = [joined(server) for _ in range(6)]
    until(lambda: any("3 are open without a request" in line for line in server.said))
    ended = [one for one in strangers if not sent_and_read_soon(one)]
    assert len(ended) == 3
    for one in strangers:
        one.close()


def sent_and_read_soon(connection):
    """Whether a connection is still open."""
    connection.settimeout(0.2)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


# ---------------------------------------------------------------------- the node's end
class LyingServer:
    """Replies the same to every request, and then sends something else for as long as anybody reads it.

    Attributes:
        sent: bytes in all.
    """

    def __init__(self, first, then):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent, self._parts = 0, (first, then)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5.0)
                connection.recv(2**16)
                for part in itertools.chain(self._parts[:1], itertools.repeat(self._parts[1])):
                    if not part and part is self._parts[1]:
                        break
                    self.sent += connection.send(part)
                    if self.sent > 2**28:
                        return

    def close(self):
        self._listener.close()


@pytest.mark.parametrize("parts", [pytest.param(parts, id=name) for name, parts in TO_NODES.items()])
def test_a_node_reads_what_it_asked_for_and_no_more(parts, monkeypatch):
    monkeypatch.setattr(https_node, "SECONDS", 0.5)
    said, before = [], resident()
    server = LyingServer(*parts)
    with contextlib.closing(server), pytest.raises(ConfigError) as error:
        run_node(lambda packet: packet, Link(server.address, None, "anna", 0.1, said.append))
    for line in (str(error.value), *said):
        assert line.isprintable()
        assert len(line) < 1000
    assert server.sent < 2**26
    assert resident() - before < 2**26


def test_a_node_is_not_kept_busy(monkeypatch):
    """A server that has nothing to ask, and says so at once, is asked fifty times a second and no more."""
    server = LyingServer(reply("204 No Content", "Connection: close"), b"")
    asked, connect = [], http.client.HTTPConnection.connect
    monkeypatch.setattr(http.client.HTTPConnection, "connect", lambda self: asked.append(1) or connect(self))
    threading.Timer(1.0, server.close).start()
    with pytest.raises(ConfigError, match="cannot be reached"):
        run_node(lambda packet: packet, Link(server.address, None, "anna", 0.1, lambda line: None))
    assert len(asked) < 80
