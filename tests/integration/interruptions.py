"""What cuts a run short: signals at chosen moments, a power cut, a limit on the size of files."""

import os
import resource
import signal
import sys
from contextlib import contextmanager

import torch

from lit_fed.callbacks import FederatedCallback


@contextmanager
def file_size_limit(size):
    """As `ulimit -f`: the system refuses to let a file grow beyond so many bytes.

    Python would keep modules that it compiles meanwhile as far as they go, and fail to load them ever after.
    """
    before, keeps_none = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = keeps_none


class Kill(FederatedCallback):
    """SIGKILL in round `round_idx`: after `clients` clients, or with half of its checkpoint written."""

    def __init__(self, round_idx: int, moment: str, clients: int = 3) -> None:
        self.round_idx, self.moment, self.clients, self.done = round_idx, moment, clients, 0

    def on_clients_end(self, trainer, module, num_clients):
        if self.moment == "client" and module.num_rounds_done == self.round_idx:
            self.done += num_clients
            if self.done >= self.clients:
                os.kill(os.getpid(), signal.SIGKILL)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        if self.moment != "checkpoint" or pl_module.num_rounds_done != self.round_idx + 1:
            return
        whole = torch.save

        def half(content, file, *args, **kwargs):
            whole(content, file, *args, **kwargs)
            file.flush()
            os.truncate(file.fileno(), file.tell() // 2)
            os.kill(os.getpid(), signal.SIGKILL)

        torch.save = half


class Signal(FederatedCallback):
    """A signal to this process: in round `round_idx`, in the final test, or while its report is written."""

    def __init__(self, moment: str, name: str, round_idx: int = 1, rank: int = 0) -> None:
        self.moment, self.signum, self.round_idx, self.rank = moment, signal.Signals[name], round_idx, rank

    def on_clients_end(self, trainer, module, num_clients):
        if self.moment == "client" and module.num_rounds_done == self.round_idx and trainer.global_rank == self.rank:
            os.kill(os.getpid(), self.signum)

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if self.moment == "test" and trainer.global_rank == self.rank:
            os.kill(os.getpid(), self.signum)

    def on_test_end(self, trainer, pl_module):
        if self.moment == "report":
            os.kill(os.getpid(), self.signum)
