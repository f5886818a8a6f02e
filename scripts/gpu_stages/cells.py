"""What the stages have measured, in a file that is written after every cell: a day goes on where it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lit_fed.system.files import write_atomically

__all__ = ["Cell", "Cells"]

Cell = Callable[[], dict[str, Any]]


class Cells:
    """The record of a day, cell by cell.

    Args:
        path: the JSON file; what it holds already is not measured again.
        seconds: after so long no further cell begins.
        only: names of the cells to be measured, as a pattern with stars.
    """

    def __init__(self, path: Path, seconds: float, only: str = "*") -> None:
        self.path, self.only, self.ends = path, only, time.monotonic() + seconds
        self.values: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    @property
    def left(self) -> float:
        """Seconds until the end of the call."""
        return self.ends - time.monotonic()

    def note(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        self.values[name] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(self.values, indent=1, sort_keys=True) + "\n")

    def measure(self, stage: str, name: str, cell: Cell, needs: float = 10.0) -> None:
        """Measure a cell that is not there yet, if there is time; what fails is kept as the reason.

        Args:
            stage: the stage that it belongs to.
            name: of the cell, unique in its stage.
            cell: returns what is kept.
            needs: seconds that the cell may take.
        """
        kept = self.values.get(stage, {})
        if name in kept or self.left < needs or not fnmatch(name, self.only):
            return
        started = time.monotonic()
        try:
            value = cell()
        except Exception as error:  # one cell that cannot be measured leaves the others alone
            value = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"}
        self.note(stage, kept | {name: value})
        print(f"{stage}: {name}: {json.dumps(value)} ({time.monotonic() - started:.1f} s)", flush=True)
