"""What tests share; being here also puts `federated_round` on the path of the tests."""

import pytest
import torch
from federated_round import Federation, run_rounds

from lit_fed.clients import SequentialTrainer, VectorizedTrainer

torch.set_num_threads(1)  # the tensors are tiny, and the tests run in as many processes as there are cores


@pytest.fixture(autouse=True)
def _global_generator_untouched():
    """No test may depend on what another drew from torch's global generator."""
    torch.manual_seed(0)


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
