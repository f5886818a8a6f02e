"""Who may read what a private run leaves behind: its owner, whatever library writes it."""

import os

import pytest
import wandb
from test_wandb import offline  # noqa: F401 - a fixture

from lit_fed.cli import main

FIT = [
    "fit", "--data.dataset", "Synthetic", "--model.algorithm", "FedEM", "--model.privacy", "ClientPrivacy",
    "--model.privacy.noise_multiplier", "1", "--model.privacy.delta", "1e-3", "--model.privacy.clip_norm", "1",
    "--data.client_sampling", "poisson", "--data.client_fraction", "0.5",
    "--trainer.max_epochs", "1",
    "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--name", "run",
    "--trainer.logger", "WandbLogger", "--trainer.logger.save_dir", "runs", "--trainer.callbacks+=FederatedWandb",
]  # fmt: skip


@pytest.mark.filterwarnings("default")  # wandb's own warnings are not ours to mend
@pytest.mark.usefixtures("offline")
def test_files_of_a_private_run_are_for_their_owner(tmp_path):
    before = os.umask(0o022)
    try:
        main(FIT)
        last = ["--ckpt_path", "runs/run/version_0/checkpoints/last.ckpt", "--trainer.accelerator", "cpu"]
        main(["predict", *last, "--output", "predictions.csv"])
        main(["export", *last, "--client", "0", "--output", "one.pt2"])
        main(["compare", "runs/run", "--output", "compared"])
    finally:
        wandb.finish()
        wandb.teardown()
        assert os.umask(before) == 0o022
    inside = [path for path in tmp_path.rglob("*") if path.parent != tmp_path and "staging" not in path.parts]
    seen = [one.name for one in inside if one.is_file()]
    assert {"config.yaml", "comparison.csv", "clients.csv"} <= {*seen}
    assert any(name.endswith(".table.json") for name in seen)
    assert any(name.endswith(".wandb") for name in seen)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]  # holds a process id
    assert not [str(path.relative_to(tmp_path)) for path in files if path.stat().st_mode & 0o077]
