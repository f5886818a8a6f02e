"""The strategy `fed_ddp`: clients of a round distributed over ranks, and the end of a run that loses a rank."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from lit_fed.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ["SECONDS_OF_A_COLLECTIVE", "FederatedLauncher", "FederatedStrategy", "LostRanksError"]

SECONDS_OF_A_COLLECTIVE = 1800.0
"""Default timeout of a collective, as torch's own: it covers downloads and figures, which one rank makes alone."""

MOST_SECONDS = 30 * 24 * 3600
"""Upper limit of the timeout; must fit torch's milliseconds."""

SECONDS_TO_END = 10
"""Seconds that rank zero waits for the end of the ranks that it started."""

SECONDS_TO_NOTICE = 60
"""Seconds after the end of a rank in which rank zero may end by a failed collective."""


class LostRanksError(RuntimeError):
    """A collective failed: another rank ended, or exceeded the timeout."""


class FederatedLauncher(_SubprocessScriptLauncher):
    """Starts the other ranks of a machine, without Lightning's observer, which kills rank zero before it can report."""

    def launch(self, function: Callable, *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> Any:
        """Start the other ranks of this machine, unless a launcher does, and run the function."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._call_children_scripts()
            atexit.register(self._see_to_their_end)
            threading.Thread(target=self._watch, args=(trainer,), name="rank-watch", daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def lost_ranks(self, timeout: float) -> str:
        """Say which of the started ranks is lost, after a failed collective, and kill those that hang.

        Args:
            timeout: of the collective, in seconds.
        """
        until = time.monotonic() + SECONDS_TO_END
        while time.monotonic() < until and any(process.poll() is None for process in self.procs):
            time.sleep(0.05)
        first = self.cluster_environment.node_rank() * self.num_processes
        ends = {first + number: process.poll() for number, process in enumerate(self.procs, 1)}
        for process in self.procs:
            process.kill()
        causes = {rank: end for rank, end in ends.items() if end not in (None, 0, 1)}
        hung = [f"rank {rank}" for rank, end in ends.items() if end is None]
        if hung and not causes:
            return (
                f"{', '.join(hung)} kept the others waiting for more than {timeout:g} seconds: stopped, or slower than "
                "--trainer.timeout; raise that if only slow"
            )
        return ", ".join(_ended(rank, end) for rank, end in (causes or ends).items())  # 1: errors, and lost ranks

    def _watch(self, trainer: Any) -> None:
        """End a run whose main thread cannot, since a collective of NCCL does not notice that another rank ended."""
        while any(process.poll() != 0 for process in self.procs):
            time.sleep(1)
            if not any(process.returncode for process in self.procs):
                continue
            time.sleep(SECONDS_TO_NOTICE)
            if trainer.state.status == "running":
                lost = self.lost_ranks(trainer.strategy.timeout)
                sys.stderr.write(f"lit_fed: {lost}; --ckpt_path last goes on from the last finished round\n")
                sys.stderr.flush()
                os._exit(1)

    def _see_to_their_end(self) -> None:
        for process in self.procs:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ended(rank: int, status: int | None) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status and status < 0 else f"ended with status {status}"
    return f"rank {rank} {how}"


class FederatedStrategy(DDPStrategy):
    """Process group and launcher of DDP without its wrapper: each client trains a whole model on one rank.

    On CPUs every rank uses one thread, since more ranks use cores better than more threads.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "timeout" in kwargs:
            raise ConfigError("--trainer.strategy.timeout is set; give --trainer.timeout, in seconds")
        super().__init__(*args, **kwargs)
        self.timeout = SECONDS_OF_A_COLLECTIVE

    @property
    def timeout(self) -> float:
        """Seconds that a rank waits for the others in a collective, and at the start."""
        return self._timeout.total_seconds()  # type: ignore[union-attr]

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not 1 <= seconds <= MOST_SECONDS:
            raise ConfigError(
                f"--trainer.timeout is {seconds}; give the seconds that a rank may keep the others waiting, from 1 to "
                f"{MOST_SECONDS}"
            )
        self._timeout = timedelta(seconds=seconds)

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = FederatedLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        super().setup_environment()
        if self.root_device.type == "cpu":
            torch.set_num_threads(1)

    def setup_distributed(self) -> None:
        alone = not dist.is_initialized()
        super().setup_distributed()
        if alone and dist.get_backend() == "gloo":  # of NCCL's group, Lightning takes care
            atexit.register(_leave_group)

    def lost_ranks(self, error: RuntimeError) -> LostRanksError | None:
        """The error of a lost rank for that of a failed collective; None for any other error."""
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            return None
        if isinstance(self._launcher, FederatedLauncher) and self._launcher.procs:
            return LostRanksError(self._launcher.lost_ranks(self.timeout))
        return LostRanksError(f"another rank ended, or exceeded --trainer.timeout, {self.timeout:g} seconds")

    def configure_ddp(self) -> None:
        assert self.model is not None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            dist.broadcast(tensor.data, 0)


def _leave_group() -> None:
    """End gloo's threads before Python ends; torch aborts if one still holds tensors of the last exchange then."""
    if dist.is_initialized():
        dist.destroy_process_group()


StrategyRegistry.register(
    "fed_ddp", FederatedStrategy, description="cohort sharded over ranks, no gradient hooks", start_method="popen"
)
