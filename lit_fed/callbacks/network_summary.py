"""The layers of the clients' network."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichModelSummary
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary
from torch import nn

from lit_fed.training.hooks import federated

__all__ = ["NetworkSummary"]


class _Shown(LightningModule):
    """Lightning describes modules of its own kind only."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network


class NetworkSummary(RichModelSummary):
    """Prints the layers of the network and their parameters before training; of mixtures, those of one component.

    Lightning's own summary looks at what the module holds, which are the states of server and clients.

    Args:
        max_depth: how deeply layers within layers are listed; -1: all.
    """

    def __init__(self, max_depth: int = 1) -> None:
        super().__init__(max_depth)

    def _summary(self, trainer: Trainer, pl_module: LightningModule) -> ModelSummary:
        network = federated(pl_module).federation.terms.task.network
        return ModelSummary(_Shown(network), max_depth=self._max_depth + (self._max_depth > 0))
