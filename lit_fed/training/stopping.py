"""How a run ends before its time: SIGTERM, and the death of the process that started a rank."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lit_fed.core.reduce import all_reduce

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ["CutShort", "StopRequests", "Terminated", "end_with_parent", "ends_in_order"]

SECONDS_BETWEEN_LOOKS = 1.0
"""How often a rank looks whether its parent lives."""


class CutShort(SystemExit):
    """A command was ended from outside; the message says how to go on.

    Attributes:
        speaks: whether this rank says it; None: the first of each machine does.
    """

    def __init__(self, message: str, status: int, *, speaks: bool | None = None) -> None:
        super().__init__(status)
        self.message, self.speaks = message, speaks


class Terminated(SIGTERMException):
    """A SIGTERM has ended the run; uncaught, it ends the process with the status that shells give to it."""

    def __init__(self) -> None:
        super().__init__(143)


class StopRequests(_SignalConnector):
    """What a SIGTERM does: in a fit all ranks end together behind the round, anything else ends at once.

    Lightning's handler broadcasts from inside the signal, which hangs unless every rank gets one at the same time. This
    one raises a flag, and the ranks compare their flags once per round.

    Attributes:
        agreed: whether all ranks know that the run is to end.
        answering: whether a fit, a test or another run of a trainer is under way in this process.
    """

    answering: ClassVar[bool] = False

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.agreed = self._requested = False

    def register_signal_handlers(self) -> None:
        """Begin without a request."""
        self.agreed = self._requested = False
        super().register_signal_handlers()
        StopRequests.answering = True

    def teardown(self) -> None:
        """Put the handlers back that were there before the run."""
        StopRequests.answering = False
        super().teardown()

    def _sigterm_notifier_fn(self, signum: Any, _: Any) -> None:
        if self.trainer.state.fn != "fit":
            raise Terminated
        self._requested = True

    def agree(self) -> None:
        """Let all ranks know whether any of them was asked to end; every rank calls this at the same place."""
        flag = torch.tensor(float(self._requested), device=self.trainer.strategy.root_device)
        self.agreed = bool(all_reduce(flag) > 0)

    def end(self) -> None:
        """End the process, if it was asked to.

        Raises:
            Terminated: if it was, or another rank.
        """
        if self._requested or self.agreed:
            raise Terminated


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Around all that a command does: a SIGTERM before a fit, or between a fit and its test, ends it in order too.

    Raises:
        Terminated: wherever the program is, unless a trainer is at work, whose `StopRequests` answer.
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
    """End this process, a rank beside the first of its machine, when the process that started it is gone.

    Nothing would tell it otherwise: it would wait in a collective for ever. Such a rank has nothing to save.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
