"""`lit-fed choose`: from a table to a verdict for each client."""

import html
import os
import signal
import time

import numpy as np
import pandas as pd
import pytest
import torch
from running import folder, run, start

from lit_fed.core.types import Split

CANDIDATES = ["FedAvg", "FedEM", "MixedEffects"]


def subjects(path, kinds=2):
    """Ten clients with lines of their own slope and height."""
    rng, rows = np.random.default_rng(0), []
    for client in range(10):
        slope, height = (1 if client % kinds else -1) + 0.1 * rng.normal(), rng.normal()
        x = rng.normal(size=24)
        rows += [(f"c{client}", a, height + slope * a + 0.5 * rng.normal()) for a in x]
    pd.DataFrame(rows, columns=["client", "x", "y"]).to_csv(path, index=False)


def command(root, *more, candidates=CANDIDATES):
    return [
        "choose", "--candidates", *candidates, "--data.dataset", "Table", "--data.dataset.path", str(root / "rows.csv"),
        "--data.dataset.client_column", "client", "--data.dataset.label_column", "y", "--data.unseen_fraction", "0.2",
        "--trainer.max_epochs", "4", "--trainer.accelerator", "cpu", "--jobs", "1",
        "--output", str(root / "chosen"), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    root = tmp_path_factory.mktemp("choose")
    subjects(root / "rows.csv")
    done = run(command(root), timeout=300)
    assert done.returncode == 0, done.stderr
    return root, done


def test_each_client_is_told_its_gain(chosen):
    root, done = chosen
    place = folder(root, "chosen")
    table, clients = pd.read_csv(place / "verdict.csv"), pd.read_csv(place / "clients.csv")
    seen = clients.query("population == 'seen'")
    assert table["client"].tolist() == seen["client"].tolist()
    alone = pd.read_csv(folder(root / "chosen" / "candidates", "Local") / "clients.csv").query("population == 'seen'")
    np.testing.assert_allclose(table["mse_served"], seen["mse"], rtol=1e-4)
    np.testing.assert_allclose(table["mse_alone"], alone["mse"], rtol=1e-4)
    np.testing.assert_allclose(table["gain"], table["mse_alone"] - table["mse_served"], rtol=1e-3, atol=1e-6)
    kept = table["served"] == "alone"
    assert ((seen["pi_3"].to_numpy() == 1) == kept).all()
    assert (table.loc[kept, "gain"] == 0).all()
    assert ((table["chance"] > 0.9) == ~kept).all()
    assert "joining: mse" in done.stdout
    assert "4 candidates of 4 rounds each" in done.stdout
    said = "the learning rate of each is searched among 0.01, 0.0464, 0.215, 1, by 6 further rounds; 0 are done"
    assert said in done.stdout
    tried = [set(pd.read_csv(one)["lr"]) for one in (root / "chosen" / "candidates").rglob("learning_rates.csv")]
    assert tried == 3 * [{0.01, 0.0464, 0.215, 1.0}]  # MixedEffects uses no rate


@pytest.mark.parametrize("more", [["--trainer.max_epochs", "5"], ["--data.seed", "3"]], ids=["rounds", "data"])
def test_runs_of_another_choice_are_not_taken(chosen, more):
    root, _ = chosen
    done = run(command(root, *more))
    assert done.returncode == 2
    assert "holds another choice: options of fit changed since; choose a new folder" in done.stderr


def test_a_report_begins_with_the_verdict(chosen, tmp_path):
    root, chose = chosen
    page = tmp_path / "report.html"
    done = run(["report", str(root / "chosen"), "--output", str(page)])
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    (said,) = [line for line in chose.stdout.splitlines() if line.startswith("joining: ")]
    assert html.escape(said) in text
    assert text.index("Does it pay to join?") < text.index("What was run")
    assert "c1</td>" in text
    run(["report", str(root / "chosen"), "--output", str(page), "--anonymous"])
    assert "c1</td>" not in page.read_text()


def test_the_same_command_trains_nothing_again(chosen):
    root, _ = chosen
    before = {one: one.stat().st_mtime_ns for one in (root / "chosen" / "candidates").rglob("last.ckpt")}
    done = run(command(root), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "4 are done" in done.stdout
    assert {one: one.stat().st_mtime_ns for one in before} == before


def test_a_killed_choice_goes_on(chosen, tmp_path):
    root, _ = chosen
    subjects(tmp_path / "rows.csv")
    process = start(command(tmp_path))
    place = tmp_path / "chosen" / "candidates" / "FedEM" / "version_0" / "checkpoints" / "last.ckpt"
    until = time.monotonic() + 120
    while not place.is_file() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(60)
    assert place.is_file()
    assert not (tmp_path / "chosen" / "version_0").exists()
    done = run(command(tmp_path), timeout=300)
    assert done.returncode == 0, done.stderr
    whole, found = (pd.read_csv(folder(one, "chosen") / "verdict.csv") for one in (root, tmp_path))
    pd.testing.assert_frame_equal(found, whole)


def test_rates_weights_and_verdict_use_other_rows():
    """Of each client's validation samples every second searches the rate, and the others find the weights."""
    split = Split.of([(np_tensor(size, 10 * size), np_tensor(size, 10 * size)[:, 0]) for size in (1, 2, 5)])
    first, second = split.every_other(0), split.every_other(1)
    assert first.sizes.tolist() == [1, 1, 3]
    assert second.sizes.tolist() == [0, 1, 2]
    assert sorted([*first.y.tolist(), *second.y.tolist()]) == sorted(split.y.tolist())
    assert first.client(2).all_y.tolist() == [50, 52, 54]


def np_tensor(size, begin):
    return torch.arange(begin, begin + size).unsqueeze(1)


def test_what_choose_decides_is_refused(tmp_path):
    subjects(tmp_path / "rows.csv")
    for more, said in (
        (["--model.algorithm", "FedEM"], "--model.algorithm is decided by choose"),
        (["--name", "x"], "--name is decided by choose"),
        (["--data.dataset.path", "nothing.csv"], "nothing.csv: there is no such file; correct --data.dataset.path"),
        (["--data.batch_sise", "3"], "--data.batch_size"),
    ):
        done = run(command(tmp_path, *more))
        assert done.returncode == 2
        assert said in done.stderr
    assert not [*(tmp_path / "chosen").glob("[a-z]*")]
