"""Rate of agreement of clients on a graph: the spectral gap of their mixing matrices."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.core.graphs.mixing import mixing_matrix, restrict, second_eigenvalue
from lit_fed.core.types import RoundRecord
from lit_fed.errors import ConfigError
from lit_fed.system.checked_archive import tensor
from lit_fed.system.readers import optional, whole
from lit_fed.training.hooks import FederatedCallback, federated, log_round
from lit_fed.training.module import FederatedModule

__all__ = ["SpectralGap"]


class SpectralGap(FederatedCallback):
    """Logs the spectral gap of the mixing matrix W_k after each round, for algorithms with a topology and a mixing.

    `graph/spectral_gap` is 1 − |λ₂(W_k)| of the round, with the weights of absent clients and lost messages on the
    diagonal: 0 if clients would not agree by this matrix alone. `graph/mean_spectral_gap` is 1 − √λ₂(mean W_k²) over
        the
    rounds so far, the rate of agreement if graph or clients change; otherwise it is the same. It goes to the run's
    summary and survives a resume. The eigenvalues of T
    clients take T³ operations in each round.
    """

    kept = {"squares": optional(tensor), "num_rounds": whole()}

    def __init__(self) -> None:
        self.squares: Tensor | None = None  # Σ_k W_k², [T, T] float64
        self.num_rounds = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        algorithm: Any = module.settings.algorithm
        if not (hasattr(algorithm, "topology") and hasattr(algorithm, "mixing")):
            raise ConfigError(
                f"--trainer.callbacks has SpectralGap, and {module.algorithm_name} has no mixing matrix; leave it out, "
                "or choose DPSGD, DFedEM or DecentralizedSurrogate"
            )

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        algorithm: Any = module.settings.algorithm
        num_clients, seed = module.facts.num_clients, module.facts.seed
        matrix = mixing_matrix(algorithm.topology, algorithm.mixing, num_clients, seed, record.round_idx)
        present = torch.zeros(num_clients, dtype=torch.bool).index_fill(0, record.client_ids.cpu(), True)
        matrix = matrix if present.all() else restrict(matrix, present)
        square = matrix @ matrix
        if self.squares is None or self.squares.shape != square.shape:  # as of a forged checkpoint
            self.squares, self.num_rounds = torch.zeros_like(square), 0
        self.squares = self.squares + square
        self.num_rounds += 1
        mean_gap = 1 - second_eigenvalue(self.squares / self.num_rounds) ** 0.5
        module.results["graph/mean_spectral_gap"] = mean_gap
        gaps = {"graph/spectral_gap": 1 - second_eigenvalue(matrix), "graph/mean_spectral_gap": mean_gap}
        log_round(trainer, module, gaps)
