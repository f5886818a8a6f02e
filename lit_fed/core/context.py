"""What every client of a phase knows."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import Secret
from lit_fed.core.task import Task
from lit_fed.core.types import ClientData, LocalWork

__all__ = ["Context", "RandomTransform"]


class RandomTransform(Protocol):
    """A random transform of the inputs of local steps, a pure function of its stream."""

    said: str  # its settings, for messages

    def __call__(self, x: Tensor, stream: np.random.SeedSequence) -> Tensor:
        """Inputs of the same shape and type."""


class Context(NamedTuple):
    """What every client of a phase knows."""

    task: Task
    solver: LocalSolver
    lr: Tensor  # [] float64, the local learning rate of this round; in the phase `adapt` that of adaptation
    round_idx: int  # from 0
    phase: str
    num_clients: int  # T
    total_samples: int  # training samples of all T clients
    seed: int
    groups: Tensor | None = None  # [T] true group of each client, where known
    aggregation: Literal["renormalised", "stale_fill"] = "renormalised"
    weighting: Literal["samples", "uniform"] = "samples"
    num_rounds: int = 1
    most_samples: int = 0  # training samples of the largest of the T clients
    present: Tensor | None = None  # [T] True for the clients of this phase; None: all, or not known yet
    draws: Tensor | None = None  # [T] how often each was drawn for this phase, where messages count that themselves
    attackers: Tensor | None = None  # [T] True for clients that are known to attack; None: nothing is known of any
    private: frozenset[str] = frozenset()  # names of the leaves of models that stay with the client, and cost no bits
    sampling_probability: float = 1.0  # q, with which each client takes part in a round; 1: all take part in each
    capped_samples: int = 0  # of all T clients, each with no more than it may weigh; 0: weights have no cap
    batch_size: int = 0  # samples of a local batch where the local work names none; 0: the whole local set
    augmentation: RandomTransform | None = None  # of the inputs of local steps; None: they are taken as they are
    mixture_noise: float | None = None  # deviation of noise on Σ_s q_s in the M-step; None: π is for the client alone
    drawn_weight: float | None = None  # of those that were drawn for this phase, whoever came; None: nobody asks
    sizes: Tensor | None = None  # [T] training samples of each client, at a server whose ε depends on all of them
    secret: Secret | None = None  # that noise which protects follows from; None: there is no privacy
    unprotected: Context | None = None  # the same without protection of samples; None: there is none

    def seed_of_batches(self, work: LocalWork) -> int:
        """Seed of the batches of local work and of what is drawn for their samples (augmentation, dropout).

        Where privacy relies on drawn batches, nobody else knows it: of known draws, those of all samples that come
        after one more sample would be others, and ε covers the change of one gradient alone.
        """
        return self.secret.seed("batches") if work.sample_rate and self.secret is not None else self.seed

    @property
    def own(self) -> Context:
        """The same for what never leaves the client and steers nothing that does: no privacy takes part there."""
        return self if self.unprotected is None else self.unprotected

    @property
    def total_weight(self) -> int:
        """Weight of all T clients together: their number of samples, up to a cap of each, or T."""
        return (self.capped_samples or self.total_samples) if self.weighting == "samples" else self.num_clients

    def client_weight(self, data: ClientData) -> Tensor:
        """Weight of a client's message, [] float64: its number of samples, or 1."""
        return data.num_samples if self.weighting == "samples" else torch.ones_like(data.num_samples)

    def client_share(self, data: ClientData) -> Tensor:
        """Weight of a client's mean loss in a sum over all clients, [] float64: T·n_t/n, or 1; 1 on average.

        A client without samples has no loss to weigh, and gets the share of one sample so that shares can divide.
        """
        if self.weighting == "uniform":
            return torch.ones_like(data.num_samples)
        return data.num_samples.clamp(min=1) * self.num_clients / self.total_samples
