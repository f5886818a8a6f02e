"""What federation_check.py finds equal is equal, what differs it names, and its page says what was measured."""

import json

import pytest
import torch
from federation_check import RESULTS, differences, page

RECORD = {
    "equality": [{"run": "FedEM", "differences": []}, {"run": "UCFL", "differences": ["metrics.csv: loss"]}],
    "costs": [
        {
            "run": "FedAvg", "differences": [], "round simulated": 0.05, "round on nodes": 0.14,
            "counted": {"up": 1000.0, "down": 1000.0}, "sent": {"train": 1040, "measure": 3000},
            "received": {"train": 1010, "measure": 500}, "node is ready after": 3.0, "megabytes of a node": 400.0,
        }
    ],
    "kills": {"times": {"server": 2, "node": 3}, "runs": 2, "not exact": ["killed-1: metrics.csv: loss"], "rounds": 9},
    "fifty": {
        "nodes": 50, "killed": 10, "rounds": 20, "wait": 4.0, "seconds": 100.0, "megabytes of all nodes": 2345.0,
        "left out": {"faults/errors": 5, "faults/failed_clients": {"a": [0], "b": [0, 7, 8], "c": [9]}},
    },
    "facts": {"torch": "2"},
}  # fmt: skip


def test_the_page_says_what_was_found():
    text = " ".join(page(RECORD).split())
    assert "**1 of 2 runs over HTTPS equal the simulation bit for bit. 5 kills of servers and nodes changed 1" in text
    assert "| UCFL | metrics.csv: loss |" in text
    assert "| FedAvg | 0.050 | 0.140 | 1, +4.0 % | 1, +1.0 % | 4 |" in text
    assert "5 answers were missing, those of the killed nodes, and in the first round those of 2 nodes" in text
    assert json.loads(json.dumps(RECORD)) == RECORD


def test_the_page_is_what_the_record_gives():
    assert RESULTS.with_suffix(".md").read_text() == page(json.loads(RESULTS.read_text()))


@pytest.fixture
def runs(tmp_path):
    """Two folders with the same run."""
    for name in ("one", "other"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        state = {"a": torch.ones(2), "b": torch.zeros(1), "store.versions": torch.tensor([len(name)])}
        torch.save({"state_dict": state}, tmp_path / name / "checkpoints/last.ckpt")
        (tmp_path / name / "metrics.csv").write_text(f"step,a,b,loss,time/x\n0,1,2,0.5,{name}\n")
        (tmp_path / name / "clients.csv").write_text("client,a,b,accuracy,pi_0\nx,1,2,0.25,0.1\n")
    return tmp_path / "one", tmp_path / "other"


def test_times_and_mixtures_do_not_count(runs):
    assert differences(*runs) == []


def test_what_differs_is_named(runs):
    table = runs[1] / "metrics.csv"
    table.write_text(table.read_text().replace("0.5", "0.50000001"))
    (runs[1] / "clients.csv").write_text("client,a,b,accuracy\n")
    torch.save({"state_dict": {"a": torch.ones(2), "b": torch.ones(1)}}, runs[1] / "checkpoints/last.ckpt")
    assert differences(*runs) == [
        "shared state: b",
        "metrics.csv: loss",
        "clients.csv: 1 and 0 rows",
        "clients.csv: too few columns",
    ]
