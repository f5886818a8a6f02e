"""The summary of a run: `summary.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_fed.metrics.scores import USUAL
from lit_fed.system.files import write_atomically

__all__ = ["RunSummary"]

FILE = "summary.json"

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
        """Write `summary.json` into the folder of the run."""
        write_atomically(folder / FILE, json.dumps(self.entries, indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunSummary:
        """Read the `summary.json` of a run's folder."""
        return cls(json.loads((folder / FILE).read_text()))
