"""The table of `--trainer.profiler simple`."""

from __future__ import annotations

import re
import time

from lightning.pytorch.profilers import SimpleProfiler

__all__ = ["RoundProfiler"]

SMALLEST = 0.1
"""Percentage of the total time below which an action of Lightning is left out."""


class RoundProfiler(SimpleProfiler):
    """Lightning's simple profiler with a table for each command that fits a terminal."""

    def summary(self) -> str:
        """The table, by falling total time; an action inside another one counts in both."""
        found, _, seconds = self._make_report_extended()
        shown = [row for row in found if row[4] >= SMALLEST or row[0].startswith("[Federation]")]
        rows = [("Action", "Calls", "Mean (s)", "Total (s)", "%"), ("Total", "", "", f"{seconds:.3f}", "100.0")]
        for action, mean, calls, total, share in shown:
            name = re.sub(r"\{.*\}", "", action)  # the settings of a ModelCheckpoint
            rows.append((name, f"{calls}", f"{mean:.5f}", f"{total:.3f}", f"{share:.1f}"))
        width = max(len(row[0]) for row in rows)
        lines = [
            f"{name:<{width}} {calls:>6} {mean:>9} {total:>9} {share:>5}" for name, calls, mean, total, share in rows
        ]
        title = f"{(self._stage or '').upper()} Profiler Report".strip()
        return "\n".join([title, *lines, f"{len(found) - len(shown)} actions below {SMALLEST} % are left out", ""])

    def teardown(self, stage: str | None) -> None:
        """Start anew, as the advanced profiler does: the table of a test leaves out the fit before it."""
        super().teardown(stage)
        self.recorded_durations.clear()
        self.start_time = time.perf_counter()
