"""metrics.csv, and Lightning's loggers beside it: their steps are rounds, and they have the same values."""

import csv
import json
import math
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from lightning.pytorch import loggers
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from lightning_utilities.core.imports import RequirementCache
from quiet import quiet_trainer
from running import run

from lit_fed import FederatedModule
from lit_fed.callbacks import RunReport
from lit_fed.command_line.parser import LOGGERS
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.training.round_logger import RoundLogger, newest_version

KEYS = ["val/seen/accuracy", "val/unseen/loss", "train/seen/loss", "lr"]


def fitted(folder, *own, callbacks=(), rounds=2):
    every, callbacks = [RoundLogger(str(folder), "run"), *own], [*callbacks, RunReport(pictures=False)]
    trainer = quiet_trainer(
        rounds, default_root_dir=folder, logger=every, callbacks=callbacks, enable_checkpointing=True
    )
    data = FederatedDataModule(Digits(), num_clients=6, unseen_fraction=0.3, val_fraction=0.2)
    module = FederatedModule()
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    return trainer


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def logged(folder):
    """What the run's own metrics.csv has, by round and key."""
    written = rows(folder / "run/version_0/metrics.csv")
    return {key: [float(row[key]) for row in written if row[key]] for key in KEYS}


def close(found, wanted):
    return len(found) == len(wanted) and all(
        math.isclose(*both, rel_tol=1e-5) for both in zip(found, wanted, strict=True)
    )


def test_csv(tmp_path):
    fitted(tmp_path, loggers.CSVLogger(str(tmp_path), "csv"))
    written, wanted = rows(tmp_path / "csv/version_0/metrics.csv"), logged(tmp_path)
    for key in KEYS:
        found = [(int(row["step"]), float(row[key])) for row in written if row.get(key)]
        assert [step for step, _ in found] == [0, 1], key
        assert close([value for _, value in found], wanted[key])


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fitted(tmp_path, loggers.TensorBoardLogger(str(tmp_path), "board"))
    events = EventAccumulator(str(tmp_path / "board/version_0"))
    events.Reload()
    wanted = logged(tmp_path)
    for key in KEYS:
        assert [one.step for one in events.Scalars(key)] == [0, 1]
        assert close([one.value for one in events.Scalars(key)], wanted[key])


@pytest.mark.filterwarnings("ignore")  # of packages that MLflow itself uses
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    place = f"file:{tmp_path}/mlflow"
    own = loggers.MLFlowLogger("rounds", tracking_uri=place)
    fitted(tmp_path, own)
    client, wanted = mlflow.tracking.MlflowClient(place), logged(tmp_path)
    for key in KEYS:
        history = sorted(client.get_metric_history(own.run_id, key), key=lambda one: one.step)
        assert [one.step for one in history] == [0, 1]
        assert close([one.value for one in history], wanted[key])


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_without_its_package_names_the_extra(name, tmp_path, monkeypatch):
    extra, requirement = LOGGERS[name]
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"][extra] == [requirement]
    for module, known in (("pytorch", "wandb"), ("pytorch", "mlflow"), ("fabric", "tensorboard")):
        place = f"lightning.{module}.loggers.{known}._{known.upper()}_AVAILABLE"
        monkeypatch.setattr(place, RequirementCache(f"{known}>=9999"))
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE", RequirementCache("x>=9999"))
    given = ["fit", "--data.dataset", "Digits", "--trainer.default_root_dir", str(tmp_path), "--trainer.logger", name]
    done = run([*given, *(["--trainer.logger.save_dir", str(tmp_path)] if name == "TensorBoardLogger" else [])])
    assert done.returncode == 2
    wanted = f'--trainer.logger {name} needs the package {extra}; pip install "{requirement}" (the extra {extra})'
    assert done.stderr.splitlines()[-1] == f"lit_fed: {wanted}"
    assert not list(tmp_path.iterdir())


def test_the_best_of_unseen_clients_is_kept_and_measured_again(tmp_path):
    best = ModelCheckpoint(
        tmp_path / "best", "{step}", monitor="val/unseen/accuracy", mode="max", auto_insert_metric_name=False
    )
    stop = EarlyStopping("val/seen/accuracy_decile", mode="max", patience=3)
    trainer = fitted(tmp_path, callbacks=[best, stop], rounds=3)
    written = [float(row["val/unseen/accuracy"]) for row in rows(tmp_path / "run/version_0/metrics.csv")[:3]]
    assert best.best_model_path.endswith(f"{1 + written.index(max(written))}.ckpt")
    assert float(best.best_model_score) == pytest.approx(max(written), rel=1e-6)
    assert json.loads((tmp_path / "run/version_0/summary.json").read_text())["rounds"] == 3
    module = FederatedModule()
    data = FederatedDataModule(Digits(), num_clients=6, unseen_fraction=0.3, val_fraction=0.2)
    trainer.validate(module, datamodule=data, ckpt_path=best.best_model_path)
    assert module.results["val/unseen/accuracy"] == pytest.approx(max(written), rel=1e-6)


# ---------------------------------------------------------------------- the run's own
def test_a_row_per_round_and_new_columns_later(tmp_path):
    logger = RoundLogger(str(tmp_path), "run")
    logger.log_metrics({"a": 1.0, "epoch": 0}, step=0)
    logger.log_metrics({"a": 2.0}, step=1)
    logger.log_metrics({"b": 5.0}, step=1)
    logger.log_metrics({"a": 3.0}, step=2)
    assert rows(logger.experiment) == [
        {"step": "0", "a": "1.0", "b": ""},
        {"step": "1", "a": "2.0", "b": "5.0"},
        {"step": "2", "a": "3.0", "b": ""},
    ]


def test_versions_count_up(tmp_path):
    assert newest_version(tmp_path / "run") == -1
    for version in (0, 1):
        logger = RoundLogger(str(tmp_path), "run")
        assert logger.version == f"version_{version}"
        logger.log_metrics({"a": 0.0}, step=0)
    (tmp_path / "run/version_x").mkdir()
    assert newest_version(tmp_path / "run") == 1


def test_a_continued_run_keeps_the_rows_before_its_checkpoint(tmp_path):
    logger = RoundLogger(str(tmp_path), "run")
    for step in range(4):
        logger.log_metrics({"a": float(step), "b": 0.5}, step=step)
    text = logger.experiment.read_text()
    logger.experiment.write_text(text + "1")  # cut off by a kill
    again = RoundLogger(str(tmp_path), "run", version=0, keep_rounds=2)
    again.log_metrics({"a": 20.0}, step=2)
    assert [(row["step"], row["a"], row["b"]) for row in rows(again.experiment)] == [
        ("0", "0.0", "0.5"), ("1", "1.0", "0.5"), ("2", "20.0", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00\n", b"step,a\nx,1\n", b"a\n1\n", b"step,a\n0,1,2\n", b"step,a\n0," + b"x" * 2**18 + b"\n"],
    ids=["no text", "no step", "no column", "too long", "too large"],
)
def test_rows_that_no_run_has_written_are_refused_before_it_goes_on(tmp_path, content):
    folder = tmp_path / "run/version_0"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=r"metrics\.csv is not what was written .*; restore it, or move it away"):
        RoundLogger(str(tmp_path)).go_on(folder, 1)
    assert (folder / "metrics.csv").read_bytes() == content


def test_nothing_is_made_before_the_first_row(tmp_path):
    RoundLogger(str(tmp_path), "run").log_hyperparams({"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_runs_that_begin_at_once_share_no_folder(tmp_path):
    """Threads, let go together as often as it takes to meet; before the claim, nearly all of them met."""
    together = Barrier(8)

    def begin(_):
        logger = RoundLogger(str(tmp_path), "run")
        together.wait()
        logger.begin("run")
        return logger.version

    with ThreadPoolExecutor(8) as threads:
        versions = [version for _ in range(10) for version in threads.map(begin, range(8))]
    assert sorted(versions) == sorted(f"version_{number}" for number in range(80))


def test_a_run_that_is_refused_gives_its_folder_back(tmp_path):
    first, second = (RoundLogger(str(tmp_path / "out"), "run") for _ in range(2))
    first.begin("run")
    second.begin("run")
    first.release()
    assert [path.name for path in (tmp_path / "out/run").iterdir()] == ["version_1"]
    second.log_metrics({"a": 0.0}, step=0)
    second.release()
    assert second.experiment.is_file()
    third = RoundLogger(str(tmp_path / "other"), "run")
    third.begin("run")
    third.release()
    assert not (tmp_path / "other").exists()


def test_other_ranks_learn_the_folder_from_rank_zero(tmp_path, monkeypatch):
    zero, one = (RoundLogger(str(tmp_path), "run") for _ in range(2))
    zero.begin("run")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    one.begin("run")
    one.agree(lambda _: zero._version)
    assert one.log_dir == zero.log_dir == str(tmp_path / "run/version_0")
    assert len(list((tmp_path / "run").iterdir())) == 1
