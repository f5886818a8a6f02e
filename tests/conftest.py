"""What tests share; being here also puts `federated_round` on the path of the tests."""

import sys

import prepared
import pytest
import torch
from federated_round import Federation, Scale, run_rounds

from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.solvers import newton
from lit_fed.models import Linear

torch.set_num_threads(1)  # the tensors are tiny, and the tests run in as many processes as there are cores


@pytest.fixture(autouse=True)
def _global_generator_untouched():
    """No test may depend on what another drew from torch's global generator."""
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_needless_newton_steps(request, monkeypatch):
    """Exact solves in tests of algorithms take the steps that they need; what more of them do is checked at the solver.

    These are one where the loss is a quadratic, and seven on few samples: a wrong objective is as wrong with fewer. Two
    runs that have to be alike are so after three.
    """
    if request.path.parent.name == "conformance":
        monkeypatch.setitem(newton.minimise.__kwdefaults__, "iterations", 3)
    if request.path.parent.name == "algorithms":
        solve = newton._minimise

        def minimise(task, models, batch, penalty, iterations):
            quadratic = task.target.kind == "regression" and isinstance(task.network, Linear | Scale)
            return solve(task, models, batch, penalty, 1 if quadratic else min(iterations, 7))

        monkeypatch.setattr(newton, "_minimise", minimise)


@pytest.fixture(scope="session", autouse=True)
def _small_runs_are_small():
    """Rendering pictures and building the parser of the command line take longer than all the rest of a small run."""
    prepared.do_not_render()
    if "lit_fed.cli" in sys.modules:
        prepared.build_parser_once()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, worker_id):
    """A folder that all processes of pytest share."""
    place = tmp_path_factory.getbasetemp()
    return place if worker_id == "master" else place.parent


@pytest.fixture
def rendered():
    """For tests that look at pictures."""
    with prepared.rendering():
        yield


@pytest.fixture(params=[SequentialTrainer, VectorizedTrainer], ids=lambda one: one.name)
def client_trainer(request):
    """Clients one by one and at once; `debug` is the first of these bit for bit, as the conformance tests check."""
    return request.param()


@pytest.fixture
def federated_rounds():
    """The plain driver: rounds of an algorithm without Lightning."""
    return run_rounds


@pytest.fixture
def federation():
    """The class behind `federated_rounds`, to be advanced round by round."""
    return Federation
