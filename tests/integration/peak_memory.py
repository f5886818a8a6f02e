"""Fits `Local` with 2 million parameters per client and notes by how many models memory grew during the training."""

import resource

import torch
from lightning.pytorch import Callback

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.algorithms import Local
from lit_fed.data import IID, Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.models import MLP


def peak():
    """Largest resident memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Start(Callback):
    """Takes the peak before the first round."""

    def on_train_start(self, trainer, pl_module):
        self.bytes = peak()


def network(input_shape, num_outputs):
    return MLP(input_shape, num_outputs, hidden_sizes=(1400, 1300))


def fit(out, num_clients, client_memory_gb, result):
    """Write by how many models it grew; in a process of its own."""
    torch.set_num_threads(1)
    start = Start()
    module = FederatedModule(Local(), network=network, client_memory_gb=client_memory_gb)
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=1, logger=RoundLogger(str(out), "peak"), enable_progress_bar=False,
        callbacks=[start],
    )  # fmt: skip
    trainer.fit(module, datamodule=FederatedDataModule(Digits(), IID(), num_clients=num_clients))
    model = sum(leaf.nbytes for leaf in module.parameters())
    result.write_text(f"{(peak() - start.bytes) / model}")
