"""A callback that kills its own process at a chosen moment, as a power cut would."""

import os
import signal

import torch

from lit_fed.callbacks import FederatedCallback


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
