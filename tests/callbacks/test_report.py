"""What a run leaves behind, and what its progress says."""

import json

import pandas as pd
import pytest
import yaml
from fed_runs import run_cli
from quiet import quiet_trainer

from lit_fed import Digits, FederatedDataModule, FederatedModule
from lit_fed.callbacks.progress import time_left
from lit_fed.callbacks.report import print_table
from lit_fed.cli import main


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    said = run_cli(
        ["fit", "--data.num_clients", "10", "--data.unseen_fraction", "0.2", "--trainer.max_epochs", "3",
         "--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(out)]
    )  # fmt: skip
    return out / "FedEM/version_0", said


def test_the_folder(left_behind):
    folder, _ = left_behind
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "config.yaml", "metrics.csv", "summary.json", "clients.csv", ".lock", "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
        "plots/accuracy_vs_rounds.png", "plots/client_accuracy.png",
        "plots/mixture_weights.png", "plots/mixture_over_rounds.png", "plots/test_samples.png",
        "weights.npz",
    }  # fmt: skip


def test_the_summary(left_behind):
    folder, _ = left_behind
    summary = json.loads((folder / "summary.json").read_text())
    for population in ("seen", "unseen"):
        for metric in ("accuracy", "accuracy_decile", "loss"):
            assert f"test/{population}/{metric}" in summary
    assert summary["rounds"] == 3
    assert all(not isinstance(value, dict | list) for value in summary.values())
    bits = 3 * (64 + 1) * 10 * 32  # three linear models of 64 inputs and 10 classes
    assert summary["comm/total_bytes_down"] == 3 * 8 * bits / 8
    assert summary["comm/total_bytes_up"] == 3 * 8 * bits / 8  # mixture weights stay with their clients


def test_the_clients(left_behind):
    folder, _ = left_behind
    table = pd.read_csv(folder / "clients.csv")
    expected = [
        "client",
        "client_id",
        "population",
        "num_train",
        "num_test",
        "accuracy",
        "loss",
        "pi_0",
        "pi_1",
        "pi_2",
    ]
    assert list(table.columns) == expected
    assert table["client_id"].tolist() == list(range(10))  # the names of unseen clients are missing among the seen
    assert table["population"].value_counts().to_dict() == {"seen": 8, "unseen": 2}
    assert table[["pi_0", "pi_1", "pi_2"]].sum(axis=1).tolist() == pytest.approx([1.0] * 10)
    summary = json.loads((folder / "summary.json").read_text())
    seen = table[table["population"] == "seen"]
    weighted = (seen["accuracy"] * seen["num_test"]).sum() / seen["num_test"].sum()
    assert weighted == pytest.approx(summary["test/seen/accuracy"])
    assert seen["accuracy"].min() == pytest.approx(summary["test/seen/accuracy_worst"])


def test_the_config_runs_again_as_it_is(left_behind, tmp_path):
    folder, _ = left_behind
    config = folder / "config.yaml"
    assert yaml.safe_load(config.read_text())["name"] == "FedEM"
    run_cli(["fit", "--config", str(config), "--trainer.default_root_dir", str(tmp_path)])
    first, second = (json.loads((one / "summary.json").read_text()) for one in (folder, tmp_path / "FedEM/version_0"))
    for summary in (first, second):
        summary.pop("seconds")
    assert first == second


def test_what_is_said(left_behind):
    folder, said = left_behind
    assert "round 0/3" in said
    assert "round 3/3, test accuracy" in said
    assert "unseen" in said
    assert f"results: {folder}" in said


def test_time_left():
    assert time_left(0, 10, 5.0) == "-:--:--"
    assert time_left(5, 10, 3600.0) == "1:00:00"


@pytest.mark.parametrize(
    ("seconds", "arguments", "said"),
    [
        (4.0, {}, "lit_fed: about 2 minutes for 18 more rounds, at the pace of the first 2\n"),
        (6.0, {}, "lit_fed: about 2 minutes for 19 more rounds, at the pace of the first 1\n"),
        (3.0, {}, ""),  # 54 seconds
        (6.0, {"enable_progress_bar": True}, ""),  # the bar says it
    ],
)
def test_a_fit_without_a_progress_bar_says_once_how_long_it_takes(monkeypatch, capsys, seconds, arguments, said):
    now = iter(range(10**6))
    trainer = quiet_trainer(20, limit_val_batches=0, **arguments)
    clock = type("clock", (), {"monotonic": staticmethod(lambda: seconds * next(now))})
    monkeypatch.setattr("lit_fed.callbacks.progress.time", clock)
    trainer.fit(FederatedModule(), datamodule=FederatedDataModule(Digits(), num_clients=3))
    assert capsys.readouterr().err == said


def test_validate_and_test_take_their_arguments_from_the_checkpoint(left_behind):
    folder, _ = left_behind
    last = str(folder / "checkpoints/last.ckpt")
    before = json.loads((folder / "summary.json").read_text())
    said = run_cli(["test", "--ckpt_path", last])
    assert f"{before['test/seen/accuracy']:.4f}" in said
    assert f"{before['test/unseen/accuracy']:.4f}" in said
    assert "seen" in run_cli(["validate", "--ckpt_path", last])
    place = ["--name", "FedEM", "--trainer.default_root_dir", str(folder.parents[1])]
    assert f"{before['test/seen/accuracy']:.4f}" in run_cli(["test", "--ckpt_path", "last", *place])


def test_a_finished_run_continued_reports_the_same(left_behind):
    folder, _ = left_behind
    before = json.loads((folder / "summary.json").read_text())
    config = ["--config", str(folder / "config.yaml"), "--trainer.default_root_dir", str(folder.parents[1])]
    run_cli(["fit", *config, "--ckpt_path", "last"])
    after = json.loads((folder / "summary.json").read_text())
    for summary in (before, after):
        summary.pop("seconds")
    assert before == after
    assert not (folder.parent / "version_1").exists()


def test_a_checkpoint_file_opens_a_new_version(left_behind):
    folder, _ = left_behind
    config = ["--config", str(folder / "config.yaml"), "--trainer.default_root_dir", str(folder.parents[1])]
    last = str(folder / "checkpoints/last.ckpt")
    run_cli(["fit", *config, "--ckpt_path", last, "--trainer.max_epochs", "5"])
    second = folder.parent / "version_1"
    assert json.loads((second / "summary.json").read_text())["rounds"] == 5
    assert pd.read_csv(second / "metrics.csv")["step"].tolist() == [3, 4, 5]
    assert pd.read_csv(folder / "metrics.csv")["step"].tolist() == [0, 1, 2, 3]


def test_a_split_without_samples_is_said_instead_of_an_empty_table(capsys):
    print_table({"test/seen/loss": 1.0, "val/seen/accuracy": 0.5, "val/seen/loss": 1.0}, "test", "accuracy")
    assert capsys.readouterr().out == "test: no client has samples in this split, so nothing was measured\n"
    print_table({"val/seen/accuracy": 0.5, "val/seen/loss": 1.0}, "val", "accuracy")
    assert "0.5000" in capsys.readouterr().out


@pytest.mark.parametrize(("algorithm", "says"), [("FedPer", True), ("FedAvg", False), ("Local", False)])
def test_a_run_in_which_nothing_is_shared_says_so(tmp_path, capsys, algorithm, says):
    main(["fit", "--data.dataset", "Digits", "--data.num_clients", "3", "--model.network", "Linear",
          "--model.algorithm", algorithm, "--trainer.max_epochs", "2", "--trainer.default_root_dir", str(tmp_path),
          "--trainer.accelerator", "cpu"])  # fmt: skip
    said = capsys.readouterr().err
    assert (said.count("clients send nothing: FedPer keeps the whole network with them") == 1) is says
