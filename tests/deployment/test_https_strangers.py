"""What the HTTPS transport does with strangers, liars and garbage: it says why, once, and goes on."""

import contextlib
import http.client
import os
import socket
import ssl
import time
from functools import partial

import pytest
from background import PATIENCE, QUICK, InBackground, ServingThread, connected, read_to_end, request, until

from lit_fed.deployment import https_protocol
from lit_fed.deployment.certificates import make_certificates
from lit_fed.deployment.https_node import Link
from lit_fed.deployment.https_protocol import ANSWERS, NAME, PROCESS, WORK, address_of, is_loopback, version_headers
from lit_fed.deployment.https_server import HttpsServer
from lit_fed.errors import ConfigError

HEADERS = {**version_headers(), NAME: "anna", PROCESS: "p1"}
request = partial(request, name="anna")


@pytest.fixture
def plain(start_server):
    """A server without certificates."""
    return start_server()


@pytest.fixture
def still_serves():
    """Whether a node is served as if nothing had happened."""

    def check(server):
        ServingThread(lambda packet: packet[::-1], server.address, None, name="ben")
        assert server.call({"ben": b"abc"}, most_bytes={"ben": 9}, seconds=PATIENCE) == {"ben": b"cba"}

    return check


def asked(server, method, path, body=None, headers=HEADERS):
    """Status and text of what a server says to a request."""
    connection = http.client.HTTPConnection(server.address, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def work(connection):
    """What a server says to the question for work."""
    connection.request("GET", WORK, headers=HEADERS)
    return connection.getresponse()


# ---------------------------------------------------------------------- certificates
@pytest.fixture(scope="module")
def other_tls(tmp_path_factory):
    """Certificates of another federation, whose server is another host."""
    folder = tmp_path_factory.mktemp("other")
    make_certificates(["elsewhere.example"], ["anna"], folder)
    return folder


def folder_of(place, pair, authority):
    """A node's folder from a pair, without its suffixes, and a CA's certificate."""
    place.mkdir()
    for name, source in (
        ("node.pem", f"{pair}.pem"), ("node.key", f"{pair}.key"), ("ca.pem", authority / "ca.pem"),
    ):  # fmt: skip
        (place / name).symlink_to(source)
    return place


def refused(server, folder):
    """Why a node ends that a server does not let in, or that does not trust the server."""
    return ServingThread(bytes, server.address, folder, patience=2.0).join()


def test_certificates_of_another_authority_are_refused(start_server, tls, other_tls, tmp_path):
    server = start_server(tls)
    stranger = folder_of(tmp_path / "stranger", other_tls / "anna" / "node", tls)
    assert "certificates do not fit (Remote end closed" in refused(server, stranger)
    until(lambda: server.said)
    assert server.said == ["refused a connection from 127.0.0.1: CERTIFICATE_VERIFY_FAILED"]
    assert "certificates do not fit (self-signed certificate in certificate chain)" in refused(
        server, other_tls / "anna"
    )
    assert server.wait_for(0, 0.0) == []


def test_a_server_of_another_host_is_refused(start_server, other_tls):
    said = refused(start_server(other_tls), other_tls / "anna")
    assert "certificates do not fit (IP address mismatch, certificate is not valid for '127.0.0.1')" in said


def test_a_server_s_certificate_is_no_node_s_and_the_other_way_round(start_server, tls, tmp_path):
    server = start_server(tls)
    thief = folder_of(tmp_path / "thief", tls / "server", tls)
    assert "certificates do not fit" in refused(server, thief)
    for name in ("pem", "key"):
        (tmp_path / f"server.{name}").symlink_to(tls / "anna" / f"node.{name}")
    (tmp_path / "ca.pem").symlink_to(tls / "ca.pem")
    assert "certificates do not fit (unsuitable certificate purpose)" in refused(start_server(tmp_path), tls / "ben")


def test_a_certificate_that_ends_soon_is_told(start_server, tmp_path):
    make_certificates(["127.0.0.1"], ["anna"], tmp_path, days=5)
    server = start_server(tmp_path)
    ServingThread(bytes, server.address, tmp_path / "anna")
    server.wait_for(1, PATIENCE)
    assert server.said == ["anna is here; its certificate ends in 5 days"]


def test_without_a_certificate_or_with_old_tls_there_is_no_answer(start_server, tls, process):
    server = start_server(tls, listen="localhost:0")
    for options in ({}, {"maximum_version": ssl.TLSVersion.TLSv1_2, "pair": True}):
        context = ssl.create_default_context(cafile=tls / "ca.pem")
        if options:
            context.maximum_version = options["maximum_version"]
            context.load_cert_chain(tls / "anna" / "node.pem", tls / "anna" / "node.key")
        connection = http.client.HTTPSConnection(server.address, timeout=PATIENCE, context=context)
        with contextlib.closing(connection), pytest.raises((ssl.SSLError, ConnectionError)):
            work(connection)
    with connected(server) as stranger:
        stranger.sendall(b"GET /v1/work HTTP/1.1\r\n\r\n")
        assert b"200" not in read_to_end(stranger)
    ben = process(server, tls=tls / "ben")
    ben._headers[NAME] = "anna"  # says nothing beside a certificate
    assert ben.ask("GET", WORK).status == 204
    until(lambda: len(server.said) == 4)
    assert server.wait_for(1, 1.0) == ["ben"]
    reasons = {line.partition("127.0.0.1: ")[2] for line in server.said if line != "ben is here"}
    assert reasons == {"PEER_DID_NOT_RETURN_A_CERTIFICATE", "UNSUPPORTED_PROTOCOL", "HTTP_REQUEST"}


def test_names_that_are_not_on_the_list_are_refused(start_server, tls):
    server = start_server(tls, nodes=["ben", "carl"])
    assert "refuses this node: the server does not take in anna" in refused(server, tls / "anna")
    ServingThread(bytes, server.address, tls / "ben")
    assert server.wait_for(1, PATIENCE) == ["ben"]
    server.call({"anna": b"secret"}, most_bytes={"anna": 1}, seconds=0.0)
    assert "does not take in anna" in refused(server, tls / "anna")


# ---------------------------------------------------------------------- addresses
def test_plain_http_is_for_this_machine(tls, tmp_path, start_server):
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(ConfigError, match=r"other machines could reach it.*--data.dataset.tls DIR"):
            HttpsServer(listen, None)
    start_server(listen="localhost:0")
    with pytest.raises(ConfigError, match=r"--server server.example:8443 is another machine; give --tls DIR"):
        Link("server.example:8443", None, "anna", 0.0, print)
    with pytest.raises(ConfigError, match="neither --tls nor --name is given"):
        Link("localhost:8443", None, None, 0.0, print)
    with pytest.raises(ConfigError, match=r"--name '../anna': no name for a node; give at most 64 letters"):
        Link("localhost:8443", None, "../anna", 0.0, print)
    with pytest.raises(ConfigError, match=r"no server.pem, server.key in it; `lit-fed certificates` writes them"):
        HttpsServer("127.0.0.1:0", tls / "anna")
    for name in ("server.pem", "server.key", "ca.pem"):
        (tmp_path / name).write_text("nothing")
    with pytest.raises(ConfigError, match=r"its certificates cannot be used \(.+\); make them anew"):
        HttpsServer("127.0.0.1:0", tmp_path)


def test_a_port_that_is_taken_is_refused(plain):
    with pytest.raises(ConfigError, match=r"--data.dataset.listen 127.0.0.1:.* Address already in use; give another"):
        HttpsServer(plain.address, None)


def test_addresses():
    assert address_of("server.example:8443", "") == ("server.example", 8443)
    assert address_of("[::1]:0", "") == ("::1", 0)
    ports = ["8443", ":8443", "server.example", "server:port", "server:70000"]
    for wrong in [*ports, "::1:80", "https://server:80", "a b:1"]:
        with pytest.raises(ConfigError, match=r"--server .*: no address; give HOST:PORT"):
            address_of(wrong, "--server")
    assert [is_loopback(host) for host in ("127.0.0.2", "::1", "localhost")] == [True] * 3
    assert [is_loopback(host) for host in ("10.0.0.1", "a.example")] == [False] * 2


# ---------------------------------------------------------------------- requests
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"), ("GET", "/v1/work?x=1"), ("POST", WORK), ("PUT", ANSWERS + "1"), ("GET", "/v1/../etc"),
        ("OPTIONS", "*"),
    ],
)  # fmt: skip
def test_there_are_two_paths(plain, method, path):
    assert asked(plain, method, path) == (404, "there is nothing here")


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"Lit-Fed-Version": "0.0.1"}, 426, "install the same version at the node"),
        ({"Lit-Fed-Protocol": "2"}, 426, "install the same version at the node"),
        ({NAME: "../anna"}, 403, "no name of a node"),
        ({NAME: "x" * 65}, 403, "no name of a node"),
        ({PROCESS: ""}, 400, "the process has no name"),
        ({PROCESS: "x" * 65}, 400, "the process has no name"),
    ],
)
def test_headers_that_will_not_do_are_refused(plain, changed, status, said):
    answer = asked(plain, "GET", WORK, headers={**HEADERS, **changed})
    assert answer[0] == status
    assert said in answer[1]


def test_a_node_of_another_version_says_so_and_ends(plain, monkeypatch):
    link = Link(plain.address, None, "anna", 0.0, print)
    link._headers["Lit-Fed-Version"] = "0.0.1"
    with pytest.raises(
        ConfigError, match=r"refuses this node: this server runs lit_fed [\d.]+; install the same version"
    ):
        link.ask("GET", WORK)
    link.close()


@pytest.fixture
def posted(plain):
    """The path of the answer that a server waits for, of at most 100 bytes, and the call."""
    waiting = InBackground(plain.call, {"anna": b"work"}, most_bytes={"anna": 100}, seconds=PATIENCE)
    link = http.client.HTTPConnection(plain.address, timeout=PATIENCE)
    while not (body := (reply := work(link)).read()):
        pass
    assert body == b"work"
    yield ANSWERS + reply.headers["Lit-Fed-Packet"], waiting
    link.close()


def test_answers_that_will_not_do_are_refused(plain, posted):
    path, waiting = posted
    for _ in range(3):
        assert asked(plain, "POST", path, b"x" * 101) == (413, "the answer has 101 bytes; 100 are the most")
    assert asked(plain, "POST", path, b"x", {**HEADERS, "Content-Encoding": "gzip"})[0] == 415
    assert asked(plain, "POST", path, iter([b"x"]))[0] == 411
    assert asked(plain, "GET", WORK, b"x")[0] == 400
    assert asked(plain, "POST", path, b"x" * 50, {**HEADERS, NAME: "ben"}) == (
        410, "this answer is no longer expected"
    )  # fmt: skip
    assert asked(plain, "POST", ANSWERS + "0" * 32, b"x")[0] == 410
    assert asked(plain, "POST", path, b"x" * 100)[0] == 204
    assert waiting.result() == {"anna": b"x" * 100}
    line = "refused an answer of anna: 101 bytes, where 100 are the most"
    assert [one for one in plain.said if one.startswith("refused")] == [line]


def test_the_whole_server_has_a_limit(start_server):
    server = start_server(limits=https_protocol.Limits(most_bytes=10))
    node = ServingThread(lambda packet: b"x" * 11, server.address, None, name="anna")
    server.call({"anna": b""}, most_bytes={"anna": 100}, seconds=0.3)
    assert node.join().endswith("takes 10 bytes; an answer has 11")


def test_garbage_leaves_no_trace(plain, still_serves, capfd):
    pieces = [os.urandom(3000), b"GET " + b"a" * 20_000, b"\r\n" * 500, b"GET /v1/work HTTP/9.9\r\n\r\n"]
    pieces += [b"POST /v1/answers/1 HTTP/1.1\r\nContent-Length: -secret\r\n\r\n", b"GET / HTTP/1.1\r\nsecret\r\n\r\n"]
    pieces += [b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: secret\r\n" % number for number in range(5000)) + b"\r\n"]
    for piece in pieces:
        with connected(plain) as stranger:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(piece)
                stranger.shutdown(socket.SHUT_WR)
            read_to_end(stranger)
    still_serves(plain)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert plain.said == ["ben is here"]


# ---------------------------------------------------------------------- patience
@pytest.mark.parametrize("beginning", [b"", b"GET /v1/work HTTP/1.1\r\nLit-Fed-Name: an"])
def test_silent_strangers_are_sent_away(plain, beginning):
    with connected(plain) as stranger:
        stranger.sendall(beginning)
        start = time.monotonic()
        read_to_end(stranger)
        assert QUICK.idle_seconds / 2 < time.monotonic() - start < 10.0


def test_strangers_take_turns(start_server, still_serves):
    server = start_server(limits=https_protocol.Limits(idle_seconds=0.2, handshakes=2))
    strangers = [connected(server) for _ in range(6)]
    still_serves(server)
    for one in strangers:
        one.close()


def test_an_answer_that_stands_still_is_broken_off(plain, posted):
    path, waiting = posted
    with connected(plain) as liar:
        liar.sendall(request(f"POST {path} HTTP/1.1", "Content-Length: 100", body=b"half"))
        start = time.monotonic()
        assert read_to_end(liar) == b""
        assert QUICK.stall_seconds / 2 < time.monotonic() - start < 10.0
    assert asked(plain, "POST", path, b"whole")[0] == 204
    assert waiting.result() == {"anna": b"whole"}


def test_a_packet_that_nobody_reads_is_broken_off(start_server):
    server = start_server()
    large = b"x" * 30_000_000
    waiting = InBackground(server.call, {"anna": large}, most_bytes={"anna": 100}, seconds=2.0)
    until(lambda: server._mailbox.members)
    with connected(server) as liar:
        liar.sendall(request(f"GET {WORK} HTTP/1.1"))
        until(lambda: "anna disconnected before it answered; its question stays open" in server.said)
        assert len(read_to_end(liar)) < len(large)
    assert waiting.result() == {}


def test_names_without_end_are_refused(start_server, monkeypatch):
    monkeypatch.setattr("lit_fed.deployment.https_mailbox.MOST_NODES", 2)
    server = start_server()
    answers = [asked(server, "GET", WORK, headers={**HEADERS, NAME: f"n{number}"})[0] for number in (1, 2, 3, 1)]
    assert answers == [204, 204, 403, 204]
