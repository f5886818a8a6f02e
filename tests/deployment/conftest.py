"""Servers, nodes and certificates of tests, all in one process."""

import signal

import pytest
from background import QUICK
from in_process import node_folders

from lit_fed.deployment import https_mailbox, https_node, https_server
from lit_fed.deployment.certificates import make_certificates
from lit_fed.deployment.https_node import Link
from lit_fed.deployment.https_server import HttpsServer


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(https_node, "PAUSES", (0.02, 0.1))
    monkeypatch.setattr(https_mailbox, "SECONDS_UNTIL_GONE", 0.2)
    monkeypatch.setattr(https_server, "SECONDS_BETWEEN_LOOKS", 0.05)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of the clients of anna, ben and carl, and of all of them; not to be changed."""
    return node_folders(tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="session")
def tls(tmp_path_factory):
    """Certificates of a server on this machine, of anna and of ben."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(["localhost", "127.0.0.1"], ["anna", "ben"], folder)
    return folder


@pytest.fixture
def start_server():
    """Starts servers, which are closed at the end; their lines are in `said`, those about waiting in `waits`."""
    started = []

    def start(tls=None, listen="127.0.0.1:0", **options):
        said, waits = [], []

        def say(line):
            (waits if line.startswith("waiting ") else said).append(line)

        server = HttpsServer(listen, tls, **{"limits": QUICK, "say": say} | options)
        server.said, server.waits = said, waits
        started.append(server)
        return server

    yield start
    for one in started:
        one.close()


@pytest.fixture
def process():
    """Makes processes of nodes on plain HTTP, each a connection, which `close` closes as the system does."""
    made = []

    def make(server, name="anna", tls=None):
        link = Link(server.address, tls, None if tls else name, 0.0, lambda line: None)
        made.append(link)
        return link

    yield make
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def signals():
    """Commands that run in the process of a test end it at once on a signal: their handlers go when the test does."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)
