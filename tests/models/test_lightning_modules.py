"""A LightningModule by its path on the command line: its options, its steps, and what comes back."""

import sys

import pytest

from lit_fed.cli import main

MODULE = '''
import torch
from lightning.pytorch import LightningModule
from torch import nn


class Mine(LightningModule):
    """A classifier."""

    def __init__(self, hidden: int = 8, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1], label_smoothing=0.1)
        self.log("smoothed", loss)
        return loss

    def test_step(self, batch, batch_idx):
        self.log("hits", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def make(input_shape, num_outputs) -> nn.Module:
    return Mine(4)
'''

DATA = ["--data.dataset", "Digits", "--data.num_clients", "3", "--data.batch_size", "64"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_lightning.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_lightning", None)


def run(command, *arguments):
    main([command, *DATA, *arguments, "--trainer.enable_progress_bar", "false"])


def test_a_class_trains_by_its_own_steps_resumes_and_goes_back(folder, capsys):
    chosen = ["--model.network", "own_lightning.Mine", "--model.network.hidden", "4", "--model.network.lr", "0.02"]
    run("fit", *chosen, "--trainer.max_epochs", "1", "--name", "first")
    said = capsys.readouterr().err
    assert "lit_fed: Mine trains by its own training_step\n" in said
    assert "lit_fed: clients step by Adam(lr=0.02) of Mine.configure_optimizers\n" in said
    (checkpoint,) = folder.glob("**/last.ckpt")
    assert "hits" in next(folder.glob("**/clients.csv")).read_text().splitlines()[0].split(",")
    run("fit", *chosen, "--trainer.max_epochs", "2", "--ckpt_path", str(checkpoint))
    run("export", *chosen, "--ckpt_path", str(checkpoint), "--client", "1", "--format", "lightning", "--output", "one")
    from own_lightning import Mine

    loaded = [Mine.load_from_checkpoint(one) for one in sorted((folder / "one").glob("*.ckpt"))]
    assert len(loaded) == 3
    assert dict(loaded[0].hparams) == {"hidden": 4, "lr": 0.02}


def test_a_function_may_make_it(folder, capsys):
    run("fit", "--model.network", "own_lightning.make", "--trainer.max_epochs", "1", "--trainer.logger", "false")
    assert "lit_fed: Mine trains by its own training_step\n" in capsys.readouterr().err


def test_a_typo_in_its_options_is_named(folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        run("fit", "--model.network", "own_lightning.Mine", "--model.network.wdth", "4")
    assert stopped.value.code == 2
    assert "--model.network: Option 'wdth' is not accepted" in capsys.readouterr().err
