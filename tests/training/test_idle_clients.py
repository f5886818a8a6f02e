"""Clients that take no local step: no loss of 0 in any mean, a line of how many they are, an error where nobody can."""

import numpy as np
import pytest
import torch
from quiet import quiet_trainer

from lit_fed import FedAvg, FedEM, FederatedDataModule, FederatedModule, LocalSolver, rounds
from lit_fed.algorithms import GADMM, FedProx, FedSGD
from lit_fed.core.targets import Multiclass
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear
from lit_fed.models.base import Network


class Normalised(Network):
    """With batch normalisation, which needs two samples."""

    def __init__(self, input_shape, num_outputs, width=4):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, num_outputs)
        )

    def forward(self, x):
        return self.layers(x)


def clients(*sizes):
    rng = np.random.default_rng(0)
    return {f"c{i}": (rng.normal(size=(n, 4)), np.arange(n) % 3) for i, n in enumerate(sizes)}


def fit(data, network, algorithm=None, **solver):
    module = FederatedModule(algorithm or FedAvg(), LocalSolver(**{"lr": 0.1, **solver}), network)
    quiet_trainer(2).fit(module, datamodule=data)
    return module


@pytest.mark.parametrize("client_trainer", ["sequential", "vectorized"])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2)])
def test_a_client_of_one_sample_is_no_loss_of_zero(algorithm, client_trainer):
    """The mean is that of the other clients, whose models do not depend on it in the first round."""
    torch.manual_seed(0)
    some = [(torch.randn(n, 4), torch.arange(n) % 3) for n in (12, 20, 1)]
    losses = []
    for chosen in (some, some[:2]):
        task = Task.create(lambda: Normalised((4,), 3), Multiclass(3))
        federation = rounds.start(algorithm, task, Split.of(chosen), client_trainer=client_trainer, batch_size=8)
        losses.append(federation.round(Split.of(chosen)).metrics["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_how_many_can_never_step_is_said_once(capsys):
    data = FederatedDataModule.from_clients(clients(12, 1, 20, 1), test_fraction=0)
    module = fit(data, Normalised)
    said = capsys.readouterr().err
    assert said.count("2 of 4 clients can never take a local step, since BatchNorm needs 2 samples in a batch;") == 1
    assert module.results["train/seen/loss"] > 0.5


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2)])
def test_without_local_epochs_there_is_no_training_loss(capsys, algorithm):
    module = fit(FederatedDataModule.from_clients(clients(12, 20)), MLP, algorithm, local_epochs=0)
    assert "train/seen/loss" not in module.results
    assert "2 of 2 clients can never take a local step, since no local epochs are asked for" in capsys.readouterr().err


@pytest.mark.parametrize(("sizes", "batch_size", "largest"), [((12, 20), 1, 1), ((1, 1), 8, 1)])
def test_batches_too_small_for_batch_norm_are_refused_before_training(sizes, batch_size, largest):
    data = FederatedDataModule.from_clients(clients(*sizes), batch_size=batch_size, test_fraction=0)
    with pytest.raises(
        ConfigError, match=rf"BatchNorm needs 2 samples in a batch, and the largest has {largest}; give"
    ):
        fit(data, Normalised)


@pytest.mark.parametrize("algorithm", [FedSGD(), FedProx(local_solve="exact"), GADMM(local_solve="exact")])
def test_algorithms_without_local_steps_have_none_to_miss(capsys, algorithm):
    module = fit(FederatedDataModule.from_clients(clients(12, 20)), Linear, algorithm, local_epochs=0)
    assert "never take a local step" not in capsys.readouterr().err
    assert "train/seen/loss" in module.results
