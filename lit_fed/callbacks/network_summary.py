"""The layers of the clients' network."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichModelSummary
from lightning.pytorch.utilities.model_summary import ModelSummary
from torch import nn

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
        module: Any = pl_module
        return ModelSummary(_Shown(module.task.network), max_depth=self._max_depth + (self._max_depth > 0))
