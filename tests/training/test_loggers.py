"""Loggers of Lightning beside the run's own: their steps are rounds, and they have all that metrics.csv has."""

import csv
import json
import math

import pytest
from lightning.pytorch import loggers
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.callbacks import RunReport
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule

KEYS = ["val/seen/accuracy", "val/unseen/loss", "train/seen/loss", "lr"]


def fitted(folder, *own, callbacks=(), rounds=2):
    trainer = FederatedTrainer(
        max_epochs=rounds, accelerator="cpu", enable_progress_bar=False, default_root_dir=folder,
        logger=[RoundLogger(str(folder), "run"), *own], callbacks=[*callbacks, RunReport(pictures=False)],
    )  # fmt: skip
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


def test_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    place = f"sqlite:///{tmp_path}/mlflow.db" if _has_sqlalchemy() else f"file:{tmp_path}/mlflow"
    own = loggers.MLFlowLogger("rounds", tracking_uri=place)
    fitted(tmp_path, own)
    client, wanted = mlflow.tracking.MlflowClient(place), logged(tmp_path)
    for key in KEYS:
        history = sorted(client.get_metric_history(own.run_id, key), key=lambda one: one.step)
        assert [one.step for one in history] == [0, 1]
        assert close([one.value for one in history], wanted[key])


def _has_sqlalchemy():
    from importlib.util import find_spec

    return find_spec("sqlalchemy") is not None


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
