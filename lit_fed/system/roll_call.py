"""Which rank is missing: the ranks of a run call the roll before every exchange between them.

A collective of torch waits without saying for whom, and one of NCCL cannot be interrupted. So each rank holds one
connection to rank zero, beside torch's, and nobody enters a collective before all have arrived. What goes over a
connection is lines of text:

    here        the rank has arrived at the next exchange; from rank zero: all have
    work        it is alive and gets on
    broken      a collective failed on it
    end {...}   the run is over, and why

A connection that closes without an `end` is that of a rank which died.
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
    "LostRanksError",
    "RollCall",
    "check_timeout",
    "exchange",
    "join",
    "roll_call",
    "sign_of_life",
    "take_up",
    "waiting_for_work",
]

SECONDS_BETWEEN_LOOKS = 1.0
"""How often a waiting rank looks at what it knows of the others, and a working one says that it works."""

SECONDS_TO_EXPLAIN = 3.0
"""How long ranks take, when a collective has failed, to tell each other that they are alive."""

MOST_SECONDS = 30 * 24 * 3600
"""More than a rank can be waited for in earnest, and few enough for torch's milliseconds."""

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
    """Ranks that the others cannot go on without; the run ends on every rank.

    Attributes:
        ranks: the missing ones.
        how: `died`, `silent`, `absent` (never seen), `failed`, `terminated`, `interrupted` or `unknown`.
        speaks: whether this rank is the one to say it, so that it is said once.
    """

    def __init__(self, how: str, ranks: Collection[int], timeout: float, *, speaks: bool) -> None:
        numbers = ", ".join(map(str, sorted(ranks)))
        who = f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
        super().__init__(WHAT_HAPPENED[how].format(who=who, timeout=timeout))
        self.ranks, self.how, self.speaks = frozenset(ranks), how, speaks


def check_timeout(seconds: float) -> float:
    """The seconds that a rank waits for another, if they make sense.

    Raises:
        ConfigError: if they do not.
    """
    if isinstance(seconds, bool) or not SECONDS_BETWEEN_LOOKS <= seconds <= MOST_SECONDS:
        raise ConfigError(
            f"--trainer.timeout is {seconds}; give the seconds that a rank may keep the others waiting, from "
            f"{SECONDS_BETWEEN_LOOKS:g} to {MOST_SECONDS}"
        )
    return float(seconds)


class _Peer:
    """The connection to another rank, and what came over it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.arrivals = 0  # at exchanges that this rank has not seen through yet
        self.silent = 0.0  # seconds for which this rank has waited without a word
        self.broken = self.closed = False
        self.verdict: dict[str, list[int] | str] | None = None
        self._begun = b""

    def tell(self, line: bytes) -> None:
        """Send a line; that the other is gone is found when it is listened to."""
        with suppress(OSError):
            self.connection.send(line + b"\n")

    def listen(self) -> None:
        """Take in what has come, without waiting."""
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


class RollCall:
    """The ranks of a run, as one of them knows them.

    Time is counted in looks, not by the clock: where all ranks are stopped together, by Ctrl-Z or a machine that
    sleeps, nobody is missing when they go on.

    Args:
        rank: this one.
        timeout: seconds that another may keep this one waiting without a sign of life.
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
        """Take up a rank."""
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
        """The ranks that this one is connected with."""
        return self._peers.keys()

    def tell(self, line: bytes) -> None:
        """Send a line to all that this rank is connected with."""
        for peer in self._peers.values():
            peer.tell(line)

    def meet(self) -> None:
        """Wait until every rank is here; each of them calls this at the same place.

        Raises:
            LostRanksError: if one does not come, or the run is over.
        """
        if self.rank:
            self.tell(HERE)
        for peer in self._peers.values():
            peer.silent = 0.0
        while missing := [rank for rank, peer in self._peers.items() if not peer.arrivals]:
            begin = time.monotonic()
            self._look(SECONDS_BETWEEN_LOOKS)
            passed = time.monotonic() - begin
            if self.rank == 0:  # those who have arrived are to know that somebody else is missing
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
        """Say that this rank gets on, and look whether the others are there; at most once per second.

        Raises:
            LostRanksError: if one is not.
        """
        if self._say():
            self._look(0)

    def _say(self) -> bool:
        """Tell the others that this rank gets on, unless it just did."""
        now = time.monotonic()
        if now - self._last_sign < SECONDS_BETWEEN_LOOKS:
            return False
        self._last_sign = now
        self.tell(WORK)
        return True

    def _look(self, seconds: float) -> None:
        """Take in what comes within some seconds; the run is over if that is an end, or a connection has closed."""
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
        """Tell the others that the run is over, and end it here."""
        self._announce(how, ranks)
        first = 1 if 0 in ranks else 0  # who says it
        self._over = LostRanksError(how, ranks, waited or self.timeout, speaks=self.rank == first)
        raise self._over

    def leave(self, how: str) -> None:
        """Tell the others, unless they know, that this rank ends by itself: `failed`, `terminated`, `interrupted`."""
        if self._over is None:
            self._announce(how, [self.rank])

    def _announce(self, how: str, ranks: Collection[int]) -> None:
        self.tell(END + json.dumps({"how": how, "ranks": sorted(ranks)}).encode())

    def explain(self, waited: float) -> None:
        """Find out what broke a collective; all ranks had arrived at it.

        Every other rank notices as well: at once if it was talking to one that died, else when its own timeout is over.

        Args:
            waited: seconds that this rank spent in it.

        Raises:
            LostRanksError: if a rank is missing; otherwise the collective's own error says what is wrong.
        """
        patience = SECONDS_TO_EXPLAIN
        if self.rank:
            self.tell(BROKEN)
            patience *= 2  # rank zero answers when it has heard of all others, or waited for them
        until = time.monotonic() + patience
        while time.monotonic() < until and not all(peer.broken for peer in self._peers.values()):
            self._look(SECONDS_BETWEEN_LOOKS / 4)
        silent = [rank for rank, peer in self._peers.items() if not peer.broken]
        if silent and (self.rank == 0 or waited >= self.timeout / 2):
            self.end("silent", silent)
        if silent:  # rank zero still waits in the collective; it will know when this rank has gone
            self._over = LostRanksError("unknown", [], self.timeout, speaks=False)
            raise self._over
        self.tell(BROKEN)


# ---------------------------------------------------------------------- the roll of this process
_roll: RollCall | None = None


def take_up(roll: RollCall) -> None:
    """From now on this process calls the roll before each exchange."""
    global _roll
    _roll = roll


def roll_call() -> RollCall | None:
    """The roll of this process; None where it is alone."""
    return _roll


def sign_of_life() -> None:
    """Say that this rank gets on, after a piece of work that may take long; nothing in a single process."""
    if _roll is not None:
        _roll.sign_of_life()


@contextmanager
def exchange() -> Iterator[None]:
    """Around a collective, and nothing else: entered when all ranks have arrived.

    Raises:
        LostRanksError: if one does not come, or is lost within.
    """
    if _roll is None:
        yield
        return
    _roll.meet()
    begin = time.monotonic()
    try:
        yield
    except RuntimeError:
        _roll.explain(time.monotonic() - begin)
        raise


@contextmanager
def waiting_for_work() -> Iterator[None]:
    """Around work of one rank that has no pieces, such as a download: it counts as alive as long as its process is."""
    roll, done = _roll, threading.Event()

    def say() -> None:
        while roll is not None and not done.wait(SECONDS_BETWEEN_LOOKS):
            roll.tell(WORK)

    thread = threading.Thread(target=say, name="signs-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


SECONDS_TO_START = 300.0
"""How long ranks wait for each other at least when they start: loading the program alone may take minutes."""

WHERE = "lit_fed/roll_call"
"""Key of torch's store under which rank zero says where it is called."""


def join(
    rank: int, num_ranks: int, timeout: float, address: tuple[str, int], *, hosted: bool, gone: Callable[[], set[int]]
) -> RollCall:
    """Connect the ranks of a run.

    Args:
        rank: this one.
        num_ranks: how many there are.
        timeout: see `RollCall`; also how long each rank waits for the others to start, if it is long enough for that.
        address: host and port of torch's store.
        hosted: whether somebody else, torchrun, keeps that store; otherwise rank zero does.
        gone: the ranks that this one has started and that have ended.

    Raises:
        LostRanksError: if one does not start.
    """
    patience = max(timeout, SECONDS_TO_START)
    if rank or hosted:
        with _connect(address, rank, patience):
            pass  # torch writes to the terminal while nobody answers
    meet = partial(_store, rank, address, patience, hosted=hosted)
    store, where = _in_time(meet, rank, patience) if rank else meet()
    if rank == 0:
        roll = RollCall(0, timeout, {})
        try:
            _gather(roll, num_ranks, patience, address[0], store, gone)
        except LostRanksError:
            roll.close()
            raise
        return roll
    port, secret = json.loads(where)
    connection = _connect((address[0], port), rank, patience)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(_introduction(secret, rank))
    return RollCall(rank, timeout, {0: connection})


def _store(rank: int, address: tuple[str, int], patience: float, *, hosted: bool) -> tuple[Any, bytes]:
    """Torch's store, and what stands under `WHERE` there; rank zero has yet to write it."""
    store = dist.TCPStore(  # type: ignore[attr-defined]
        *address, is_master=rank == 0 and not hosted, wait_for_workers=False, multi_tenant=True,
        timeout=timedelta(seconds=patience),
    )  # fmt: skip
    return store, b"" if rank == 0 else store.get(WHERE)


def _in_time(work: Callable[[], tuple[Any, bytes]], rank: int, patience: float) -> tuple[Any, bytes]:
    """What the work gives; torch's own timeout does not count where somebody listens and never answers.

    Raises:
        LostRanksError: if that takes too long: rank zero was stopped on its way.
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
    """A connection to rank zero's machine, as soon as somebody listens there."""
    waited = 0.0
    while waited <= patience:
        with suppress(OSError):
            return socket.create_connection(address, timeout=patience)
        time.sleep(SECONDS_BETWEEN_LOOKS / 10)
        waited += SECONDS_BETWEEN_LOOKS / 10
    raise LostRanksError("absent", [0], patience, speaks=rank == 1)


def _gather(
    roll: RollCall, num_ranks: int, patience: float, host: str, store: Any, gone: Callable[[], set[int]]
) -> None:
    """Rank zero takes up the others as they come, and tells those who are there that it waits."""
    secret, waited = secrets.token_hex(16), 0.0
    with _server(host, num_ranks) as server:
        server.settimeout(SECONDS_BETWEEN_LOOKS)
        store.set(WHERE, json.dumps([server.getsockname()[1], secret]))
        while missing := set(range(1, num_ranks)) - set(roll.present):
            begin = time.monotonic()
            with suppress(TimeoutError):
                connection, _ = server.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if (other := _introduced(connection, secret)) in missing:
                    roll.add(other, connection)
                    continue
                connection.close()
            roll.sign_of_life()
            if died := missing & gone():
                roll.end("died", died)
            waited += min(time.monotonic() - begin, 2 * SECONDS_BETWEEN_LOOKS)
            if waited > patience:
                roll.end("absent", missing, patience)


def _server(host: str, num_ranks: int) -> socket.socket:
    """Where rank zero is called, by either protocol; from this machine alone, if all ranks are on it."""
    if host in ("localhost", "127.0.0.1"):
        return socket.create_server(("127.0.0.1", 0), backlog=num_ranks)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # the kernel knows IPv6, and the machine has none
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=num_ranks, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=num_ranks)


def _introduction(secret: str, rank: int) -> bytes:
    """What a rank says first; always of the same length."""
    return f"{secret} {rank:10d}\n".encode()


def _introduced(connection: socket.socket, secret: str) -> int:
    """The rank that a connection is of; −1 if it is of somebody else."""
    connection.settimeout(SECONDS_TO_EXPLAIN)
    try:
        said = connection.recv(len(_introduction(secret, 0)), socket.MSG_WAITALL)
        shown, _, number = said.decode().partition(" ")
        return int(number) if secrets.compare_digest(shown, secret) else -1
    except (OSError, ValueError, TypeError):
        return -1
