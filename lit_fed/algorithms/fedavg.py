"""FedAvg: one global model from averaged local training.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. "Communication-Efficient Learning of Deep Networks from Decentralized
Data". AISTATS 2017. https://arxiv.org/abs/1602.05629, Algorithm 1.

Symbols:
    w_t -> shared.models       the global model, leaves [1, ...]
    w_k -> work.models         the model of client k, leaves [1, ...]
    n_k -> message.weight      samples of client k
    E   -> solver.local_epochs
    B   -> data.batch_size
    η   -> solver.lr
Deviations:
    Sampling and aggregation are separate settings: `data.client_fraction` is the paper's C. `model.aggregation` offers
    the paper's average over the sampled clients (`renormalised`) and `stale_fill` of the official FedEM code.
"""

from __future__ import annotations

from dataclasses import dataclass

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """One global model: clients train copies, the server averages them by their numbers of samples."""

    in_every_combination = True
