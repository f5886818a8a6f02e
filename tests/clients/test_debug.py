import math

import pytest
import torch
from federated_round import make_clients, run_rounds, same_bits

from lit_fed.algorithms import FedAvg, FedEM, Local
from lit_fed.clients import DebugTrainer, SequentialTrainer
from lit_fed.core.types import Batch, ClientData
from lit_fed.errors import ClientError


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(), Local()], ids=lambda one: type(one).__name__)
def test_it_gives_the_numbers_of_the_sequential_trainer(algorithm):
    train = make_clients([7, 1, 9])
    one, other = (run_rounds(algorithm, trainer, train) for trainer in (SequentialTrainer(), DebugTrainer()))
    assert same_bits((one.shared, one.states), (other.shared, other.states))
    assert one.metrics == other.metrics


def poisoned():
    train = make_clients([7, 1, 9])
    train.x[int(train.offsets[2])] = math.nan
    return train


def test_the_first_bad_result_is_named_with_its_inputs():
    with pytest.raises(ClientError, match=r"client 2, round 0, losses: its result .*is NaN or infinite") as caught:
        run_rounds(FedEM(), DebugTrainer(), poisoned())
    assert isinstance(caught.value.inputs["second"], ClientData)

    with pytest.raises(ClientError, match="client 2, round 0, client_step: its result models/parameters") as caught:
        run_rounds(FedAvg(), DebugTrainer(), poisoned())
    error = caught.value
    assert (error.client_id, error.round_idx, error.stage) == (2, 0, "client_step")
    assert set(error.inputs) == {"ctx", "shared", "first", "second"}
    assert isinstance(error.inputs["second"], Batch)
    assert error.inputs["second"].x.isnan().any()
    assert error.inputs["first"].models.parameters["linear.weight"].isfinite().all()


@pytest.mark.parametrize(
    ("stage", "last"), [("client_init", "third"), ("client_step", "second"), ("client_final", "second")]
)
def test_an_exception_carries_the_inputs(stage, last):
    def fail(self, *arguments):
        raise RuntimeError("no such thing")

    fail.__name__ = stage
    broken = type("Broken", (FedAvg,), {stage: fail})()
    with pytest.raises(ClientError, match=f"round 0, {stage}: RuntimeError: no such thing") as caught:
        run_rounds(broken, DebugTrainer(), make_clients([7]))
    assert list(caught.value.inputs)[-1] == last
    assert caught.value.inputs["ctx"].phase == "train"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_infinity_is_found_too():
    train = make_clients([3])
    train.x[0] = torch.inf
    with pytest.raises(ClientError, match="client 0, round 0"):
        run_rounds(FedAvg(), DebugTrainer(), train)
