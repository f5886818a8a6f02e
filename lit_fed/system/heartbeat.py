"""Heartbeat of ranks: before each collective, all ranks report to rank zero, so that a missing one is named.

A collective of torch does not say which rank it waits for, and one of NCCL cannot be interrupted. Each rank holds one
connection to rank zero, beside torch's, and enters a collective only when all have arrived. Lines of text are sent:

    here        this rank has arrived at the next collective; from rank zero: all have
    work        this rank is alive
    broken      a collective failed on this rank
    end {...}   the run is over, with the reason

A connection closed without an `end` means that its rank died.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NoReturn

import torch.distributed as dist

from lit_fed.errors import ConfigError

__all__ = [
    "LostRanksError", "RankMonitor", "check_timeout", "exchange", "rank_monitor", "rendezvous", "sign_of_life",
    "use_monitor", "waiting_for_work",
]  # fmt: skip

SECONDS_BETWEEN_LOOKS = 1.0
"""Polling interval of a waiting rank, and shortest interval between signs of life."""

SECONDS_TO_EXPLAIN = 3.0
"""Time for ranks to report after a failed collective."""

MOST_SECONDS = 30 * 24 * 3600
"""Upper limit of the timeout; must fit torch's milliseconds."""

HERE, WORK, BROKEN, END = b"here", b"work", b"broken", b"end "

WHAT_HAPPENED = {
    "died": "{who} died: killed, or crashed",
    "silent": "{who} kept the others waiting for more than {timeout:g} seconds: stopped, killed or slower than "
    "--trainer.timeout; raise that if only slow",
    "absent": "{who} did not start within {timeout:g} seconds: stopped, killed, or slow; raise --trainer.timeout if so",
    "failed": "{who} ended with an error of its own",
    "terminated": "{who} got a SIGTERM",
    "interrupted": "{who} got an interrupt",
    "unknown": "a rank was lost in an exchange",
}


class LostRanksError(RuntimeError):
    """Ranks are missing; the run ends on every rank.

    Attributes:
        ranks: the missing ones.
        how: `died`, `silent`, `absent` (never seen), `failed`, `terminated`, `interrupted` or `unknown`.
        speaks: whether this rank prints the message, which is printed once.
    """

    def __init__(self, how: str, ranks: Collection[int], timeout: float, *, speaks: bool) -> None:
        numbers = ", ".join(map(str, sorted(ranks)))
        who = f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
        super().__init__(WHAT_HAPPENED[how].format(who=who, timeout=timeout))
        self.ranks, self.how, self.speaks = frozenset(ranks), how, speaks


def check_timeout(seconds: float) -> float:
    """Validate the timeout in seconds.

    Raises:
        ConfigError: if it is out of range.
    """
    if isinstance(seconds, bool) or not SECONDS_BETWEEN_LOOKS <= seconds <= MOST_SECONDS:
        raise ConfigError(
            f"--trainer.timeout is {seconds}; give the seconds that a rank may keep the others waiting, from "
            f"{SECONDS_BETWEEN_LOOKS:g} to {MOST_SECONDS}"
        )
    return float(seconds)


class _Peer:
    """Connection to another rank, with its received state."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.arrivals = 0  # at collectives that this rank has not completed yet
        self.silent = 0.0  # seconds waited without a sign of life
        self.broken = self.closed = False
        self.verdict: dict[str, list[int] | str] | None = None
        self._begun = b""

    def tell(self, line: bytes) -> None:
        """Send a line; a closed connection is noticed by `listen`."""
        with suppress(OSError):
            self.connection.send(line + b"\n")

    def listen(self) -> None:
        """Receive without blocking."""
        try:
            came = self.connection.recv(2**16)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        self.closed = not came
        self.silent = 0.0
        *lines, self._begun = (self._begun + came).split(b"\n")
        for line in lines:
            self.arrivals += line == HERE
            self.broken |= line == BROKEN
            if line.startswith(END):
                self.verdict = json.loads(line.removeprefix(END))


class RankMonitor:
    """State of all ranks, as known to one of them.

    Time is counted in polls, not by the clock: if all ranks are suspended together, by Ctrl-Z or a sleeping machine,
    none is missing afterwards.

    Args:
        rank: this one.
        timeout: longest silence of a rank that others wait for, in seconds.
        connections: to rank zero; on rank zero, to every other rank.
    """

    def __init__(self, rank: int, timeout: float, connections: dict[int, socket.socket]) -> None:
        self.rank, self.timeout = rank, timeout
        self._selector = DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        for other, connection in connections.items():
            self.add(other, connection)
        self._over: LostRanksError | None = None
        self._last_sign = 0.0

    def add(self, other: int, connection: socket.socket) -> None:
        """Add a rank."""
        self._peers[other] = _Peer(connection)
        self._selector.register(connection, EVENT_READ, self._peers[other])

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers.values():
            peer.connection.close()
        self._peers.clear()
        self._selector.close()

    @property
    def present(self) -> Collection[int]:
        """Connected ranks."""
        return self._peers.keys()

    def tell(self, line: bytes) -> None:
        """Send a line to all connected ranks."""
        for peer in self._peers.values():
            peer.tell(line)

    def meet(self) -> None:
        """Barrier: wait until every rank has called this.

        Raises:
            LostRanksError: if one is missing, or the run is over.
        """
        if self.rank:
            self.tell(HERE)
        for peer in self._peers.values():
            peer.silent = 0.0
        while missing := [rank for rank, peer in self._peers.items() if not peer.arrivals]:
            begin = time.monotonic()
            self._look(SECONDS_BETWEEN_LOOKS)
            passed = time.monotonic() - begin
            if self.rank == 0:  # tell the waiting ranks that another one is missing
                self._say()
            for rank in missing:
                self._peers[rank].silent += min(passed, 2 * SECONDS_BETWEEN_LOOKS)
            late = [rank for rank in missing if self._peers[rank].silent > self.timeout]
            if late:
                self.end("silent", late)
        for peer in self._peers.values():
            peer.arrivals -= 1
        if not self.rank:
            self.tell(HERE)

    def sign_of_life(self) -> None:
        """Send a sign of life and poll the others; at most once per second.

        Raises:
            LostRanksError: if one is missing.
        """
        if self._say():
            self._look(0)

    def _say(self) -> bool:
        """Send a sign of life unless one was sent within the last second."""
        now = time.monotonic()
        if now - self._last_sign < SECONDS_BETWEEN_LOOKS:
            return False
        self._last_sign = now
        self.tell(WORK)
        return True

    def _look(self, seconds: float) -> None:
        """Poll for some seconds; ends the run if another rank ended it or a connection closed."""
        if self._over is not None:
            raise self._over
        for key, _ in self._selector.select(seconds):
            key.data.listen()
        for peer in self._peers.values():
            if peer.verdict is not None:
                self.end(**peer.verdict)  # type: ignore[arg-type]
        gone = [rank for rank, peer in self._peers.items() if peer.closed and not peer.broken]
        if gone:
            self.end("died", gone)
        if self.rank and all(peer.closed for peer in self._peers.values()):
            self.end("unknown", [])

    def end(self, how: str, ranks: Collection[int], waited: float | None = None) -> NoReturn:
        """Tell the others that the run is over, and raise."""
        self._announce(how, ranks)
        first = 1 if 0 in ranks else 0  # which rank prints the message
        self._over = LostRanksError(how, ranks, waited or self.timeout, speaks=self.rank == first)
        raise self._over

    def leave(self, how: str) -> None:
        """Tell the others, unless they know, why this rank ends: `failed`, `terminated`, `interrupted`."""
        if self._over is None:
            self._announce(how, [self.rank])

    def _announce(self, how: str, ranks: Collection[int]) -> None:
        self.tell(END + json.dumps({"how": how, "ranks": sorted(ranks)}).encode())

    def explain(self, waited: float) -> None:
        """Find the cause of a failed collective at which all ranks had arrived.

        The other ranks notice it too: at once if their peer died, else after their own timeout.

        Args:
            waited: seconds that this rank spent in it.

        Raises:
            LostRanksError: if a rank is missing; otherwise the caller raises the collective's own error.
        """
        patience = SECONDS_TO_EXPLAIN
        if self.rank:
            self.tell(BROKEN)
            patience *= 2  # rank zero answers after all others, or after waiting for them
        until = time.monotonic() + patience
        while time.monotonic() < until and not all(peer.broken for peer in self._peers.values()):
            self._look(SECONDS_BETWEEN_LOOKS / 4)
        silent = [rank for rank, peer in self._peers.items() if not peer.broken]
        if silent and (self.rank == 0 or waited >= self.timeout / 2):
            self.end("silent", silent)
        if silent:  # rank zero still waits in the collective and notices when this rank ends
            self._over = LostRanksError("unknown", [], self.timeout, speaks=False)
            raise self._over
        self.tell(BROKEN)


# ---------------------------------------------------------------------- the heartbeat of this process
_monitor: RankMonitor | None = None


def use_monitor(monitor: RankMonitor) -> None:
    """Use this heartbeat in this process from now on."""
    global _monitor
    _monitor = monitor


def rank_monitor() -> RankMonitor | None:
    """The heartbeat of this process; None in a single process."""
    return _monitor


def sign_of_life() -> None:
    """Send a sign of life after a piece of work that may take long; nothing in a single process."""
    if _monitor is not None:
        _monitor.sign_of_life()


@contextmanager
def exchange() -> Iterator[None]:
    """Context around a collective alone: entered when all ranks have arrived.

    Raises:
        LostRanksError: if one is missing, or lost within.
    """
    if _monitor is None:
        yield
        return
    _monitor.meet()
    begin = time.monotonic()
    try:
        yield
    except RuntimeError:
        _monitor.explain(time.monotonic() - begin)
        raise


@contextmanager
def waiting_for_work() -> Iterator[None]:
    """Context around indivisible work of one rank, such as a download: signs of life come from a thread."""
    monitor, done = _monitor, threading.Event()

    def say() -> None:
        while monitor is not None and not done.wait(SECONDS_BETWEEN_LOOKS):
            monitor.tell(WORK)

    thread = threading.Thread(target=say, name="signs-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


SECONDS_TO_START = 300.0
"""Least time to wait for the start of other ranks: importing the program may take minutes."""

WHERE = "lit_fed/roll_call"
"""Key of torch's store that holds the port of rank zero."""


def rendezvous(
    rank: int, num_ranks: int, timeout: float, address: tuple[str, int], *, hosted: bool, gone: Callable[[], set[int]]
) -> RankMonitor:
    """Connect the ranks of a run.

    Args:
        rank: this rank.
        num_ranks: number of ranks.
        timeout: see `RankMonitor`; also the time for the others to start, but at least `SECONDS_TO_START`.
        address: host and port of torch's store.
        hosted: whether torchrun hosts that store; otherwise rank zero does.
        gone: returns the ranks started by this one that have ended.

    Raises:
        LostRanksError: if one does not start.
    """
    patience = max(timeout, SECONDS_TO_START)
    if rank or hosted:
        with _connect(address, rank, patience):
            pass  # torch prints warnings until the store answers
    meet = partial(_store, rank, address, patience, hosted=hosted)
    store, where = _in_time(meet, rank, patience) if rank else meet()
    if rank == 0:
        monitor = RankMonitor(0, timeout, {})
        try:
            _gather(monitor, num_ranks, patience, address[0], store, gone)
        except LostRanksError:
            monitor.close()
            raise
        return monitor
    port, secret = json.loads(where)
    connection = _connect((address[0], port), rank, patience)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(_introduction(secret, rank))
    return RankMonitor(rank, timeout, {0: connection})


def _store(rank: int, address: tuple[str, int], patience: float, *, hosted: bool) -> tuple[Any, bytes]:
    """Torch's store and its entry `WHERE`, which rank zero has yet to write."""
    store = dist.TCPStore(  # type: ignore[attr-defined]
        *address, is_master=rank == 0 and not hosted, wait_for_workers=False, multi_tenant=True,
        timeout=timedelta(seconds=patience),
    )  # fmt: skip
    return store, b"" if rank == 0 else store.get(WHERE)


def _in_time(work: Callable[[], tuple[Any, bytes]], rank: int, patience: float) -> tuple[Any, bytes]:
    """Run work with a timeout; torch's own has no effect if the host accepts but never answers.

    Raises:
        LostRanksError: after the timeout: rank zero is suspended.
    """
    found: list[tuple[Any, bytes]] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="joining", daemon=True)
    thread.start()
    thread.join(patience)
    if failed and not isinstance(failed[0], dist.DistStoreError):
        raise failed[0]
    if not found:
        raise LostRanksError("absent", [0], patience, speaks=rank <= 1)
    return found[0]


def _connect(address: tuple[str, int], rank: int, patience: float) -> socket.socket:
    """Connect to the machine of rank zero as soon as it listens."""
    waited = 0.0
    while waited <= patience:
        with suppress(OSError):
            return socket.create_connection(address, timeout=patience)
        time.sleep(SECONDS_BETWEEN_LOOKS / 10)
        waited += SECONDS_BETWEEN_LOOKS / 10
    raise LostRanksError("absent", [0], patience, speaks=rank == 1)


def _gather(
    monitor: RankMonitor, num_ranks: int, patience: float, host: str, store: Any, gone: Callable[[], set[int]]
) -> None:
    """Rank zero accepts the others and sends signs of life to the ones connected."""
    secret, waited = secrets.token_hex(16), 0.0
    with _server(host, num_ranks) as server:
        server.settimeout(SECONDS_BETWEEN_LOOKS)
        store.set(WHERE, json.dumps([server.getsockname()[1], secret]))
        while missing := set(range(1, num_ranks)) - set(monitor.present):
            begin = time.monotonic()
            with suppress(TimeoutError):
                connection, _ = server.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if (other := _introduced(connection, secret)) in missing:
                    monitor.add(other, connection)
                    continue
                connection.close()
            monitor.sign_of_life()
            if died := missing & gone():
                monitor.end("died", died)
            waited += min(time.monotonic() - begin, 2 * SECONDS_BETWEEN_LOOKS)
            if waited > patience:
                monitor.end("absent", missing, patience)


def _server(host: str, num_ranks: int) -> socket.socket:
    """Listening socket of rank zero, IPv4 and IPv6; on the loopback if all ranks are on this machine."""
    if host in ("localhost", "127.0.0.1"):
        return socket.create_server(("127.0.0.1", 0), backlog=num_ranks)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # the kernel knows IPv6, and the machine has none
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=num_ranks, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=num_ranks)


def _introduction(secret: str, rank: int) -> bytes:
    """First line of a rank, of fixed length."""
    return f"{secret} {rank:10d}\n".encode()


def _introduced(connection: socket.socket, secret: str) -> int:
    """Rank of a connection; −1 if it does not know the secret."""
    connection.settimeout(SECONDS_TO_EXPLAIN)
    try:
        said = connection.recv(len(_introduction(secret, 0)), socket.MSG_WAITALL)
        shown, _, number = said.decode().partition(" ")
        return int(number) if secrets.compare_digest(shown, secret) else -1
    except (OSError, ValueError, TypeError):
        return -1
