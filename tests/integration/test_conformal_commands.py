"""Prediction sets on the command line: two ranks, a blend, a report."""

import json

import numpy as np
import pandas as pd
import pytest
from running import folder, history, numbers, run

ARGUMENTS = [
    "--data.dataset", "Synthetic", "--data.dataset.num_clients", "12", "--data.dataset.dimension", "6",
    "--data.dataset.test_size", "20", "--data.dataset.variant", "corrected", "--data.unseen_fraction", "0.2",
    "--data.val_fraction", "0.2", "--data.calibration_fraction", "0.2", "--model.conformal", "0.9",
    "--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", "--model.client_trainer", "sequential",
]  # fmt: skip


def fit(root, name, *more, ranks=1):
    place = ["--model.algorithm", name, "--trainer.default_root_dir", str(root)]
    done = run(["fit", *ARGUMENTS, *place, *more], ranks=ranks)
    assert done.returncode == 0, done.stderr
    return folder(root, name), done


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return {name: fit(root, name) for name in ("FedEM", "Local")}


def test_two_ranks_equal_one(runs, tmp_path):
    one, done = runs["FedEM"]
    options = ["--data.clients_per_block", "2", "--trainer.devices", "2", "--trainer.strategy", "fed_ddp"]
    two, again = fit(tmp_path, "FedEM", *options, ranks=2)
    assert numbers(one) == numbers(two)
    assert history(one) == history(two)
    for name in ("clients.csv", "coverage.csv"):
        assert (one / name).read_text() == (two / name).read_text()
    said = [line for line in done.stdout.splitlines() if "test samples covered" in line]
    assert len(said) == 2
    assert "12 classes" not in said[0]
    assert "90.0% asked for; mean set size" in said[0]
    assert [line for line in again.stdout.splitlines() if "test samples covered" in line] == said


def test_a_blend_has_thresholds_of_its_own(runs, tmp_path):
    """By calibration samples, which no weight was fitted to."""
    places = [str(place) for place, _ in runs.values()]
    done = run(["blend", *places, "--output", str(tmp_path / "blend")])
    assert done.returncode == 0, done.stderr
    place = folder(tmp_path, "blend")
    clients, last = pd.read_csv(place / "clients.csv").set_index("client_id"), str(place / "checkpoints/last.ckpt")
    done = run(["predict", "--ckpt_path", last, "--split", "calibration", "--output", str(tmp_path / "held.csv")])
    assert done.returncode == 0, done.stderr
    held = pd.read_csv(tmp_path / "held.csv")
    p = held.filter(regex="^p_").to_numpy()
    held["score"] = 1 - p[np.arange(len(held)), held["label"]]
    for client, rows in held.groupby("client_id"):
        k = -(-9 * (len(rows) + 1) // 10)
        if k <= len(rows):
            assert clients.loc[client, "threshold"] == pytest.approx(np.sort(rows["score"])[k - 1], abs=1e-6)


def test_a_report_shows_coverage_and_sizes(runs, tmp_path):
    places = [str(place) for place, _ in runs.values()]
    done = run(["report", *places, "--output", str(tmp_path / "page.html")])
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "<h3>coverage</h3>" in page
    assert "<h3>set_size</h3>" in page
    summary = json.loads((runs["FedEM"][0] / "summary.json").read_text())
    assert summary["larger_is_better/set_size"] is False
    assert summary["larger_is_better/coverage"] is None
