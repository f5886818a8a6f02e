"""Progress in rounds and clients: one moving line on a terminal or in a notebook, plain lines in a log file."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from lit_fed.core.types import RoundRecord
from lit_fed.errors import notice
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = ["FederatedProgressBar", "TimeAhead", "time_left"]

SECONDS_BETWEEN_LINES = 30.0
"""Interval of lines in a log file."""

SECONDS_BETWEEN_BARS = 0.2
"""Interval of updates of a notebook's bar."""

SECONDS_OF_FIRST_ROUNDS = 5.0
"""Duration of the rounds from which that of a fit is estimated; the very first round also loads and compiles."""


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


class _LogLines:
    """Lines without control characters, twice a minute.

    Args:
        total: units of work.
        begin: units done before this process started.
        keep: whether the first and the last state are always printed.
    """

    def __init__(self, total: int, begin: int, keep: bool) -> None:
        self.total, self.begin, self.keep = total, begin, keep
        self.started = self._last = time.monotonic()

    def left(self, done: float) -> list[str]:
        """The time left, as the last part of a line; empty at the end."""
        if done >= self.total:
            return []
        return [f"{time_left(done - self.begin, self.total - self.begin, time.monotonic() - self.started)} left"]

    def open(self, parts: list[str]) -> None:
        """Show the first state."""
        if self.keep:
            self.show(self.begin, parts)

    @property
    def is_due(self) -> bool:
        """Whether it is time to show the state again."""
        return time.monotonic() - self._last > SECONDS_BETWEEN_LINES

    def show(self, done: float, parts: list[str]) -> None:
        """Show `done` units, described by `parts`."""
        self._last = time.monotonic()
        sys.stdout.write(", ".join([*parts, *self.left(done)]) + "\n")
        sys.stdout.flush()

    def close(self, done: float, parts: list[str]) -> None:
        """Show the last state."""
        if self.keep:
            self.show(done, parts)

    def stop(self) -> None:
        """Stop without a last state."""


class _TerminalLine(_LogLines):
    """One moving line; it stays at the end if `keep`, and vanishes otherwise."""

    is_due = True  # rich draws it at its own pace

    def __init__(self, total: int, begin: int, keep: bool) -> None:
        super().__init__(total, begin, keep)
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns = (
            SpinnerColumn(finished_text=" "), TextColumn("{task.fields[first]}"), BarColumn(bar_width=None),
            TextColumn("{task.fields[rest]}"),
        )  # fmt: skip
        self._progress = Progress(*columns, expand=True, transient=not keep)
        self._task = self._progress.add_task("", total=total, completed=begin, first="", rest="")

    def open(self, parts: list[str]) -> None:
        self.show(self.begin, parts)
        self._progress.start()

    def show(self, done: float, parts: list[str]) -> None:
        rest = "  ".join([*parts[1:], *self.left(done)])
        self._progress.update(self._task, completed=done, first=parts[0], rest=rest)

    def close(self, done: float, parts: list[str]) -> None:
        self.show(done, parts)
        self.stop()

    def stop(self) -> None:
        self._progress.stop()


class _NotebookLine(_LogLines):
    """A moving bar below the cell of a notebook; it stays at the end if `keep`, and is emptied otherwise."""

    def open(self, parts: list[str]) -> None:
        from IPython import display

        draw: Any = display.display
        self._shown = draw(self._drawn(self.begin, parts), raw=True, display_id=True)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._last > SECONDS_BETWEEN_BARS

    def show(self, done: float, parts: list[str]) -> None:
        self._last = time.monotonic()
        self._shown.update(self._drawn(done, parts), raw=True)

    def close(self, done: float, parts: list[str]) -> None:
        if self.keep:
            self.show(done, parts)
        else:
            self._shown.update({"text/plain": "", "text/html": ""}, raw=True)

    def _drawn(self, done: float, parts: list[str]) -> dict[str, str]:
        text = ", ".join([*parts, *self.left(done)])
        bar = f'<progress value="{done:.2f}" max="{self.total}" style="width: 40%"></progress>'
        return {"text/plain": text, "text/html": f"{bar} {text}"}


def _in_notebook() -> bool:
    """Whether an IPython kernel shows the output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class FederatedProgressBar(ProgressBar, FederatedCallback):
    """Rounds, the clients done in the current one, the last accuracy and the time left.

    On a terminal and in a notebook it is one moving line; elsewhere it prints a line at the start, twice a minute and
    at the end. With several processes it shows the clients of the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._display: _LogLines | None = None
        self._clients = self._cohort = self._served = 0

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    # ------------------------------------------------------------------ training
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        done, total = module.num_rounds_done, module.num_rounds
        self._open(trainer, total, done, [f"round {done}/{total}", *_last_result(module.results)], keep=True)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0 or self._clients >= self._cohort:  # the first block of a phase
            self._clients, self._cohort = 0, len(batch.slices[trainer.global_rank])

    def on_clients_end(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        self._clients += num_clients
        said = f"{self._clients}/{self._cohort} clients"
        self._show_round(module, said, part=self._clients / max(self._cohort, 1))

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        self._show_round(module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        done, total = module.num_rounds_done, module.num_rounds
        self._close(done, [f"round {done}/{total}", *_last_result(module.results)])

    # ------------------------------------------------------------------ evaluation and prediction
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._served = 0
        if trainer.state.fn == "validate":
            self._open_serving(trainer, trainer.val_dataloaders, data_of(trainer).evaluation_split)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open_serving(trainer, trainer.test_dataloaders, "test")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open_serving(trainer, trainer.predict_dataloaders, None)

    def on_clients_served(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        self._served += num_clients
        if trainer.state.fn == "fit":
            self._show_round(module, f"{self._served} clients measured")
        elif self._display is not None:
            self._display.total = max(self._display.total, self._served)  # a callback may measure more than the loop
            if self._display.is_due:
                self._display.show(self._served, self._of_served(trainer))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._close(self._served, self._of_served(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._show_round(federated(pl_module))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close(self._served, self._of_served(trainer))

    on_predict_epoch_end = on_test_epoch_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._display is not None:
            self._display.stop()
        self._display = None

    # ------------------------------------------------------------------ what is shown
    def _open(self, trainer: Trainer, total: int, begin: int, parts: list[str], *, keep: bool) -> None:
        if self._enabled and trainer.is_global_zero:
            kind = _NotebookLine if _in_notebook() else _TerminalLine if sys.stdout.isatty() else _LogLines
            self._display = kind(total, begin, keep)
            self._display.open(parts)

    def _open_serving(self, trainer: Trainer, blocks: Any, split: Literal["val", "test"] | None) -> None:
        self._served = 0
        total = sum(len(block.client_ids) for block in blocks)
        if split is not None and data_of(trainer).unseen is not None:
            total += sum(len(block.client_ids) for block in data_of(trainer).serving("unseen", split))
        self._cohort = total
        self._open(trainer, total, 0, self._of_served(trainer), keep=False)

    def _show_round(self, module: FederatedModule, *clients: str, part: float = 0.0) -> None:
        """Show the rounds done, and the `part` of the current one."""
        if self._display is not None and self._display.is_due:
            done, last = module.num_rounds_done, _last_result(module.results)
            self._display.show(done + part, [f"round {done}/{module.num_rounds}", *clients, *last])

    def _close(self, done: float, parts: list[str]) -> None:
        if self._display is not None:
            self._display.close(done, parts)
        self._display = None

    def _of_served(self, trainer: Trainer) -> list[str]:
        total = self._cohort if self._display is None else self._display.total
        return [str(trainer.state.fn.value), f"{self._served}/{total} clients"]  # type: ignore[union-attr]


class TimeAhead(Callback):
    """Prints once how long a fit without a progress bar still takes, if that is more than a minute."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_due = trainer.is_global_zero and trainer.progress_bar_callback is None
        self._began, self._rounds_before = time.monotonic(), federated(pl_module).num_rounds_done

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Estimate the time by the first rounds with their evaluations and checkpoints."""
        seconds, module = time.monotonic() - self._began, federated(pl_module)
        if self._is_due and seconds > SECONDS_OF_FIRST_ROUNDS:
            self._is_due = False
            done, left = module.num_rounds_done - self._rounds_before, module.num_rounds - module.num_rounds_done
            if (minutes := seconds / 60 * left / done) > 1:
                notice(
                    f"about {math.ceil(minutes):,} minutes for {left:,} more rounds, at the pace of the first {done}"
                )


def _last_result(results: dict[str, float]) -> list[str]:
    """The last accuracy, or what stands in its place, as the last part of a line; empty before the first."""
    for hit in ("accuracy", "mse", "loss"):
        for split in ("val", "test"):
            if f"{split}/seen/{hit}" in results:
                return [f"{split} {hit} {results[f'{split}/seen/{hit}']:.4f}"]
    return []
