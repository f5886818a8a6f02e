"""Early ends of a run: SIGTERM, and the death of the process that started a rank."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lit_fed.core.reduce import all_reduce

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ["CutShort", "StopRequests", "Terminated", "end_with_parent", "ends_in_order"]

SECONDS_BETWEEN_LOOKS = 1.0
"""Interval of the check for the parent process."""


class CutShort(SystemExit):
    """A command was ended from outside; the message tells how to resume."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(status)
        self.message = message


class Terminated(SIGTERMException):
    """A SIGTERM has ended the run; uncaught, the process ends with status 143, as in a shell."""

    def __init__(self) -> None:
        super().__init__(143)


class StopRequests(_SignalConnector):
    """Handles SIGTERM: in a fit all ranks end together after the round, otherwise at once.

    Lightning's handler broadcasts inside the signal, which hangs unless every rank gets one at the same time. This one
    sets a flag, and the ranks compare their flags once per round.

    Attributes:
        agreed: whether all ranks know that the run ends.
        answering: whether a trainer is running in this process.
    """

    answering: ClassVar[bool] = False

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.agreed = self._requested = False

    def register_signal_handlers(self) -> None:
        self.agreed = self._requested = False
        super().register_signal_handlers()
        StopRequests.answering = True

    def teardown(self) -> None:
        StopRequests.answering = False
        super().teardown()

    def _sigterm_notifier_fn(self, signum: Any, _: Any) -> None:
        if self.trainer.state.fn != "fit":
            raise Terminated
        self._requested = True

    def agree(self) -> None:
        """Tell all ranks whether any of them got a SIGTERM; a collective call."""
        flag = torch.tensor(float(self._requested), device=self.trainer.strategy.root_device)
        self.agreed = bool(all_reduce(flag) > 0)

    def end(self) -> None:
        """Raise `Terminated` if this rank or another got a SIGTERM."""
        if self._requested or self.agreed:
            with suppress(SystemExit):
                sys.exit(143)  # W&B replaces this function, to know how the run ended
            raise Terminated


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Handle SIGTERM for a whole command, also before a fit and between a fit and its test.

    Raises:
        Terminated: at once, unless a trainer is running, whose `StopRequests` answer.
    """

    def answer(signum: int, frame: object) -> None:
        if not StopRequests.answering:
            raise Terminated

    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, answer)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_with_parent() -> None:
    """End this rank when the process that started it dies: it has nothing to save, and would wait forever."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
