"""The strategy `fed_ddp`: clients of a round distributed over ranks, and the end of a run that loses a rank."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lit_fed.core.reduce import guard_collectives
from lit_fed.errors import ConfigError
from lit_fed.system.heartbeat import (
    LostRanksError,
    check_timeout,
    exchange,
    rank_monitor,
    rendezvous,
    use_monitor,
    waiting_for_work,
)
from lit_fed.training.stopping import Terminated

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ["FederatedLauncher", "FederatedStrategy", "prepare_data", "same_on_every_rank"]

SECONDS_TO_END = 10
"""Seconds that rank zero waits at its end for the ranks that it started; also the slack of torch's timeouts."""

NOBODY = "nobody else"
"""Stands for a process group of this rank alone, for `reduce`. A string compares equal after deepcopy."""

STARTED_BY = "LIT_FED_STARTED_BY"
"""Environment variable with the process id that started a rank."""


class FederatedLauncher(_SubprocessScriptLauncher):
    """Starts the other ranks of a machine, without Lightning's observer, which kills rank zero before it can report."""

    def launch(self, function: Callable, *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> Any:
        """Start the other ranks of this machine, unless a launcher does, and run the function."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            os.environ[STARTED_BY] = str(os.getpid())
            self._call_children_scripts()
            atexit.register(self._see_to_their_end)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def ended(self) -> set[int]:
        """Local ranks that have ended."""
        return {number for number, process in enumerate(self.procs, 1) if process.poll() is not None}

    def kill_ranks(self, local_ranks: set[int]) -> None:
        """Kill ranks."""
        for number, process in enumerate(self.procs, 1):
            if number in local_ranks:
                process.kill()

    def _see_to_their_end(self) -> None:
        for process in self.procs:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class FederatedStrategy(DDPStrategy):
    """Process group and launcher of DDP without its wrapper: each client trains a whole model on one rank.

    On CPUs every rank uses one thread, since more ranks use cores better than more threads. Before each collective all
    ranks report to rank zero (`RankMonitor`), so that all end with a `LostRanksError` if one is missing, whatever the
    backend.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "timeout" in kwargs:
            raise ConfigError("--trainer.strategy.timeout is set; give --trainer.timeout, in seconds")
        super().__init__(*args, **kwargs)
        self.timeout = 300.0

    @property
    def timeout(self) -> float:
        """Seconds that ranks wait for one without a sign of life."""
        return self._seconds

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._seconds = check_timeout(seconds)
        self._timeout = timedelta(seconds=seconds)

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = FederatedLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        super().setup_environment()
        if self.root_device.type == "cpu":
            torch.set_num_threads(1)

    def setup_distributed(self) -> None:
        """Find the other ranks, then let torch connect them.

        Raises:
            LostRanksError: if one is missing.
        """
        self.set_world_ranks()
        environment = self.cluster_environment
        assert environment is not None
        if self.world_size > 1 and not dist.is_initialized():
            address = environment.main_address, environment.main_port
            hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            monitor = rendezvous(
                self.global_rank, self.world_size, self.timeout, address, hosted=hosted, gone=self._ended_ranks
            )
            use_monitor(monitor)
            guard_collectives(exchange)
            with exchange(), self._ending_if_stuck():
                super().setup_distributed()
            if dist.get_backend() == "gloo":  # of NCCL's, Lightning takes care
                atexit.register(_leave_group)
            return
        super().setup_distributed()

    @contextmanager
    def _ending_if_stuck(self) -> Iterator[None]:
        """Kill the process if a blocking call exceeds the timeout: rank 0 hosts torch's store and may be stopped."""
        lost = LostRanksError("silent", [0], self.timeout, speaks=self.global_rank == 1)

        def end() -> None:
            if lost.speaks:
                sys.stderr.write(f"lit_fed: {lost}\n")
                sys.stderr.flush()
            os._exit(1)

        timer = threading.Timer(self.timeout + SECONDS_TO_END, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _ended_ranks(self) -> set[int]:
        """Ranks that this one started and that have ended."""
        first = self.node_rank * self.num_processes
        return {first + number for number in self._own_launcher.ended()}

    @property
    def _own_launcher(self) -> FederatedLauncher:
        assert isinstance(self._launcher, FederatedLauncher)
        return self._launcher

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        if (monitor := rank_monitor()) is not None:
            kinds = {Terminated: "terminated", KeyboardInterrupt: "interrupted"}
            monitor.leave(kinds.get(type(exception), "failed"))
        if isinstance(exception, LostRanksError):
            first = self.node_rank * self.num_processes
            self._own_launcher.kill_ranks({rank - first for rank in exception.ranks})
            if exception.speaks and 0 in exception.ranks:
                atexit.register(_end_first_rank)

    # ------------------------------------------------------------------ exchanges
    def setup(self, trainer: Trainer) -> None:
        """Set up the module; outside a fit Lightning broadcasts rank 0's state, in a fit `configure_ddp` does."""
        with nullcontext() if trainer.state.fn == TrainerFn.FITTING else exchange():
            super().setup(trainer)

    def configure_ddp(self) -> None:
        assert self.model is not None
        with exchange():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                dist.broadcast(tensor.data, 0)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        with exchange():
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        with exchange():
            return super().broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if group == NOBODY:
            return tensor
        with exchange():
            return super().reduce(tensor, group, reduce_op)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        with exchange():
            return super().all_gather(tensor, group, sync_grads)


def _leave_group() -> None:
    """End gloo's threads before Python ends; torch aborts if one still holds tensors of the last exchange then."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _end_first_rank() -> None:
    """Kill the process that started this one, if it hangs or is stopped."""
    if os.environ.get(STARTED_BY) == str(os.getppid()):
        with suppress(ProcessLookupError):
            os.kill(os.getppid(), signal.SIGKILL)


def same_on_every_rank(trainer: Trainer) -> dict[str, Any]:
    """Arguments of `self.log` for a number that is equal on all ranks: no reduction, which is slow, and no warning."""
    return {"sync_dist": True, "sync_dist_group": NOBODY} if isinstance(trainer.strategy, FederatedStrategy) else {}


def prepare_data(trainer: Trainer) -> None:
    """Download missing files on one rank of each machine; the others wait, but unlike Lightning's not without end."""
    owners: list[Any] = [trainer.datamodule, trainer.lightning_module]  # type: ignore[attr-defined]
    with waiting_for_work():
        for one in owners:
            if one is not None and trainer.local_rank == 0 and (one.prepare_data_per_node or trainer.node_rank == 0):
                one.prepare_data()
    trainer.strategy.barrier("prepare_data")


StrategyRegistry.register(
    "fed_ddp", FederatedStrategy, description="cohort sharded over ranks, no gradient hooks", start_method="popen"
)
