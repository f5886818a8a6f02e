"""The strategy `fed_ddp`: the clients of a round shared out over ranks, and what becomes of lost ones."""

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
"""How long rank zero waits at its end for the ranks that it has started, and what torch's timeouts may take longer."""

NOBODY = "nobody else"
"""In the place of a process group: what is reduced over it is sent to no other rank. A word outlives being copied."""

STARTED_BY = "LIT_FED_STARTED_BY"
"""Variable of the environment that tells a rank which process started it."""


class FederatedLauncher(_SubprocessScriptLauncher):
    """Lightning's, which starts the other ranks of a machine, but ranks look after each other by themselves.

    Lightning's kills rank zero when it sees another rank fail, before that can say what has happened.
    """

    def launch(self, function: Callable, *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> Any:
        """Start the other ranks of this machine, if nobody else does, and run the function."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            os.environ[STARTED_BY] = str(os.getpid())
            self._call_children_scripts()
            atexit.register(self._see_to_their_end)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def ended(self) -> set[int]:
        """Local ranks that were started here and have ended."""
        return {number for number, process in enumerate(self.procs, 1) if process.poll() is not None}

    def kill_ranks(self, local_ranks: set[int]) -> None:
        """End ranks that would not end by themselves."""
        for number, process in enumerate(self.procs, 1):
            if number in local_ranks:
                process.kill()

    def _see_to_their_end(self) -> None:
        """No rank stays behind when the one that started it ends."""
        for process in self.procs:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class FederatedStrategy(DDPStrategy):
    """Process group and launcher of DDP without its wrapper: clients train whole models of their own, rank by rank.

    On CPUs every rank takes one thread: more ranks use more cores better than more threads do.

    Before each collective all ranks report to rank zero (`RankMonitor`), so that all of them end with a
    `LostRanksError` if one is missing, whatever the backend. The timeout is that of the trainer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "timeout" in kwargs:
            raise ConfigError("--trainer.strategy.timeout is set; give --trainer.timeout, in seconds")
        super().__init__(*args, **kwargs)
        self.timeout = 300.0

    @property
    def timeout(self) -> float:
        """Seconds that a rank may keep another waiting without a sign of life."""
        return self._seconds

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._seconds = check_timeout(seconds)
        self._timeout = timedelta(seconds=seconds)

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = FederatedLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        """Join the process group; keep the ranks of one machine out of each other's cores."""
        super().setup_environment()
        if self.root_device.type == "cpu":
            torch.set_num_threads(1)

    def setup_distributed(self) -> None:
        """Find the other ranks, then let torch connect them.

        Raises:
            LostRanksError: if one does not come.
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
        """Around what cannot be interrupted: rank zero keeps torch's store, which nobody leaves while it is stopped."""
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
        """Ranks that this one has started and that have ended."""
        first = self.node_rank * self.num_processes
        return {first + number for number in self._own_launcher.ended()}

    @property
    def _own_launcher(self) -> FederatedLauncher:
        assert isinstance(self._launcher, FederatedLauncher)
        return self._launcher

    def on_exception(self, exception: BaseException) -> None:
        """Tell the other ranks why this one ends, and end processes that cannot end by themselves."""
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
        """Set up the module; for a fit see `configure_ddp`, for all else Lightning sends rank 0's to the others."""
        with nullcontext() if trainer.state.fn == TrainerFn.FITTING else exchange():
            super().setup(trainer)

    def configure_ddp(self) -> None:
        """Start all ranks from rank 0's shared state and client table."""
        assert self.model is not None
        with exchange():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                dist.broadcast(tensor.data, 0)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all ranks."""
        with exchange():
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What one rank has, on every rank."""
        with exchange():
            return super().broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """A tensor reduced over ranks; one that is the same on all of them comes back as it is."""
        if group == NOBODY:
            return tensor
        with exchange():
            return super().reduce(tensor, group, reduce_op)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """A tensor of all ranks."""
        with exchange():
            return super().all_gather(tensor, group, sync_grads)


def _leave_group() -> None:
    """End gloo's threads before Python ends.

    One that still holds the tensors of the last exchange would ask for an interpreter that is gone, and torch aborts.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _end_first_rank() -> None:
    """End the process that started this one: it is stopped, or hangs, and nobody else would."""
    if os.environ.get(STARTED_BY) == str(os.getppid()):
        with suppress(ProcessLookupError):
            os.kill(os.getppid(), signal.SIGKILL)


def same_on_every_rank(trainer: Trainer) -> dict[str, Any]:
    """Arguments for `self.log` of a number that all ranks have: it is not reduced, and Lightning does not warn of that.

    Reducing each number of an evaluation by itself would take longer than the rest of a small round.
    """
    return {"sync_dist": True, "sync_dist_group": NOBODY} if isinstance(trainer.strategy, FederatedStrategy) else {}


def prepare_data(trainer: Trainer) -> None:
    """Fetch missing files on one rank of each machine; the others wait for it.

    Lightning's own lets them wait without end, also for a rank that is stopped.
    """
    owners: list[Any] = [trainer.datamodule, trainer.lightning_module]  # type: ignore[attr-defined]
    with waiting_for_work():
        for one in owners:
            if one is not None and trainer.local_rank == 0 and (one.prepare_data_per_node or trainer.node_rank == 0):
                one.prepare_data()
    trainer.strategy.barrier("prepare_data")


StrategyRegistry.register(
    "fed_ddp", FederatedStrategy, description="cohort sharded over ranks, no gradient hooks", start_method="popen"
)
