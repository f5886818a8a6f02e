"""Predictions of a run's clients: the numbers of its test, sample by sample."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from running import SMALL, folder, run

from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.cli import main
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

P = [f"p_{c}" for c in range(10)]
CPU = ["--trainer.accelerator", "cpu"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of a run of FedEM, two rounds."""
    out = tmp_path_factory.mktemp("runs")
    main(
        ["fit", *SMALL, "--trainer.max_epochs", "2", "--model.algorithm", "FedEM", "--model.client_trainer",
         "sequential", "--trainer.default_root_dir", str(out)]
    )  # fmt: skip
    return out


def predict(out, *arguments):
    main(["predict", *CPU, "--trainer.default_root_dir", str(out), "--ckpt_path", "last", *arguments])


def digits():
    """The clients of `SMALL`."""
    data = FederatedDataModule(Digits(), num_clients=8, unseen_fraction=0.25)
    data.setup()
    return data


def test_the_configuration_of_a_fit_is_one_of_predict(out, tmp_path):
    found = [tmp_path / "alone.csv", tmp_path / "configured.csv"]
    for path, given in zip(found, ([], ["--config", str(folder(out, "FedEM") / "config.yaml")]), strict=True):
        predict(out, "--output", str(path), *given)
    assert found[0].read_bytes() == found[1].read_bytes()


@pytest.mark.parametrize(("population", "ending"), [("seen", "csv"), ("unseen", "parquet")])
def test_predictions_are_those_of_the_test(out, tmp_path, population, ending):
    path = tmp_path / f"deep/predictions.{ending}"
    predict(out, "--output", str(path), "--population", population)
    table = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    assert table.columns.tolist() == ["client", "client_id", "sample", "label", "prediction", *P]
    assert list(path.parent.iterdir()) == [path]
    np.testing.assert_allclose(table[P].sum(axis=1), 1, rtol=1e-5)
    assert (table["prediction"] == table[P].to_numpy().argmax(1)).all()
    pairs = list(zip(table["client_id"], table["sample"], strict=True))
    assert pairs == sorted(pairs)

    clients = pd.read_csv(folder(out, "FedEM") / "clients.csv").query("population == @population")
    table["hit"] = table["label"] == table["prediction"]
    table["loss"] = -np.log(table[P].to_numpy()[np.arange(len(table)), table["label"]])
    by_client = table.groupby("client_id")
    assert by_client["client"].first().astype(int).tolist() == clients["client"].tolist()
    assert by_client["client"].first().index.tolist() == clients["client_id"].tolist()
    first_id = 0 if population == "seen" else 6
    assert by_client["hit"].mean().index.tolist() == list(range(first_id, first_id + len(clients)))
    np.testing.assert_allclose(by_client["hit"].mean(), clients["accuracy"], rtol=1e-12)
    np.testing.assert_allclose(by_client["loss"].mean(), clients["loss"], rtol=1e-5)
    summary = json.loads((folder(out, "FedEM") / "summary.json").read_text())
    assert table["hit"].mean() == pytest.approx(summary[f"test/{population}/accuracy"], rel=1e-12)


def test_probabilities_equal_those_of_numpy(out, tmp_path):
    """Mixed softmax outputs of the checkpoint's components, on the training samples."""
    predict(out, "--output", str(tmp_path / "train.csv"), "--split", "train")
    table = pd.read_csv(tmp_path / "train.csv")
    train = digits().seen.train
    state = torch.load(folder(out, "FedEM") / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    weight, bias, mixture = (
        state[name].double().numpy()
        for name in ("models__parameters__linear_weight", "models__parameters__linear_bias", "store.mixture_weights")
    )
    logits = np.einsum("ni,mki->nmk", train.x.flatten(1).double().numpy(), weight) + bias
    shares = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    client = np.repeat(np.arange(train.num_clients), train.sizes.numpy())
    np.testing.assert_allclose(table[P], np.einsum("nm,nmk->nk", mixture[client], shares), atol=2e-6)
    assert table["label"].tolist() == train.y.tolist()
    assert table["client_id"].tolist() == client.tolist()


def test_two_ranks_write_the_file_of_one(out, tmp_path):
    arguments = ["predict", *CPU, "--trainer.default_root_dir", str(out), "--ckpt_path", "last", "--output"]
    predict(out, "--output", str(tmp_path / "one.csv"))
    two = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"]
    finished = run([*arguments, str(tmp_path / "two.csv"), *two], ranks=2)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("predictions:") == 1
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


@pytest.mark.parametrize("name", ["FedAvgPlus", "Local"])
def test_seen_clients_are_served_as_in_the_test(tmp_path, name):
    arguments = ["--trainer.max_epochs", "1", "--model.algorithm", name, "--trainer.default_root_dir", str(tmp_path)]
    main(["fit", *SMALL, *arguments])
    main(["predict", *CPU, *arguments[2:], "--ckpt_path", "last", "--output", str(tmp_path / "predictions.csv")])
    table = pd.read_csv(tmp_path / "predictions.csv")
    clients = pd.read_csv(folder(tmp_path, name) / "clients.csv").query("population == 'seen'")
    found = (table["label"] == table["prediction"]).groupby(table["client_id"]).mean()
    np.testing.assert_allclose(found, clients["accuracy"], rtol=1e-12)


def test_in_python_the_table_is_returned(tmp_path):
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    module, data = FederatedModule(), FederatedDataModule(Digits(), num_clients=8, eval_clients=3)
    trainer.fit(module, datamodule=data)
    before = list(trainer.callbacks)
    table = trainer.predict(module, data, output=str(tmp_path / "predictions.csv"))
    assert trainer.callbacks == before
    assert table["client_id"].unique().tolist() == data.seen.measured.tolist()
    assert table["p_0"].dtype == np.float32
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "predictions.csv", dtype=table.dtypes.to_dict()), table)
    assert trainer.predict(module, data, return_predictions=False, output=str(tmp_path / "predictions.csv")) is None
    with pytest.raises(ConfigError, match="datamodule"):
        trainer.predict(module, output=str(tmp_path / "predictions.csv"))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--output", "predictions.txt"], ["predictions.txt", ".csv", ".parquet"]),
        (["--output", "/proc/nowhere/predictions.csv"], ["/proc/nowhere", "choose a folder"]),
        (["--output", "p.csv", "--split", "val"], ["--split val", "no samples"]),
        (["--output", "p.csv", "--split", "dev"], ["split", "dev"]),
        (["--output", "p.csv", "--model.algorithm", "FedAvg"], ["FedAvg", "FedEM"]),
        (["--output", "p.csv", "--data.num_clients", "5"], ["num_clients", "5", "8"]),
        (["--output", "p.csv", "--trainer.limit_predict_batches", "2"], ["limit_predict_batches"]),
    ],
)
def test_wrong_arguments(out, tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    last = folder(out, "FedEM") / "checkpoints/last.ckpt"
    said = refused(capsys, ["predict", *CPU, "--ckpt_path", str(last), *arguments])
    for part in parts:
        assert part in said, said
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_needed(capsys):
    assert "--ckpt_path" in refused(capsys, ["predict", *CPU])


def test_a_missing_package_is_named(out, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    last = folder(out, "FedEM") / "checkpoints/last.ckpt"
    said = refused(capsys, ["predict", *CPU, "--ckpt_path", str(last), "--output", str(tmp_path / "p.parquet")])
    assert 'pip install "pyarrow>=15"' in said


def test_no_unseen_clients(tmp_path, capsys):
    main(
        ["fit", *CPU, "--data.num_clients", "4", "--trainer.max_epochs", "1", "--trainer.default_root_dir",
         str(tmp_path)]
    )  # fmt: skip
    capsys.readouterr()
    last = str(folder(tmp_path, "FedEM") / "checkpoints/last.ckpt")
    output = str(tmp_path / "p.csv")
    said = refused(capsys, ["predict", *CPU, "--ckpt_path", last, "--population", "unseen", "--output", output])
    assert "--population unseen" in said
    assert not (tmp_path / "p.csv").exists()


def refused(capsys, arguments):
    """What the command line says when it refuses."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said
