"""`summary.json` is JSON for every reader, and comes back as it was."""

import json
import math
from pathlib import Path

import pytest

from lit_fed.metrics.summary import RunSummary

NUMBERS = {"test/seen/r2": math.nan, "test/seen/loss": math.inf, "test/unseen/loss": -math.inf, "val/seen/r2": math.nan}
TEXTS = {"faults/failed_clients": ["Infinity", "NaN,", "a\nNaN"], "diverged": "the loss is NaN"}


def no_json(constant: str) -> None:
    raise ValueError(constant)


def test_numbers_that_json_lacks_are_written_for_every_reader(tmp_path: Path):
    RunSummary({**NUMBERS, **TEXTS, "rounds": 3}).write(tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text(), parse_constant=no_json)
    assert found["test/seen/r2"] is None
    assert found["test/unseen/loss"] == -math.inf  # 1e999, which every reader rounds to infinity
    assert {name: found[name] for name in TEXTS} == TEXTS


def test_they_are_read_as_they_were(tmp_path: Path):
    RunSummary({**NUMBERS, **TEXTS}).write(tmp_path)
    found = RunSummary.read(tmp_path).entries
    assert {name: found[name] for name in NUMBERS} == pytest.approx(NUMBERS, nan_ok=True)
    assert {name: found[name] for name in TEXTS} == TEXTS
