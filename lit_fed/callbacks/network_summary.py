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


class _Summary(ModelSummary):
    """Lightning's, which in place of the mode says what is frozen."""

    def _get_summary_data(self) -> list[tuple[str, list[str]]]:
        columns = dict(super()._get_summary_data())
        modules = dict(self._model.named_modules())
        layers = zip(columns["Name"], columns["Mode"], strict=True)  # parameters of no layer have a row, too
        columns["Mode"] = [_mode(modules[name], mode) if name in modules else mode for name, mode in layers]
        return list(columns.items())


def _mode(layer: nn.Module, mode: str) -> str:
    """`frozen` for a layer of which nothing is trained, `partly frozen` for some of it, else what Lightning says."""
    trained = [leaf.requires_grad for leaf in layer.parameters()]
    if all(trained):
        return mode
    return "partly frozen" if any(trained) else "frozen"


class NetworkSummary(RichModelSummary):
    """Prints the network's layers, their parameters and what is frozen before training; of mixtures, one component.

    Lightning's own summary looks at what the module holds, which are the states of server and clients.

    Args:
        max_depth: how deeply layers within layers are listed; -1: all.
    """

    def __init__(self, max_depth: int = 1) -> None:
        super().__init__(max_depth)

    def _summary(self, trainer: Trainer, pl_module: LightningModule) -> ModelSummary:
        network = federated(pl_module).federation.terms.task.network
        return _Summary(_Shown(network), max_depth=self._max_depth + (self._max_depth > 0))
