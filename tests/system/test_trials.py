"""The loop of trials: steps of a plan, results that are kept, failures, processes that die."""

import multiprocessing
import os
import time
from unittest import mock

import pytest

from lit_fed.errors import ConfigError
from lit_fed.system.trials import CoreExecutor, InProcess, Outcome, executor_of, independent, run_trials


@pytest.fixture
def forked():
    """Processes that would be spawned are forked from a server that has loaded torch."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["lit_fed.system.trials"])
    with mock.patch("multiprocessing.get_context", return_value=server):
        yield


def test_a_plan_goes_on_with_its_outcomes_ahead_of_later_plans_and_nothing_kept_is_made_again():
    kept, made = {2: 20}, []

    def plan(first):
        one, two = yield [first, first + 1]
        (last,) = yield [one.value + two.value]
        nothing = yield []
        return last.value, nothing

    def keep(trial, outcome):
        kept[trial] = outcome.value

    def make(trial):
        made.append(trial)
        return 10 * trial

    assert run_trials([plan(1), plan(5)], make, InProcess(), find=kept.get, keep=keep) == [(300, []), (1100, [])]
    assert made == [1, 30, 5, 6, 110]
    assert run_trials([plan(1), plan(5)], make, InProcess(), find=kept.get) == [(300, []), (1100, [])]
    assert len(made) == 5


def test_a_plan_is_taken_when_a_place_is_free():
    taken = []

    def plans():
        for number in range(3):
            taken.append(number)
            yield independent([number])

    found = run_trials(plans(), lambda trial: list(taken), InProcess())
    assert [one.value for (one,) in found] == [[0], [0, 1], [0, 1, 2]]


def test_an_error_that_is_no_failure_of_its_trial_is_raised():
    with pytest.raises(ValueError, match="invalid literal"):
        run_trials([independent(["x"])], int, executor_of(1), failures=(KeyError,))
    ((one,),) = run_trials([independent(["x"])], int, executor_of(1), failures=(ValueError,))
    assert one == Outcome(None, "invalid literal for int() with base 10: 'x'")


def call(trial):
    if trial == "dies":
        os._exit(3)
    if trial == "is stopped":
        raise SystemExit(143)
    time.sleep(0.5)
    return os.getpid() if trial == "works" else int(trial)


@pytest.mark.usefixtures("forked")
def test_a_process_that_dies_fails_its_own_trial():
    trials = ["x", "dies", "7", "is stopped", "8"]
    with CoreExecutor(2) as executor:
        (found,) = run_trials([independent(trials)], call, executor, 2, failures=(ValueError,))
    assert [one.value for one in found] == [None, None, 7, None, 8]
    assert "invalid literal" in found[0].error
    assert found[1].error == found[3].error
    assert "process was ended from outside" in found[1].error
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("forked")
def test_idle_processes_take_trials_that_an_outcome_makes_ready():
    def plan():
        first = yield ["works"]
        return first + (yield ["works"] * 2)

    with CoreExecutor(2) as executor:
        (found,) = run_trials([plan()], call, executor, 2)
    assert len({one.value for one in found[1:]}) == 2


@pytest.mark.usefixtures("forked")
def test_an_interrupted_loop_stops_its_processes():
    def keep(trial, outcome):
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), CoreExecutor(2) as executor:
        run_trials([independent(["x", "sleep"])], sleep, executor, 2, keep=keep)
    assert time.monotonic() - began < 10
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("concurrent.futures.ThreadPoolExecutor", None), ("no_file.executor", "No module named 'no_file'"),
        ("concurrent.futures.Later", "has no attribute 'Later'"), ("executor", "Empty module name"),
        ("builtins.dict", "is a dict, not an executor of concurrent.futures"),
    ],
)  # fmt: skip
def test_an_executor_may_be_named_by_its_path(path, said):
    if said is not None:
        with pytest.raises(ConfigError, match=f"--executor {path}.*{said}.*such as my_cluster.executor"):
            executor_of(2, path)
        return
    with executor_of(2, path) as executor:
        ((one, other),) = run_trials([independent(["3", "4"])], int, executor, 2)
    assert (one.value, other.value) == (3, 4)


def sleep(trial):
    if trial == "sleep":
        time.sleep(60)
    return 1
