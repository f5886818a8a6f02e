"""A LightningModule's own steps on nodes: the numbers of the simulation, bit for bit, and what nodes cannot have."""

import pytest
import torch
import torch.nn.functional as F
from in_process import InProcess, InProcessFederation, make_nodes, node_folders
from lightning.pytorch import LightningModule
from quiet import quiet_trainer
from test_conformance import equal_sides, sides
from torch import nn

from lit_fed import FederatedDataModule, FederatedModule, OwnLoss
from lit_fed.algorithms import SCAFFOLD, Ditto, FedAvg, FedEM
from lit_fed.errors import ConfigError


class Smoothed(LightningModule):
    """Label smoothing, dropout, and steps that read the epoch and log."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1], label_smoothing=0.1)
        self.log("smoothed", loss)
        return loss * (1 + self.current_epoch)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return node_folders(tmp_path_factory.mktemp("clients"))


@pytest.mark.parametrize("algorithm", [FedAvg(), SCAFFOLD(), Ditto(), FedEM()], ids=lambda one: type(one).__name__)
def test_nodes_are_the_simulation(algorithm, folders, tmp_path):
    both = sides(folders, tmp_path, FederatedModule(algorithm, network=Smoothed).settings)
    equal_sides(both, [None, None])


def test_a_loss_of_its_own_as_target_is_refused_on_nodes(folders, tmp_path):
    module = FederatedModule(FedAvg(), network=Smoothed, target=OwnLoss())
    nodes = make_nodes(folders, tmp_path, settings=module.settings)
    data = FederatedDataModule(InProcessFederation(InProcess(nodes)))
    with pytest.raises(ConfigError, match=r"--model.target OwnLoss needs labels beside inputs, and samples are drawn"):
        quiet_trainer(1).fit(module, data)
