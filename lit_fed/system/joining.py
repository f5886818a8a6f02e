"""How the ranks of a run find each other at its start, or say who did not come."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from lit_fed.system.roll_call import SECONDS_BETWEEN_LOOKS, SECONDS_TO_EXPLAIN, LostRanksError, RollCall

__all__ = ["join"]

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
