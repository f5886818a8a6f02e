"""Accuracy of every client over the rounds, for figures that show a single one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["ClientAccuracies", "client_accuracies"]


class ClientAccuracies(Callback):
    """Keeps the accuracy of the seen clients of every evaluated round: `rounds` [R] and `accuracies` [R, E]."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.accuracies: list[list[float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the shares of hits, once all callbacks measured the round."""
        module: Any = pl_module
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            count, _, hits = module.client_rows["seen"][:, :3].unbind(1)
            self.rounds.append(module.num_rounds_done)
            self.accuracies.append((hits / count.clamp(min=1)).tolist())


def client_accuracies(cli: Any, folder: Path) -> dict[str, Any]:
    """What the callback kept, rounded to four digits."""
    kept = next(one for one in cli.trainer.callbacks if isinstance(one, ClientAccuracies))
    return {"rounds": kept.rounds, "accuracies": [[round(value, 4) for value in row] for row in kept.accuracies]}
