"""The summary of a run: `summary.json`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_fed.metrics.scores import USUAL
from lit_fed.system.files import write_atomically
from lit_fed.system.foreign_files import read_file
from lit_fed.system.readers import FormError, one_of, optional, record

__all__ = ["RunSummary"]

FILE = "summary.json"

TOTALS = ("rounds", "seconds")
"""Keys of numbers beside the metrics."""

DIRECTION = "larger_is_better/"
"""Key of a metric's direction, ahead of its name."""


@dataclass
class RunSummary:
    """Results of a finished run, which callbacks add to by `on_summary`.

    Attributes:
        entries: metrics by key, `{split}/{population}/{metric}`, and facts of the run.
        lines: lines for the terminal, each with its end.
    """

    entries: dict[str, Any]
    lines: list[str] = field(default_factory=list)

    def add_directions(self, directions: dict[str, bool | None]) -> None:
        """Store whether larger is better, by the name of the metric; None: unknown."""
        self.entries |= {f"{DIRECTION}{name}": larger for name, larger in directions.items()}

    def larger_is_better(self, metric: str) -> bool | None:
        """The direction of a metric; None: unknown, as for chosen metrics of a run of an earlier version."""
        found: bool | None = self.entries.get(f"{DIRECTION}{metric}", USUAL.get(metric))
        return found

    def write(self, folder: Path) -> None:
        """Write `summary.json` into a run's folder: NaN as `null`, infinity as `1e999`, since JSON has neither."""
        text = json.dumps(self.entries, indent=2, sort_keys=True)
        for ours, theirs in {"NaN": "null", "Infinity": "1e999"}.items():
            text = re.sub(rf"(?m)\b{ours}(?=,?$)", theirs, text)  # at the end of a line; texts end with quotes
        write_atomically(folder / FILE, f"{text}\n")

    @classmethod
    def read(cls, folder: Path) -> RunSummary:
        """Read the `summary.json` of a run's folder.

        Raises:
            ConfigError: naming the file, and the entry that has another type.
        """
        return cls(read_file(folder / FILE, json.loads, _entries, "give the folder of a run of lit_fed"))


def _entries(value: Any, place: str) -> dict[str, Any]:
    """Read the entries: plain values, of which the results are numbers."""
    entries: dict[str, Any] = record({}, others=True)(value, place)
    for name, one in entries.items():
        if name.startswith(DIRECTION):
            optional(one_of(True, False))(one, f"{place}.{name}")
        elif name.startswith(("test/", "val/", "comm/")) or name in TOTALS:
            entries[name] = math.nan if one is None and name not in TOTALS else one
            if type(entries[name]) not in (int, float):
                raise FormError(f"{place}.{name} is not a number")
    return entries
