"""A LightningModule is no network: its steps would never be called, so it is refused by name."""

import sys
from functools import partial

import pytest
from lightning.pytorch import LightningModule
from quiet import quiet_trainer
from torch import nn

from lit_fed import FedAvg, FederatedDataModule, FederatedModule, LocalSolver
from lit_fed.cli import main
from lit_fed.errors import ConfigError

MODULE = """
from lightning.pytorch import LightningModule
from torch import nn


class Mine(LightningModule):
    def __init__(self, hidden: int HIDDEN):
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        raise RuntimeError("called")

    def configure_optimizers(self):
        raise RuntimeError("called")


def make(input_shape, num_outputs) -> nn.Module:
    return Mine(8)
"""

REFUSED = (
    r"--model.network is Mine, a LightningModule, and clients would never call its training_step and "
    r"configure_optimizers; give the torch module inside it, such as its \.model"
)


class Mine(LightningModule):
    def __init__(self, hidden=8):
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return self.model(x)


@pytest.mark.parametrize("network", [Mine(), Mine, partial(Mine, hidden=4)], ids=["instance", "class", "partial"])
def test_it_is_refused_at_once(network):
    with pytest.raises(ConfigError, match=REFUSED):
        FederatedModule(FedAvg(), LocalSolver(), network)


def test_one_that_a_function_makes_is_refused_before_training():
    module = FederatedModule(FedAvg(), network=lambda input_shape, num_outputs: Mine())
    with pytest.raises(ConfigError, match=REFUSED):
        quiet_trainer().fit(module, FederatedDataModule(num_clients=2))


def test_the_module_inside_it_trains():
    quiet_trainer().fit(FederatedModule(FedAvg(), network=Mine().model), FederatedDataModule(num_clients=2))


@pytest.mark.parametrize("name", ["Mine", "make"])
@pytest.mark.parametrize("default", ["= 8", ""], ids=["optional", "required"])
def test_the_command_line_refuses_it_by_path(name, default, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_lightning.py").write_text(MODULE.replace("HIDDEN", default))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(
            ["fit", "--model.network", f"own_lightning.{name}", "--data.dataset", "Digits", "--trainer.logger", "false"]
        )
    sys.modules.pop("own_lightning")
    assert stopped.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--model.network is Mine, a LightningModule, and clients would never call" in said
    assert "Traceback" not in said
