"""Which parameters are trained, where some are frozen."""

from __future__ import annotations

import sys

from lightning.pytorch import LightningModule, Trainer

from lit_fed.core.task import Task
from lit_fed.training.hooks import FederatedCallback, federated

__all__ = ["TrainedParameters"]

MOST_NAMES = 6
"""Names that the line lists."""


class TrainedParameters(FederatedCallback):
    """Says in one line before the training which parameters are trained, if some are frozen."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the line; nothing for a network that is trained whole."""
        task = federated(pl_module).federation.server.task
        if task.frozen and trainer.is_global_zero:
            sys.stderr.write(f"lit_fed: {_in_words(task)}\n")


def _in_words(task: Task) -> str:
    trained = {name: leaf.numel() for name, leaf in task.network.named_parameters() if name not in task.frozen}
    frozen = sum(leaf.numel() for leaf in task.frozen.values())
    names = list(trained)[:MOST_NAMES]
    more = f" and {len(trained) - len(names)} more" if len(trained) > len(names) else ""
    once = f"; what comes before {task.end.name} is computed once for all models" if task.end is not None else ""
    return (
        f"each model trains {sum(trained.values()):,} numbers ({', '.join(names)}{more}); {frozen:,} are frozen, held "
        f"once and never sent{once}"
    )
