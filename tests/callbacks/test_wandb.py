"""W&B offline: what is logged stands in the file of a run that needs no account."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import wandb
import yaml
from lightning.pytorch.loggers import WandbLogger
from quiet import quiet_trainer
from running import run
from wandb_records import artefacts, config, history, records, summary

from lit_fed import MLP, FedEM, FederatedModule, FederatedTrainer, LocalSolver, RoundLogger
from lit_fed.callbacks import FederatedWandb
from lit_fed.cli import main
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ClientError, ConfigError, DivergedError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
LOGGED = ["fit", "--config", f"{CONFIGS}/logger/wandb.yaml", "--config", f"{CONFIGS}/logger/best_checkpoint.yaml"]
SMALL = [
    "--config", f"{CONFIGS}/experiment/quickstart.yaml", "--name", "run", "--trainer.enable_progress_bar", "false",
    "--data.val_fraction", "0.2", "--trainer.check_val_every_n_epoch", "2",
]  # fmt: skip
DIGITS = ["--data.dataset", "Digits", "--data.num_clients", "3", "--trainer.max_epochs", "2"]
WANDB = ["--trainer.logger", "WandbLogger", "--trainer.logger.save_dir", "a", "--trainer.enable_progress_bar", "false"]


@contextmanager
def process():
    """Ends a W&B run as the end of a process does."""
    try:
        yield
    finally:
        wandb.finish()
        wandb.teardown()


def fit(*arguments):
    """Run the command line here."""
    with process():
        main([*LOGGED, *SMALL, *arguments])


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
    check_results_by_bytes(rows)
    (name,) = {one.run.display_name for one in records(offline) if one.WhichOneof("record_type") == "run"}
    assert name == "run"
    check_final_results(offline, folder, rows)
    check_clients_by_round(offline, rows)
    check_pictures(offline, folder, rows)
    check_best(offline, folder, rows)
    first = {path.name for path in offline.glob("offline-run-*")}
    (run_id,) = {one.run.run_id for one in records(offline) if one.WhichOneof("record_type") == "run"}

    fit("--trainer.max_epochs", "6", "--ckpt_path", "last")
    (second,) = [path for path in offline.glob("offline-run-*") if path.name not in first]
    assert {one.run.run_id for one in records(second) if one.WhichOneof("record_type") == "run"} == {run_id}
    later = history(second)
    assert sorted({row["round"] for row in later if "comm/bytes_up" in row}) == [5, 6]
    sent = sum(
        row["comm/bytes_up"] + row["comm/bytes_down"] for row in [*by_round.values(), *later] if "comm/bytes_up" in row
    )
    assert [row["comm/sent_mb"] for row in later if "comm/sent_mb" in row][-1] == pytest.approx(sent / 1e6)


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("rendered")
def test_fits_of_a_series_have_its_name(offline, tmp_path):
    """As `fit --seeds` starts them, whose folders are called alike in every series."""
    (tmp_path / "few").mkdir()
    (tmp_path / "few/series.json").write_text("{}")
    with process():
        main(["fit", *DIGITS, *WANDB, "--trainer.default_root_dir", "few", "--name", "seed_0"])
    (name,) = {one.run.display_name for one in records(tmp_path / "a/wandb") if one.WhichOneof("record_type") == "run"}
    assert name == "few_seed_0"


def check_results_by_bytes(rows):
    sent = np.cumsum([row["comm/bytes_up"] + row["comm/bytes_down"] for row in rows if "comm/bytes_up" in row]) / 1e6
    shown = [row for row in rows if "by_bytes/val/seen/accuracy" in row]
    assert [row["comm/sent_mb"] for row in shown] == pytest.approx([sent[1], sent[3]])
    assert all(row["by_bytes/val/seen/accuracy"] == row["val/seen/accuracy"] for row in shown)
    counts = [row["clients_histogram.values"] for row in rows if "clients_histogram.values" in row]
    assert len(counts) == 2


def check_final_results(offline, folder, rows):
    written, logged = json.loads((folder / "summary.json").read_text()), summary(offline)
    assert {key: logged[key] for key in written} == pytest.approx(written)
    (place,) = [row["clients.path"] for row in rows if "clients.path" in row]
    table = json.loads(next(offline.glob(f"offline-run-*/files/{place}")).read_text())
    clients = pd.read_csv(folder / "clients.csv")
    assert table["columns"] == clients.columns.tolist()
    accuracy = [row[table["columns"].index("accuracy")] for row in table["data"]]
    assert accuracy == pytest.approx(clients["accuracy"].tolist())


def check_clients_by_round(offline, rows):
    shown = [row for row in rows if "clients_by_round.path" in row]
    assert [row["round"] for row in shown] == [2, 4]
    for row in shown:
        table = json.loads(next(offline.glob(f"offline-run-*/files/{row['clients_by_round.path']}")).read_text())
        results = pd.DataFrame(table["data"], columns=table["columns"])
        assert set(results["round"]) == {row["round"]}
        assert results["client"].is_unique
        for population, its in results.groupby("population"):
            mean = np.average(its["accuracy"], weights=its["num_val"])
            assert mean == pytest.approx(row[f"val/{population}/accuracy"])


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


def comparable(row):
    """A row without times, and without places of files."""
    return {
        key: value for key, value in row.items() if not key.startswith(("_", "time/", "seconds")) and "." not in key
    }


@pytest.mark.filterwarnings("default")
def test_command_line_and_python_leave_equal_records(offline):
    """A round is one row; a Python run has its configuration, and a resume continues it."""
    given = [*DIGITS, *WANDB, "--model.network", "MLP", "--model.solver.lr", "0.2"]
    with process():
        main(["fit", *given, "--trainer.callbacks+=FederatedWandb", "--trainer.check_val_every_n_epoch", "1"])
    for rounds, path in ((2, None), (3, "last")):
        logger = [RoundLogger("runs", "python"), WandbLogger(save_dir=f"b{rounds}")]
        trainer = FederatedTrainer(
            accelerator="cpu", max_epochs=rounds, check_val_every_n_epoch=1, logger=logger,
            callbacks=[FederatedWandb()], enable_progress_bar=False,
        )  # fmt: skip
        module, data = FederatedModule(FedEM(), LocalSolver(lr=0.2), MLP), FederatedDataModule(Digits(), num_clients=3)
        with process():
            trainer.fit(module, data, ckpt_path=path)
            trainer.test(module, data)
    for section in ("model", "data", "seed_everything"):
        assert config("a")[section] == config("b2")[section]
    assert config("b2")["trainer"]["max_epochs"] == 2
    rows = [comparable(row) for row in history("a")]
    assert rows == [comparable(row) for row in history("b2")]
    assert [row["round"] for row in rows] == [1, 2, 2]
    assert {"lr", "comm/bytes_up", "train/seen/loss", "test/seen/accuracy"} <= rows[0].keys()
    assert comparable(summary("a")) == comparable(summary("b2"))
    assert [row["round"] for row in history("b3")] == [3, 3]
    ids = [{one.run.run_id for one in records(name) if one.WhichOneof("record_type") == "run"} for name in ("b2", "b3")]
    assert ids[0] == ids[1] != {one.run.run_id for one in records("a") if one.WhichOneof("record_type") == "run"}


@pytest.mark.filterwarnings("default")
def test_the_logger_alone_has_a_row_for_each_round(offline):
    with process():
        main(["fit", *DIGITS, *WANDB, "--model.algorithm", "FedAvg"])
    assert [row["round"] for row in history("a")] == [1, 2, 2]


def test_a_run_that_is_refused_behind_its_start_leaves_no_row(offline):
    with process(), pytest.raises(SystemExit):
        main(["fit", *DIGITS, *WANDB, "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", "val/x"])
    assert history("a") == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DivergedError("the loss is not finite", 1), 2),
        (ConfigError("refused"), 2),
        (ClientError(0, "client_step", 0, "failed"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_wandb_hears_how_a_run_ended(monkeypatch, error, status):
    """It replaces `sys.exit`; a sweep takes a run that ends with 0 for a success."""
    heard = []

    def run(args, cli):
        raise error

    def leave(code):
        heard.append(code)
        raise SystemExit(code)

    monkeypatch.setattr("lit_fed.cli._run", run)
    monkeypatch.setattr("sys.exit", leave)
    with pytest.raises(SystemExit):
        main([])
    assert heard == [status]


@pytest.mark.parametrize("command", ["test", "validate", "predict"])
def test_other_commands_take_the_configuration_of_a_wandb_run(tmp_path, command):
    trainer = quiet_trainer(callbacks=[FederatedWandb()])
    getattr(trainer, command)(FederatedModule(), datamodule=FederatedDataModule(Digits(), num_clients=3))


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
