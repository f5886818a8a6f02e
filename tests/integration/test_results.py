"""The result page is generated from kept files, and what it claims lies in the ranges asked for."""

import json
import statistics
from pathlib import Path

import pytest
import trainer_results

PAGE = Path(__file__).parents[2] / "docs/results/trainer.md"


def kept(name):
    return json.loads((trainer_results.KEPT / f"{name}.json").read_text())


def test_the_page_is_what_the_kept_files_give():
    assert PAGE.read_text() == trainer_results.page()


@pytest.mark.parametrize(
    ("name", "accuracy", "decile"),
    [
        ("fedem", (75.6, 76.4), (69.4, 71.4)),
        ("fedem_fresh", (72.3, 73.3), (64.0, 68.0)),
        ("fedavg", (67.6, 68.6), (58.0, 62.0)),
        ("fedavg_plus", (68.2, 69.6), (59.0, 63.0)),
        ("local", (66.0, 67.4), (58.0, 62.0)),
    ],
)
def test_fidelity(name, accuracy, decile):
    summary = kept(name)
    assert summary["rounds"] == 200
    assert accuracy[0] <= 100 * summary["test/seen/accuracy"] <= accuracy[1]
    assert decile[0] <= 100 * summary["test/seen/accuracy_decile"] <= decile[1]


def test_other_initial_values():
    others = [kept(run.name) for run in trainer_results.runs() if run.name.startswith("fedem_init_")]
    assert len(others) == 10
    assert 74.3 <= statistics.mean(100 * one["test/seen/accuracy"] for one in others) <= 75.9


def test_speed():
    rows = json.loads((trainer_results.RESULTS / "speed.json").read_text())
    assert rows["fedem_round"]["ratio"] >= 30
    assert rows["evaluation"]["ratio"] >= 30
    assert rows["lightning_overhead"]["milliseconds per round"] < 6
    assert rows["start_up"]["wall seconds"] < 8
    assert rows["memory"]["peak over data GB"] < 1.5
