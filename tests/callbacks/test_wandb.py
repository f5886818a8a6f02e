"""W&B offline: what is logged stands in the file of a run that needs no account."""

import json
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import wandb
import yaml
from quiet import quiet_trainer
from running import run
from wandb_records import artefacts, config, history, records, summary

from lit_fed import FederatedModule
from lit_fed.callbacks import FederatedWandb
from lit_fed.cli import main
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
LOGGED = ["fit", "--config", f"{CONFIGS}/logger/wandb.yaml", "--config", f"{CONFIGS}/logger/best_checkpoint.yaml"]
SMALL = [
    "--config", f"{CONFIGS}/experiment/quickstart.yaml", "--name", "run", "--trainer.enable_progress_bar", "false",
    "--data.val_fraction", "0.2", "--trainer.check_val_every_n_epoch", "2",
]  # fmt: skip


def fit(*arguments):
    """Run the command line here, and end its W&B run as the end of a process does."""
    try:
        main([*LOGGED, *SMALL, *arguments])
    finally:
        wandb.finish()
        wandb.teardown()


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty folder to run in; nothing is sent, and no run's id stays behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    monkeypatch.setenv("WANDB_RUN_ID", "")  # to be restored
    monkeypatch.delenv("WANDB_RUN_ID")
    return tmp_path / "runs/wandb"


@pytest.mark.filterwarnings("default")  # wandb's own warnings are not ours to mend
@pytest.mark.usefixtures("rendered")
def test_a_run_and_its_continuation(offline):
    fit("--trainer.max_epochs", "4")
    folder, rows = Path("runs/run/version_0"), history(offline)
    plain = yaml.safe_load((folder / "config.yaml").read_text())
    assert {key: config(offline)[key] for key in plain} == plain
    by_round = {row["round"]: row for row in rows if "comm/bytes_up" in row}
    assert sorted(by_round) == [1, 2, 3, 4]
    assert [row["round"] for row in rows if "val/seen/accuracy" in row] == [2, 4]
    check_final_results(offline, folder, rows)
    check_pictures(offline, folder, rows)
    check_best(offline, folder, rows)
    first = {path.name for path in offline.glob("offline-run-*")}
    (run_id,) = {one.run.run_id for one in records(offline) if one.WhichOneof("record_type") == "run"}

    fit("--trainer.max_epochs", "6", "--ckpt_path", "last")
    (second,) = [path for path in offline.glob("offline-run-*") if path.name not in first]
    assert {one.run.run_id for one in records(second) if one.WhichOneof("record_type") == "run"} == {run_id}
    assert sorted({row["round"] for row in history(second) if "comm/bytes_up" in row}) == [5, 6]


def check_final_results(offline, folder, rows):
    written, logged = json.loads((folder / "summary.json").read_text()), summary(offline)
    assert {key: logged[key] for key in written} == pytest.approx(written)
    (place,) = [row["clients.path"] for row in rows if "clients.path" in row]
    table = json.loads(next(offline.glob(f"offline-run-*/files/{place}")).read_text())
    clients = pd.read_csv(folder / "clients.csv")
    assert table["columns"] == clients.columns.tolist()
    accuracy = [row[table["columns"].index("accuracy")] for row in table["data"]]
    assert accuracy == pytest.approx(clients["accuracy"].tolist())


def check_pictures(offline, folder, rows):
    maps = [(row["round"], row["mixture_weights.path"]) for row in rows if "mixture_weights.path" in row]
    assert [number for number, _ in maps] == [2, 4]
    final = matplotlib.image.imread(folder / "plots/mixture_weights.png")
    last = matplotlib.image.imread(next(offline.glob(f"offline-run-*/files/{maps[-1][1]}")))
    assert np.ptp(last[..., :3]) == 1
    assert abs(last.shape[1] - final.shape[1]) < 5
    drawn = {key.removesuffix(".path") for row in rows for key in row if key.startswith("plots/")} & {
        f"plots/{path.stem}" for path in (folder / "plots").glob("*.png")
    }
    assert drawn == {f"plots/{path.stem}" for path in (folder / "plots").glob("*.png")}


def check_best(offline, folder, rows):
    (best,) = [one for one in artefacts(offline) if one.type == "model"]
    accuracy = [row["val/seen/accuracy"] for row in rows if "val/seen/accuracy" in row]
    assert json.loads(best.metadata)["score"] == pytest.approx(max(accuracy))
    assert "best" in best.aliases
    (entry,) = best.manifest.contents
    assert entry.size == (folder / "checkpoints/best.ckpt").stat().st_size
    assert (folder / "checkpoints/last.ckpt").is_file()


def test_two_ranks_are_one_run(offline):
    ranks = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp", "--trainer.max_epochs", "2"]
    finished = run([*LOGGED, *SMALL, *ranks], ranks=2)
    assert finished.returncode == 0, finished.stderr
    rows = history(offline)  # there is one file
    assert sorted(row["round"] for row in rows if "comm/bytes_up" in row) == [1, 2]
    assert [row["round"] for row in rows if "mixture_weights.path" in row] == [2]
    assert sum(one.type == "model" for one in artefacts(offline)) == 1


def test_heat_maps_keep_their_distance(monkeypatch):
    trainer = quiet_trainer(7)
    trainer.state.fn = "fit"
    logged = []
    monkeypatch.setattr("lit_fed.callbacks.wandb._log", lambda trainer, values: logged.append(module.num_rounds_done))

    class Module(FederatedModule):
        num_rounds, num_rounds_done = 7, 0
        store = SimpleNamespace(has_mixtures=True)

    module, callback = Module(), FederatedWandb(every_n_rounds=3)
    for module.num_rounds_done in (1, 2, 3, 4, 5, 6, 7):
        callback.on_validation_end(trainer, module)
    assert logged == [1, 4, 7]


def test_without_a_wandb_logger_it_is_refused(tmp_path):
    trainer = quiet_trainer(callbacks=[FederatedWandb()])
    with pytest.raises(ConfigError, match="WandbLogger"):
        trainer.fit(FederatedModule(), datamodule=FederatedDataModule(Digits(), num_clients=5))
