"""W&B offline: what the callback logs arrives in a run that needs no account."""

import pytest
from lightning.pytorch.loggers import WandbLogger

from lit_fed.callbacks import FederatedWandb, with_defaults
from lit_fed.core.errors import ConfigError
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.training import FederatedModule, FederatedTrainer


@pytest.mark.filterwarnings("default")  # wandb's own warnings are not ours to mend
def test_offline_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged = []
    logger = WandbLogger(save_dir=tmp_path, offline=True, project="lit_fed")
    run = logger.experiment
    log = run.log

    def keep(values, *args, **kwargs):
        logged.append(values)
        return log(values, *args, **kwargs)

    monkeypatch.setattr(run, "log", keep)
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=2, logger=logger, enable_progress_bar=False, enable_model_summary=False,
        callbacks=with_defaults([FederatedWandb(every_n_rounds=1)], progress=False, checkpoint=False),
        enable_checkpointing=False,
    )  # fmt: skip
    data, module = FederatedDataModule(Digits(), num_clients=5), FederatedModule()
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, verbose=False)
    run.finish()
    maps = [values for values in logged if "mixture_weights" in values]
    assert [values["round"] for values in maps] == [1, 2]
    table = next(values["clients"] for values in logged if "clients" in values)
    assert len(table.data) == 5
    assert "accuracy" in table.columns
    assert any("test/seen/accuracy" in values for values in logged)
    assert list(tmp_path.rglob("*.wandb"))


def test_without_a_wandb_logger_it_is_refused(tmp_path):
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=1, logger=False, callbacks=with_defaults([FederatedWandb()], checkpoint=False),
        enable_checkpointing=False,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="WandbLogger"):
        trainer.fit(FederatedModule(), datamodule=FederatedDataModule(Digits(), num_clients=5))


def test_wandb_is_imported_lazily():
    import subprocess
    import sys

    program = "import sys, lit_fed.cli; print([m for m in ('wandb', 'pandas', 'sklearn') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
