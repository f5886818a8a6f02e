"""A progress bar that speaks of rounds and clients."""

from __future__ import annotations

import sys
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from lit_fed.callbacks.base import FederatedCallback

__all__ = ["FederatedProgressBar", "time_left"]

SECONDS_BETWEEN_LINES = 30.0
"""How often a log file gets a line."""


def time_left(done: float, total: float, seconds: float) -> str:
    """Time left at the pace so far, as h:mm:ss.

    Example:
        >>> time_left(10, 40, 60.0)
        '0:03:00'
    """
    if done <= 0:
        return "-:--:--"
    left = round(seconds * (total - done) / done)
    return f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Time left at the pace of this process; rounds before a resume took none of its time."""
        return Text(
            time_left(
                task.completed - task.fields["begin"], (task.total or 0) - task.fields["begin"], task.elapsed or 0
            )
            + " left"
        )


class FederatedProgressBar(ProgressBar, FederatedCallback):
    """Rounds, the clients done in the current one, the last accuracy and the time left.

    On a terminal it is one moving line; elsewhere it prints a line at the start, twice a minute and at the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._progress: Progress | None = None
        self._task: Any = None
        self._clients = self._cohort = 0
        self._last_line = self._started = 0.0
        self._first_round = 0

    def disable(self) -> None:
        """Show nothing."""
        self._enabled = False

    def enable(self) -> None:
        """Show again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin."""
        module: Any = pl_module
        self._started, self._first_round = time.monotonic(), module.num_rounds_done
        if not self._enabled or not trainer.is_global_zero:
            return
        if not sys.stdout.isatty():
            self._print_line(module)
            return
        self._progress = Progress(
            TextColumn("round {task.fields[round]}/{task.total:.0f}"), BarColumn(bar_width=24),
            TextColumn("{task.fields[clients]} {task.fields[accuracy]}"), _TimeLeft(), console=Console(),
        )  # fmt: skip
        self._task = self._progress.add_task(
            "", total=module.num_rounds, completed=self._first_round, begin=self._first_round,
            round=self._first_round, clients="", accuracy="",
        )  # fmt: skip
        self._progress.start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A phase begins with its first block."""
        if batch_idx == 0 or not self._clients:
            self._clients, self._cohort = 0, len(batch.slices[trainer.global_rank])

    def on_clients_end(self, trainer: Trainer, module: Any, num_clients: int) -> None:
        """Count clients."""
        self._clients += num_clients
        self._show(module, module.num_rounds_done + self._clients / max(self._cohort, 1))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count rounds."""
        if batch.ends_phase:
            self._clients = 0
        if batch.ends_round:
            self._show(pl_module, pl_module.num_rounds_done)  # type: ignore[arg-type]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the new accuracy."""
        if trainer.state.fn == "fit":
            self._show(pl_module, pl_module.num_rounds_done)  # type: ignore[arg-type]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        elif self._enabled and trainer.is_global_zero and not sys.stdout.isatty():
            self._print_line(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _show(self, module: Any, completed: float) -> None:
        if self._progress is not None:
            self._progress.update(
                self._task, completed=completed, round=module.num_rounds_done, accuracy=_accuracy(module),
                clients=f"{self._clients}/{self._cohort} clients",
            )  # fmt: skip
        elif self._last_line and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._print_line(module)

    def _print_line(self, module: Any) -> None:
        self._last_line = time.monotonic()
        done, seconds = module.num_rounds_done, self._last_line - self._started
        left = time_left(done - self._first_round, module.num_rounds - self._first_round, seconds)
        ending = "" if done >= module.num_rounds else f", {left} left"
        sys.stdout.write(f"round {done}/{module.num_rounds}{_accuracy(module, ', ')}{ending}\n")
        sys.stdout.flush()


def _accuracy(module: Any, before: str = "") -> str:
    for key in ("val/seen/accuracy", "test/seen/accuracy", "val/seen/mse", "test/seen/mse"):
        if key in module.results:
            return f"{before}{key} {module.results[key]:.4f}"
    return ""
