"""Steps that are recorded once give what steps give that are taken one by one."""

import pytest
import torch
from federated_round import MULTICLASS, distance, facts, make_clients, make_task, run_rounds, same_bits

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM, FedProx
from lit_fed.clients import SequentialTrainer, choose_trainer, graphed
from lit_fed.clients.graphed import GraphedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Multiclass
from lit_fed.errors import ClientError, ConfigError
from lit_fed.models import MLP

SIZES = [9, 5, 7, 3, 6, 12]


def mlp(shape, outputs):
    return MLP(shape, outputs, (8,))


def after_rounds(algorithm, trainer, **solver):
    federation = run_rounds(
        algorithm, trainer, make_clients(SIZES, target=MULTICLASS, dtype=torch.float64),
        task=make_task(MULTICLASS, network=mlp, dtype=torch.float64), solver=LocalSolver(lr=0.1, **solver),
    )  # fmt: skip
    return federation.shared, federation.states


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2), FedProx(prox_weight=0.3)])
def test_padded_batches_give_the_same_models(algorithm):
    trainer = GraphedTrainer()
    one, other = (
        after_rounds(algorithm, each, momentum=0.9, weight_decay=0.01) for each in (SequentialTrainer(), trainer)
    )
    assert distance(one, other) < 1e-12
    widths = {1 << (min(size, 5) - 1).bit_length() for size in SIZES}
    assert 0 < len(trainer._solver[1].recorded) <= len(widths) + 1  # and no step of its own for every width


def test_a_step_that_cannot_be_recorded_names_the_other_trainer(monkeypatch):
    """`auto` may have chosen it, so that the user never named the trainer."""

    def record(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphed, "Recorded", record)
    with pytest.raises(ClientError, match=r"not permitted.* MLP, .*give --model\.client_trainer sequential"):
        after_rounds(FedAvg(), GraphedTrainer())


def test_it_needs_a_gpu():
    with pytest.raises(ConfigError, match="the device is cpu"):
        choose_trainer("graphed", mlp((3,), 2), torch.device("cpu"))


def test_the_device_of_a_module_decides(monkeypatch):
    """A fit on a GPU takes it: Lightning says where a module will be before it is there."""
    given = facts(Multiclass(3), (3,))
    with pytest.raises(ConfigError, match="the device is cpu"):
        FederatedModule(FedAvg(), client_trainer="graphed").build(given)
    monkeypatch.setattr(FederatedModule, "device", torch.device("cuda"))
    module = FederatedModule(FedAvg(), client_trainer="graphed")
    module.build(given)
    assert module.federation.client_trainer.name == "graphed"


@pytest.mark.parametrize("names", ["private", "public"])
def test_tensors_are_copied_by_type(names, request):
    if names == "public":
        request.getfixturevalue("public_names")
    sources = [torch.arange(3.0), torch.ones(2, dtype=torch.int64), torch.rand(2, 2)]
    targets = [torch.zeros_like(one) for one in sources]
    graphed._copy(targets, sources)
    assert same_bits(targets, sources)
