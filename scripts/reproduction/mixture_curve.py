"""How FedEM's mixture comes about: entropies of π and q, and each component's accuracy alone, round after round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_fed.callbacks.component_accuracy import has_components, measure_components
from lit_fed.clients import SequentialTrainer
from lit_fed.core.mixtures.e_step import expectation
from lit_fed.metrics.gathered import ClientTable
from lit_fed.training.hooks import data_of, federated

__all__ = ["MixtureCurve", "mixture_curve"]


class MixtureCurve(Callback):
    """Measures the seen clients' mixtures in every periodic evaluation.

    Attributes:
        rows: for each evaluation the round, the mean entropy of π over clients and of q over training samples, both in
            nats, the weight of the largest component on average, and the accuracy of each component alone [M].
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """What was measured so far, for a run that is cut short."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with it."""
        self.rows = list(state_dict["rows"])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure, unless Lightning only tries out whether it can."""
        module = federated(pl_module)
        if trainer.sanity_checking or not has_components(module):
            return
        data, federation = data_of(trainer), module.federation
        train = data.populations[0].train.to(module.device)
        mixture = module.store.gather(torch.arange(train.num_clients, device=module.device))["state"].mixture
        tables = [ClientTable(train.num_clients).to(module.device) for _ in range(mixture.shape[1])]
        with trainer.precision_plugin.val_step_context(), torch.no_grad():
            ctx, entropies = federation.context("evaluate"), []
            for client_id, pi in enumerate(mixture):
                client = train.client(client_id)
                losses = SequentialTrainer().losses(ctx, federation.shared, federation.algorithm, client)
                assert losses is not None  # of a mixture they are known
                entropies.append(_entropy(expectation(pi, losses, client.mask)[1]))
            for block in data.serving("seen", "test"):
                measure_components(module, trainer.strategy.batch_to_device(block), tables)
        sums = torch.stack([table.compute().sum(0) for table in tables])  # [M, 3]
        self.rows.append(
            {
                "round": module.num_rounds_done,
                "entropy_of_clients": _digits(_entropy(mixture).mean()),
                "entropy_of_samples": _digits(torch.cat(entropies).mean()),
                "largest_weight": _digits(mixture.amax(1).mean()),
                "components": [_digits(value) for value in sums[:, 2] / sums[:, 0]],
            }
        )


def _entropy(weights: Tensor) -> Tensor:
    """Entropies [n] in nats of rows [n, M] that sum to 1."""
    return torch.special.entr(weights).sum(1)


def _digits(value: Tensor) -> float:
    return round(float(value), 4)


def mixture_curve(cli: Any, folder: Path) -> list[dict[str, Any]]:
    """What `MixtureCurve` measured."""
    (callback,) = (one for one in cli.trainer.callbacks if isinstance(one, MixtureCurve))
    return callback.rows
