"""Federated rounds as a Lightning loop: epoch = round, batch = block of clients, global step = rounds done.

Lightning has no public way to change its loops since 2.0; the private names used here are listed, and tested, in
`tests/training/test_lightning_contract.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.optimization.manual import _ManualOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from lit_fed.core.types import ClientBlock
from lit_fed.training.hooks import federated
from lit_fed.training.stopping import StopRequests

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ["ClientLoop", "FederatedLoop", "RoundLoop"]


class ClientLoop(_ManualOptimization):
    """One block of clients; the last of a phase is followed by the server's step, the last of a round by the commit."""

    def advance(self, kwargs: OrderedDict[str, Any]) -> None:
        """Train the block and take the server's step, where Lightning counts optimizer steps."""
        block: ClientBlock = kwargs["batch"]
        super().advance(kwargs)
        module = federated(self.trainer.lightning_module)
        if block.ends_phase:
            module.tell("on_phase_reduce")
        if block.ends_round:
            module.commit_round()


class RoundLoop(_TrainingEpochLoop):
    """One round."""

    def __init__(self, trainer: Trainer, min_steps: int | None = None, max_steps: int = -1) -> None:
        super().__init__(trainer, min_steps, max_steps)
        self.manual_optimization = ClientLoop(trainer)

    @property
    def done(self) -> bool:
        """Whether the round is complete; a request to stop waits for it."""
        return self._is_training_done and self._is_validation_done

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        return self._num_ready_batches_reached() and super()._should_check_val_fx(data_fetcher)

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: the ranks compare their requests once per round, see `StopRequests`."""

    def _should_accumulate(self) -> bool:
        """Whether the logged step stays: it advances once per round."""
        return not self._num_ready_batches_reached()

    def reset(self) -> None:
        """Replay a round from its start if the checkpoint was written inside it: none of it is committed."""
        super().reset()
        if self.restarting and 0 < self.batch_progress.current.ready < self.trainer.num_training_batches:
            self.batch_progress.reset_on_run()


class FederatedLoop(_FitLoop):
    """All rounds."""

    def __init__(self, trainer: Trainer, stock: _FitLoop) -> None:
        super().__init__(trainer, min_epochs=stock.min_epochs, max_epochs=stock.max_epochs)
        self.epoch_loop = RoundLoop(trainer, stock.epoch_loop.min_steps, stock.epoch_loop.max_steps)

    def on_advance_end(self) -> None:
        """End the round, and the run if requested: the checkpoint is written by now."""
        super().on_advance_end()
        self._stop_requests.agree()

    @property
    def done(self) -> bool:
        """Whether all rounds are done, or an early end was agreed."""
        return self._stop_requests.agreed or super().done

    @property
    def _stop_requests(self) -> StopRequests:
        requests: Any = self.trainer._signal_connector
        assert isinstance(requests, StopRequests)
        return requests
