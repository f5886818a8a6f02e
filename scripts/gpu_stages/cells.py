"""Record of measured cells, written after each cell, so that a day can continue."""

import json
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lit_fed.system.files import write_atomically

Cell = Callable[[], dict[str, Any]]


class Cells:
    """The record of a day.

    Args:
        path: the JSON file; its cells are not measured again.
        seconds: time after which no cell starts.
        only: pattern of cells to measure.
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
        """Measure a missing cell if there is time; a failure is recorded with its reason.

        Args:
            stage: stage of the cell.
            name: name of the cell, unique in its stage.
            cell: returns the record.
            needs: expected seconds.
        """
        kept = self.values.get(stage, {})
        if name in kept or self.left < needs or not fnmatch(name, self.only):
            return
        started = time.monotonic()
        try:
            value = cell()
        except Exception as error:  # a failing cell must not stop the others
            value = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"}
        self.note(stage, kept | {name: value})
        print(f"{stage}: {name}: {json.dumps(value)} ({time.monotonic() - started:.1f} s)", flush=True)
