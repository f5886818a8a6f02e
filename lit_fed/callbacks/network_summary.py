"""The clients' network before training: its layers, and which parameters are trained."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichModelSummary
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary
from torch import nn

from lit_fed.core.networks.stacked_network import fresh_network
from lit_fed.core.task import Task
from lit_fed.system.names import few
from lit_fed.training.hooks import FederatedCallback, federated
from lit_fed.training.output import print_rows

__all__ = ["NetworkSummary", "TrainedParameters"]

MOST_NAMES = 6
"""Parameter names in the line."""


class _Shown(LightningModule):
    """The network as a LightningModule, which Lightning's summary requires."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network


class _Summary(ModelSummary):
    """Lightning's summary with frozen layers marked in the column of modes."""

    def _get_summary_data(self) -> list[tuple[str, list[str]]]:
        columns = dict(super()._get_summary_data())
        modules = dict(self._model.named_modules())
        layers = zip(columns["Name"], columns["Mode"], strict=True)  # parameters of no layer have a row, too
        columns["Mode"] = [_mode(modules[name], mode) if name in modules else mode for name, mode in layers]
        return list(columns.items())


def _mode(layer: nn.Module, mode: str) -> str:
    """`frozen` or `partly frozen`, or the mode of a layer whose parameters are all trained."""
    trained = [leaf.requires_grad for leaf in layer.parameters()]
    if all(trained):
        return mode
    return "partly frozen" if any(trained) else "frozen"


class NetworkSummary(RichModelSummary):
    """Prints the network's layers, their parameters and the frozen ones before training; of a mixture, one component.

    Lightning's own summary would list the states of server and clients.

    Args:
        max_depth: depth of listed layers; -1: all.
    """

    def __init__(self, max_depth: int = 1) -> None:
        super().__init__(max_depth)

    def _summary(self, trainer: Trainer, pl_module: LightningModule) -> ModelSummary:
        network = federated(pl_module).federation.terms.task.network
        return _Summary(_Shown(network), max_depth=self._max_depth + (self._max_depth > 0))

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]], total_parameters: int, trainable_parameters: int, model_size: float,
        total_training_modes: dict[str, int], total_flops: int, **summarize_kwargs: Any,
    ) -> None:  # fmt: skip
        """Print the layers, without operations and modes of the whole: nothing runs here."""
        shown = [(name, column) for name, column in summary_data[1:] if name != "FLOPs"]
        trained = f"{trainable_parameters:,} of {total_parameters:,} parameters are trained"
        print_rows(
            "network", [name for name, _ in shown], zip(*(column for _, column in shown), strict=True), words=2,
            caption=f"{trained}; {model_size:,.3f} MB", overflow="fold",
        )  # fmt: skip


class TrainedParameters(FederatedCallback):
    """Prints one line before training that names the trained parameters, if some are frozen."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        task = module.federation.terms.task
        if task.frozen and trainer.is_global_zero:
            sys.stderr.write(f"lit_fed: {_in_words(task, random=_are_random(task, module.settings.network))}\n")


def _are_random(task: Task, network: Any) -> bool:
    """Whether the frozen weights depend on the seed; weights that a network loads do not."""
    options: dict[str, Any] = {}
    while isinstance(network, partial):
        options = network.keywords | options
        network = network.func
    if task.start is not None or isinstance(network, nn.Module) or options.get("weights") or options.get("pretrained"):
        return False
    other = dict(fresh_network(task.build, (task.template_seed or 0) + 1, task.dtype).named_parameters())
    return any(name in other and not torch.equal(leaf.cpu(), other[name].cpu()) for name, leaf in task.frozen.items())


def _in_words(task: Task, *, random: bool) -> str:
    trained = {name: leaf.numel() for name, leaf in task.network.named_parameters() if name not in task.frozen}
    frozen = sum(leaf.numel() for leaf in task.frozen.values())
    once = f"; what comes before {task.end.name} is computed once for all models" if task.end is not None else ""
    return (
        f"each model trains {sum(trained.values()):,} numbers ({few(trained, MOST_NAMES)}); {frozen:,} are frozen, "
        f"held once and never sent{once}{'; the frozen ones are random: no weights were loaded' if random else ''}"
    )
