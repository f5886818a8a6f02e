"""Mixture weights of the clients and weights between clients over the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.core.algorithm import Algorithm
from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError, notice
from lit_fed.system.checked_archive import tensor
from lit_fed.system.files import whole_file
from lit_fed.system.readers import MOST, FormError, keyed, list_of, one_of, whole
from lit_fed.training.hooks import FederatedCallback, data_of, federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.base import innermost

__all__ = ["ClientWeights"]

KINDS = {"rounds": torch.int64, "mixture": torch.float32, "collaboration": torch.float32}
"""What is kept of a round, and its type."""


def _records(value: Any, place: str) -> dict[str, list[Tensor]]:
    """Read weights of one shape for each round, by name, and the numbers of these rounds."""
    found: dict[str, list[Tensor]] = keyed(one_of(*KINDS), list_of(tensor, MOST, 1), len(KINDS))(value, place)
    for name, values in found.items():
        form = KINDS[name], torch.Size() if name == "rounds" else values[0].shape
        if {(one.dtype, one.shape) for one in values} != {form}:
            raise FormError(f"{place}.{name} is not of tensors of {KINDS[name]} and one shape")
    return found


class ClientWeights(FederatedCallback):
    """Keeps the mixture weights of the clients and the weights between clients, and writes them as `weights.npz`.

    The file has `rounds` [R], completed rounds; `mixture` [R, E, M] of the evaluated clients; `collaboration`
    [R, T, T], the weight of each client's model for each client (one row per served client); `groups` [T], if true
    groups are known; `names` [T]; and `on_graph`, whether the algorithm has a topology. Arrays that the algorithm
    does not have are omitted.

    Args:
        most_records: upper limit of stored rounds, evenly spread over the evaluated ones.
        most_clients: weights between clients are stored up to this number of clients.
    """

    kept = {
        "records": _records,
        "spacing": whole(1),
        "seen": whole(),
    }

    def __init__(self, most_records: int = 16, most_clients: int = 200) -> None:
        if most_records < 2:
            raise ConfigError(f"ClientWeights.most_records is {most_records}; give a whole number >= 2")
        self.most_records, self.most_clients = most_records, most_clients
        self.records: dict[str, list[Tensor]] = {}
        self.spacing, self.seen = 1, 0

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.seen += 1
            if (self.seen - 1) % self.spacing == 0:
                self._keep(trainer, federated(pl_module))

    def _keep(self, trainer: Trainer, module: FederatedModule) -> None:
        rounds = self.records.get("rounds", [])
        if rounds and int(rounds[-1]) == module.num_rounds_done:
            return
        found = {"rounds": torch.tensor(module.num_rounds_done), **self._weights(trainer, module)}
        if any(one.shape != value.shape for name, value in found.items() for one in self.records.get(name, ())):
            notice(
                "the weights of earlier rounds are of other clients than those that are measured now; they are left out"
            )
            self.records = {}
        for name, value in found.items():
            self.records.setdefault(name, []).append(value)
        if len(self.records["rounds"]) > self.most_records:
            self.records = {name: values[::2] for name, values in self.records.items()}
            self.spacing *= 2

    def _weights(self, trainer: Trainer, module: FederatedModule) -> Leaves:
        found = {}
        if module.store.has_mixtures:
            weights = module.mixture_weights[data_of(trainer).populations[0].positions]
            found["mixture"] = weights.float().cpu().clone()  # the next round overwrites the table
        num_clients = module.facts.num_clients
        if not module.store.holds_states:
            return found
        if has_collaboration(module.algorithm) and num_clients <= self.most_clients:
            states = module.store.gather(torch.arange(num_clients, device=module.device))["state"]
            ctx = module.federation.context("collaboration")
            between = module.algorithm.collaboration(ctx, module.shared, states)
            if between is not None:
                found["collaboration"] = between.float().cpu().clone()
        return found

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        self._keep(trainer, module)
        folder = results_folder(trainer)
        if folder is None or len(self.records) == 1:
            return
        arrays: dict[str, Any] = {name: torch.stack(values).numpy() for name, values in self.records.items()}
        arrays["names"] = np.array(data_of(trainer).populations[0].names, dtype=str)
        arrays["on_graph"] = np.array(hasattr(module.algorithm, "topology"))
        if module.facts.groups is not None:
            arrays["groups"] = module.facts.groups.cpu().numpy()
        with whole_file(folder / "weights.npz") as file:
            np.savez_compressed(file, **arrays)


def has_collaboration(algorithm: Any) -> bool:
    """Whether an algorithm, or the one inside wrappers, has weights between clients."""
    kind = type(innermost(algorithm))
    return kind.collaboration is not Algorithm.collaboration
