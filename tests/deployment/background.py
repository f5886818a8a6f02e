"""What tests of transports run in threads and in environments."""

import contextlib
import importlib.util
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from pathlib import Path

import pytest

from lit_fed.deployment.https_node import Link, run_node
from lit_fed.deployment.https_protocol import NAME, PROCESS, WORK, Limits, address_of, version_headers
from lit_fed.errors import ConfigError

QUICK = Limits(most_bytes=10_000_000, poll_seconds=0.4, idle_seconds=0.5, stall_seconds=0.3)


PATIENCE = 30.0
"""Seconds after which a test gives up; machines of tests are slow at times."""


IN_ORDER = "in order"
"""Why a node ended whose training was over."""


class ServingThread:
    """A node in a thread; `ended` is why it ended, in words."""

    def __init__(self, handle, address, tls, **options):
        self.said, self.ended = [], None
        self._thread = threading.Thread(target=self._run, args=(handle, address, tls), kwargs=options, daemon=True)
        self._thread.start()

    def _run(self, handle, address, tls, name=None, patience=0.0):
        try:
            run_node(handle, Link(address, tls, name, patience, self.said.append))
            self.ended = IN_ORDER
        except ConfigError as error:
            self.ended = str(error)

    def join(self):
        """Why it ended."""
        self._thread.join(PATIENCE)
        assert self.ended, "the node goes on"
        return self.ended


class InBackground:
    """A function in a thread; `result` waits for what it returns, or raises."""

    def __init__(self, function, *arguments, **options):
        self._work = (function, arguments, options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        function, arguments, options = self._work
        try:
            self._result = function(*arguments, **options)
        except Exception as error:
            self._result = error

    @property
    def is_alive(self):
        """Whether it goes on."""
        return self._thread.is_alive()

    def result(self):
        """What it returned, or raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it goes on"
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def until(condition, seconds=PATIENCE):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.01)


def connected(server):
    """A plain connection to a server."""
    return socket.create_connection(address_of(server.address, ""), timeout=PATIENCE)


def read_to_end(connection, seconds=PATIENCE):
    """What is read until the other side closes the connection, as it has to, or for so long."""
    connection.settimeout(seconds)
    read, end = bytearray(), time.monotonic() + seconds
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while time.monotonic() < end and (piece := connection.recv(2**16)):
            read += piece
    return bytes(read)


def request(line, *headers, body=b"", name="mallory", process="p1"):
    """A request of a node, as bytes."""
    known = {**version_headers(), NAME: name, PROCESS: process}
    lines = [line, "Host: x", *(f"{key}: {value}" for key, value in known.items()), *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def fetch(link):
    """The packet of a process, once there is one."""
    while (packet := link.ask("GET", WORK)).status != 200:
        pass
    return packet


def programs_with(package: str, requirement: str, folder: Path) -> Path:
    """The folder of programs of an environment with an engine, which sees the packages of this one.

    It is this environment if the package is installed here, else a new one in the folder; without a network the test is
    skipped.
    """
    if importlib.util.find_spec(package):
        return Path(sys.executable).parent
    venv.create(folder)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "these.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    command = [folder / "bin" / "python", "-m", "pip", "install", requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin"
