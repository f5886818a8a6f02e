"""The heartbeat: a missing rank is named, on every rank, once; a slow one is waited for."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lit_fed.errors import ConfigError
from lit_fed.system import heartbeat
from lit_fed.system.heartbeat import LostRanksError, RankMonitor, check_timeout, rendezvous, waiting_for_work

TIMEOUT = 0.4


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS_BETWEEN_LOOKS", 0.05)
    monkeypatch.setattr(heartbeat, "SECONDS_TO_EXPLAIN", 0.3)
    monkeypatch.setattr(heartbeat, "SECONDS_TO_START", 2.0)


@contextmanager
def connected(number):
    """The monitors of some ranks, and for each what lets it go."""
    pairs = {rank: socket.socketpair() for rank in range(1, number)}
    monitors = [RankMonitor(0, TIMEOUT, {rank: pair[0] for rank, pair in pairs.items()})]
    monitors += [RankMonitor(rank, TIMEOUT, {0: pair[1]}) for rank, pair in pairs.items()]
    try:
        yield monitors
    finally:
        for monitor in monitors:
            monitor.close()


def outcomes(*calls):
    """What each call raised, at the same time; None where it came back."""

    def tried(call):
        try:
            return call()
        except LostRanksError as lost:
            return lost

    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result(30) for one in [pool.submit(tried, call) for call in calls]]


def test_all_meet_again_and_again():
    with connected(3) as monitors:

        def often(monitor):
            for _ in range(100):
                monitor.meet()

        assert outcomes(*(lambda monitor=monitor: often(monitor) for monitor in monitors)) == [None] * 3


@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_that_gets_on_is_waited_for(slow):
    with connected(2) as monitors:

        def work():
            for _ in range(10):
                time.sleep(TIMEOUT / 4)
                monitors[slow].sign_of_life()
            monitors[slow].meet()

        begin = time.monotonic()
        assert outcomes(work, monitors[1 - slow].meet) == [None, None]
        assert time.monotonic() - begin > 2 * TIMEOUT


@pytest.mark.parametrize(("lost", "speaker"), [(0, 1), (1, 0), (2, 0)])
def test_a_silent_rank_is_named_once(lost, speaker):
    with connected(3) as monitors:
        others = [monitor for monitor in monitors if monitor.rank != lost]
        errors = outcomes(*(monitor.meet for monitor in others))
        assert [(error.how, error.ranks) for error in errors] == [("silent", {lost})] * 2
        assert [monitor.rank for monitor, error in zip(others, errors, strict=True) if error.speaks] == [speaker]
        assert str(errors[0]).startswith(f"rank {lost} kept the others waiting for more than {TIMEOUT} seconds")
        with pytest.raises(LostRanksError):
            others[0].meet()


@pytest.mark.parametrize("lost", [0, 2])
def test_a_dead_rank_is_named_at_once_also_while_others_work(lost):
    with connected(3) as monitors:
        monitors[lost].close()  # as the system does when a process ends

        def work(monitor):
            for _ in range(100):
                time.sleep(0.06)
                monitor.sign_of_life()

        begin = time.monotonic()
        waiting, working = (monitor for monitor in monitors if monitor.rank != lost)
        errors = outcomes(waiting.meet, lambda: work(working))
        assert [(error.how, error.ranks) for error in errors] == [("died", {lost})] * 2
        assert time.monotonic() - begin < TIMEOUT


def test_why_a_rank_left_is_told():
    with connected(3) as monitors:
        monitors[1].leave("terminated")
        monitors[1].close()
        errors = outcomes(monitors[0].meet, monitors[2].meet)
        assert [(error.how, error.ranks) for error in errors] == [("terminated", {1})] * 2


def test_time_that_all_ranks_sleep_through_does_not_count(monkeypatch):
    with connected(2) as monitors:
        clock, slept = time.monotonic, [0.0]
        monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clock() + slept[0])

        def sleep():
            time.sleep(TIMEOUT / 4)
            slept[0] = 3600.0
            time.sleep(TIMEOUT / 4)
            monitors[1].meet()

        assert outcomes(monitors[0].meet, sleep) == [None, None]


def test_work_without_pieces_counts_as_life(monkeypatch):
    with connected(2) as monitors:
        monkeypatch.setattr(heartbeat, "_monitor", monitors[0])

        def download():
            with waiting_for_work():
                time.sleep(2 * TIMEOUT)
            monitors[0].meet()

        assert outcomes(download, monitors[1].meet) == [None, None]


def test_a_rank_that_is_lost_in_a_collective_is_named():
    with connected(3) as monitors:
        errors = outcomes(lambda: monitors[0].explain(TIMEOUT), lambda: monitors[1].explain(TIMEOUT))
        assert [(error.how, error.ranks, error.speaks) for error in errors] == [
            ("silent", {2}, True), ("silent", {2}, False),
        ]  # fmt: skip


def test_a_collective_that_fails_on_all_ranks_has_an_error_of_its_own():
    with connected(3) as monitors:
        assert outcomes(*(lambda monitor=monitor: monitor.explain(0.0) for monitor in monitors)) == [None] * 3


@pytest.mark.parametrize("seconds", [0, -1, 0.01, float("nan"), float("inf"), 1e9, True])
def test_a_timeout_without_sense_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"--trainer\.timeout is .*; give the seconds"):
        check_timeout(seconds)


# ---------------------------------------------------------------------- the start
def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def starts(rank, number, port, gone=set):
    """Joins the others, meets them and goes."""
    monitor = rendezvous(rank, number, TIMEOUT, ("127.0.0.1", port), hosted=False, gone=gone)
    try:
        monitor.meet()
    finally:
        monitor.close()


def test_ranks_find_each_other_and_strangers_are_sent_away():
    port = free_port()
    assert outcomes(*(lambda rank=rank: starts(rank, 3, port) for rank in range(3))) == [None] * 3
    connection, stranger = socket.socketpair()
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: somebody.example.org\r\n\r\n")
    assert heartbeat._introduced(connection, "secret") == -1
    connection.close()
    stranger.close()


def test_a_rank_that_does_not_start_is_named():
    port = free_port()
    errors = outcomes(lambda: starts(0, 3, port), lambda: starts(1, 3, port))
    assert [(error.how, error.ranks, error.speaks) for error in errors] == [
        ("absent", {2}, True), ("absent", {2}, False),
    ]  # fmt: skip
    assert str(errors[0]).startswith("rank 2 did not start within 2 seconds")


def test_without_rank_zero_nobody_starts():
    (error,) = outcomes(lambda: starts(1, 2, free_port()))
    assert (error.how, error.ranks, error.speaks) == ("absent", {0}, True)


def test_a_started_process_that_ends_before_it_joins_is_named_at_once():
    begin = time.monotonic()
    (error,) = outcomes(lambda: starts(0, 2, free_port(), gone=lambda: {1}))
    assert (error.how, error.ranks) == ("died", {1})
    assert time.monotonic() - begin < 1.5
