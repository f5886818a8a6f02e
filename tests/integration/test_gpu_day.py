"""The stages of a day on a GPU run through on the CPU at toy size, go on where they stopped, and write their page."""

import json

import gpu_day
import pytest
from gpu_day import LIMITS, Cells, page


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """The folder of a toy day, without the tests of tests/gpu."""
    folder = tmp_path_factory.mktemp("day")
    only = ["--only", "FedAvg, LeNet5, *"]
    gpu_day.main(["parity", "speed", *only, "--output", str(folder), "--seconds", "100"])
    return folder


def test_every_stage_measures(day):
    values = json.loads((day / "gpu.json").read_text())
    assert "no GPU" in values["device"]["name"]
    assert all(cell["within"] for cell in values["parity"].values())
    assert len(values["parity"]) == 3 * len(LIMITS)
    assert len(values["speed"]) == len(gpu_day.HOW)
    assert all(cell["seconds"] > 0 for cell in values["speed"].values())


def test_what_is_there_is_not_measured_again(day, capsys):
    gpu_day.main(["speed", "--only", "FedAvg, LeNet5, *", "--output", str(day)])
    said = capsys.readouterr().out
    assert "no GPU" in said
    assert "speed:" not in said


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
