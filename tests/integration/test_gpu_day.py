"""The stages of a day on a GPU run through on the CPU at toy size, go on where they stopped, and write their page."""

import json

import gpu_day
import pytest
import run_queue
from gpu_stages.cells import Cells
from gpu_stages.page import page
from gpu_stages.stages import LIMITS
from run_queue import Entry, Queue


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """The folder of a toy day, without the tests of tests/gpu."""
    folder = tmp_path_factory.mktemp("day")
    only = ["--only", "FedAvg, LeNet5, *"]
    gpu_day.main(["parity", "graphs", "paper", *only, "--output", str(folder), "--seconds", "100"])
    return folder


def test_every_stage_measures(day):
    values = json.loads((day / "gpu.json").read_text())
    assert "no GPU" in values["device"]["name"]
    assert all(cell["within"] for cell in values["parity"].values())
    assert len(values["parity"]) == 3 * len(LIMITS)
    assert all(cell["eager"] > 0 for cell in values["graphs"].values())
    assert {name: cell["rounds"] for name, cell in values["paper"].items()} == {"FedAvg": 2, "FedEM": 2}


def test_what_is_there_is_not_measured_again(day, capsys):
    gpu_day.main(["graphs", "paper", "--only", "FedAvg, LeNet5, *", "--output", str(day)])
    said = capsys.readouterr().out
    assert "no GPU" in said
    assert "graphs:" not in said
    assert "paper:" not in said


def test_a_cell_that_fails_leaves_the_others_alone(tmp_path):
    cells = Cells(tmp_path / "gpu.json", 100)
    cells.measure("stage", "bad", lambda: 1 / 0)
    cells.measure("stage", "good", lambda: {"seconds": 1.0})
    kept = Cells(tmp_path / "gpu.json", 100).values["stage"]
    assert kept["bad"] == {"failed": "ZeroDivisionError: division by zero"}
    assert kept["good"] == {"seconds": 1.0}


def test_no_cell_begins_without_time(tmp_path):
    cells = Cells(tmp_path / "gpu.json", 5)
    cells.measure("stage", "long", lambda: {"seconds": 1.0}, needs=10)
    assert "stage" not in cells.values


def test_page_is_what_the_record_gives():
    kept = gpu_day.ROOT / "docs/results/gpu.json"
    assert kept.with_suffix(".md").read_text() == page(json.loads(kept.read_text()))


# ---------------------------------------------------------------------- a queue of runs
def queue(tmp_path, *lines):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(lines))
    parsed = {"plan": plan, "records": tmp_path / "records", "root": tmp_path, "slots": 2, "gpu_memory_gb": 10.0}
    return Queue(run_queue.argparse.Namespace(**parsed, client_trainer="graphed"))


def test_a_run_in_the_place_of_another_waits_for_its_failure(tmp_path):
    first = {"table": "fedem-images", "run": "images_cifar10/fedem-1", "scale": "smoke"}
    second = {"table": "fedem-images", "run": "images_cifar10/fedavg-1", "scale": "smoke"}
    made = queue(tmp_path, first, second | {"instead_of": first["run"]})
    assert [entry.run for entry in made.waiting()] == [first["run"]]
    made.ended.add(first["run"])
    assert made.waiting() == []
    made.failed.add(first["run"])
    assert [entry.run for entry in made.waiting()] == [second["run"]]


def test_stars_stand_for_runs_without_a_record(tmp_path):
    made = queue(tmp_path, {"table": "fedem-images", "run": "images_mnist/*"})
    names = [entry.run for entry in made.waiting()]
    assert names == [f"images_mnist/{name}-1" for name in ("local", "fedavg", "fedavg_plus", "fedem")]
    made.running[made.waiting()[0]] = None, 0.0
    assert [entry.run for entry in made.waiting()] == names[1:]


def test_processes_and_memory_bound_what_runs_at_once(tmp_path):
    made = queue(tmp_path)
    made.running[Entry("fedem-images", "one", gigabytes=6.0)] = None, 0.0
    assert made._fits(Entry("fedem-images", "two", gigabytes=4.0))
    assert not made._fits(Entry("fedem-images", "three", gigabytes=5.0))
