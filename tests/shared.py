"""The fixtures that tests share, and how the processes that run them are set up."""

import gc
import os
import sys

import prepared
import pytest
import torch
from federated_round import Federation, Scale, run_rounds

from lit_fed.clients import SequentialTrainer, VectorizedTrainer, vectorized
from lit_fed.core.solvers import newton
from lit_fed.models import Linear

CLIENT_TRAINERS = [SequentialTrainer, VectorizedTrainer]
"""Clients one by one and at once; `debug` is the first of these bit for bit, as the conformance tests check."""

torch.set_num_threads(1)  # the tensors are tiny, and the tests run in as many processes as there are cores
gc.set_threshold(10_000, 20, 50)  # twenty thousand tests are no garbage


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Leave out a file without an example: doctest would look for one in all that the file imports."""
    found = yield
    if file_path.suffix != ".py" or b">>>" in file_path.read_bytes():
        return found
    return [one for one in found if type(one) is pytest.Module]


@pytest.fixture(scope="session", autouse=True)
def _prepared(shared_folder):
    """Do once what takes longer than the rest of a small run: figures, the parser, reading the digits.

    What lives as long as the tests need not be looked through again and again for garbage.
    """
    for variable, name in ((prepared.DRAWN, "drawn"), (prepared.STARTED, "started")):
        os.environ[variable] = str(shared_folder / name)
    (shared_folder / "drawn").mkdir(exist_ok=True)
    prepared.do_not_render()
    prepared.read_digits_once()
    if "lit_fed.cli" in sys.modules:
        prepared.build_parser_once()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()  # or libraries complain of what is left at the end of the process


@pytest.fixture
def public_names(monkeypatch):
    """A PyTorch without the private names that speed uses."""
    monkeypatch.setattr(vectorized, "_private_layer", lambda: None)
    monkeypatch.delattr(torch, "_foreach_copy_")


@pytest.fixture(autouse=True)
def _public_names_alone(request):
    if request.config.getoption("--public-names"):
        request.getfixturevalue("public_names")


@pytest.fixture(autouse=True)
def _global_generator_untouched():
    """No test may depend on what another drew from torch's global generator."""
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_needless_newton_steps(request, monkeypatch):
    """Exact solves in tests of algorithms take the steps that they need; what more of them do is checked at the solver.

    These are one where the loss is a quadratic, and seven on few samples: a wrong objective is as wrong with fewer. Two
    runs that have to be alike are so after three. A test with `shipped_newton` takes all.
    """
    if "shipped_newton" in request.fixturenames:
        return
    if request.path.parent.name == "conformance":
        monkeypatch.setitem(newton.minimise.__kwdefaults__, "iterations", 3)
    if request.path.parent.name == "algorithms":
        solve = newton._minimise

        def minimise(task, models, batch, penalty, iterations):
            quadratic = task.target.kind == "regression" and isinstance(task.network, Linear | Scale)
            return solve(task, models, batch, penalty, 1 if quadratic else min(iterations, 7))

        monkeypatch.setattr(newton, "_minimise", minimise)


@pytest.fixture(scope="module")
def parser():
    """The parser of `fit`, built once: that is the slow part of a command line."""

    from lit_fed.cli import FederatedCLI

    class OnlyParser(FederatedCLI):
        def parse_arguments(self, parser, args):
            raise StopIteration(self._parser("fit"))

    with pytest.raises(StopIteration) as stopped:
        OnlyParser(["fit"])
    return stopped.value.value


@pytest.fixture
def shipped_newton():
    """Exact solves in tests of algorithms take as many steps as those of a run."""


@pytest.fixture
def newton_step(monkeypatch):
    """Quadratics are solved by one iteration, and long runs on them need no more."""
    monkeypatch.setitem(newton.minimise.__kwdefaults__, "iterations", 1)


@pytest.fixture
def rendered():
    """For tests that look at pictures."""
    with prepared.rendering():
        yield


@pytest.fixture(params=CLIENT_TRAINERS, ids=lambda one: one.name)
def client_trainer(request):
    """How clients are run."""
    return request.param()


@pytest.fixture(params=CLIENT_TRAINERS, ids=lambda one: one.name)
def trainer(request):
    """How clients are run, where each of the two is to be tested."""
    return request.param()


@pytest.fixture
def federated_rounds():
    """The plain driver: rounds of an algorithm without Lightning."""
    return run_rounds


@pytest.fixture
def federation():
    """The class behind `federated_rounds`, to be advanced round by round."""
    return Federation


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, pytestconfig):
    """Return a folder that all workers share: the one above theirs, or the only one."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(pytestconfig, "workerinput") else base
