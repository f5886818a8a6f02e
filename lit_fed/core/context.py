"""Settings and facts of a phase, the same for all its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import Secret
from lit_fed.core.task import Task
from lit_fed.core.types import ClientData, LocalWork

__all__ = ["Context", "RandomTransform", "Terms"]


class RandomTransform(Protocol):
    """A random transform of the samples of local steps, a pure function of its stream."""

    said: str  # its settings, for messages

    def __call__(self, x: Tensor, y: Tensor, stream: np.random.SeedSequence) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the same shape and type; labels other than masks stay."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """Sizes and terms of a training: what the facts of its data and the context of a phase have in common."""

    num_clients: int  # T
    total_samples: int  # training samples of all T clients
    seed: int
    num_rounds: int
    most_samples: int  # training samples of the largest of the T clients
    groups: Tensor | None  # [T] true group of each client, where known
    weighting: Literal["samples", "positions", "uniform"]
    batch_size: int  # samples of a local batch if the local work sets none; 0: the whole local set
    sampling_probability: float = 1.0  # q, participation probability of each client
    total_positions: int = 0  # labelled positions of all T clients' samples, if clients are weighted by them
    capped_samples: int = 0  # Σ of all T clients' weights after the cap on each; 0: no cap
    sizes: Tensor | None = None  # [T] int64 training samples of each client, at the server if ε depends on all of them
    of_clients: dict[str, Tensor] = field(default_factory=dict)  # values [T] float64 of options of `BY_CLIENT` given

    def _replace(self, **changes: Any) -> Self:
        """These with some fields changed, as of a named tuple."""
        return replace(self, **changes)

    def _asdict(self) -> dict[str, Any]:
        """The fields by name, as of a named tuple."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Context(Terms):
    """Settings and facts of a phase, the same for all its clients."""

    task: Task
    solver: LocalSolver
    lr: Tensor  # [] float64, the local learning rate of this round; in the phase `adapt` that of adaptation
    lr_factor: float | Tensor = 1.0  # of the client whose function this is for, [] float64, already in `lr`
    round_idx: int  # from 0
    phase: str
    tunes: bool = False  # whether the phase `adapt` is the fine-tuning, which follows the algorithm's own adaptation
    aggregation: Literal["renormalised", "stale_fill"] = "renormalised"
    horizon: int | None = None  # rounds after which schedules end, also if a run goes on; None: `num_rounds`
    present: Tensor | None = None  # [T] True for the clients of this phase; None: all, or not known yet
    draws: Tensor | None = None  # [T] draws of each client in this phase, if messages count them themselves
    attackers: Tensor | None = None  # [T] True for clients that are known to attack; None: not known
    private: frozenset[str] = frozenset()  # names of personal leaves, which are not sent
    augmentation: RandomTransform | None = None  # augmentation of the samples of local steps; None: none
    mixture_noise: float | None = None  # standard deviation on Σ_s q_s in the M-step; None: π stays at the client
    drawn_weight: float | None = None  # total weight of the sampled clients, dropouts included; None: unused
    secret: Secret | None = None  # source of the privacy noise; None: no privacy
    unprotected: Context | None = None  # the context without protection of samples; None: this one
    stage: str = ""  # stage of the local work, in `client_step`; "": the work has a single one

    def seed_of_batches(self, work: LocalWork) -> int:
        """Seed of batches, augmentation and dropout of local work.

        It is secret if privacy relies on Poisson batches: with known draws, one more sample would change the draws of
        all samples after it, and ε covers the change of one gradient only.
        """
        return self.secret.seed("batches") if work.sample_rate and self.secret is not None else self.seed

    def of_client(self, client_id: Tensor) -> Context:
        """The context with the client's learning rate; `client_id` [] may be batched, and is T or more if unseen."""
        if (factors := self.of_clients.get("client_lr")) is None:
            return self
        factor = self._value_of(client_id, factors, 1.0)
        return self._replace(lr=self.lr * factor, lr_factor=factor)

    def own_rate(self, lr: float | None) -> Tensor:
        """A learning rate of the algorithm's own, [] float64, with the client's factor; None: that of the phase."""
        return self.lr if lr is None else torch.full_like(self.lr, lr) * self.lr_factor

    def batch_size_of(self, client_id: Tensor) -> Tensor:
        """Samples of a local batch of a client, [] int64, `most_samples` for its whole local set; as `of_client`."""
        default = self.batch_size or self.most_samples
        if (sizes := self.of_clients.get("client_batch_size")) is None:
            return torch.full_like(client_id, default, dtype=torch.int64, device=self.lr.device)
        return self._value_of(client_id, sizes.where(sizes > 0, self.most_samples), default).long()

    def _value_of(self, client_id: Tensor, values: Tensor, default: float) -> Tensor:
        """The client's value, [], or the default of unseen clients."""
        known = torch.cat([values, values.new_full((1,), default)]).to(self.lr.device)
        return known.index_select(0, client_id.to(self.lr.device).clamp(max=len(values)).unsqueeze(0))[0]

    def shares_of(self, client_ids: Sequence[int]) -> np.ndarray | None:
        """Share of the local steps that each client of a round takes, [C] float64; None: all steps."""
        if (shares := self.of_clients.get("client_work")) is None or self.phase == "adapt":
            return None
        return shares[list(client_ids)].numpy()

    def batch_sizes_of(self, client_ids: Sequence[int]) -> np.ndarray:
        """Samples of a local batch of each client, [C] int64; 0: its whole local set."""
        if (sizes := self.of_clients.get("client_batch_size")) is None:
            return np.full(len(client_ids), self.batch_size)
        known = np.append(sizes.numpy().astype(np.int64), self.batch_size)
        return known[np.minimum(np.asarray(client_ids, dtype=np.int64), len(known) - 1)]  # unseen clients have the last

    @property
    def own(self) -> Context:
        """The context without privacy, for results that never leave the client and affect nothing that leaves it."""
        return self if self.unprotected is None else self.unprotected

    @property
    def total_weight(self) -> int:
        """Total weight of all T clients: their samples, capped per client, their labelled positions, or T."""
        if self.weighting == "positions":
            return self.total_positions
        return (self.capped_samples or self.total_samples) if self.weighting == "samples" else self.num_clients

    def client_weight(self, data: ClientData) -> Tensor:
        """Weight of a client's message, [] float64: its samples, its labelled positions, or 1."""
        if self.weighting == "positions":
            return self.task.target.num_positions(data.y, data.mask)
        return data.num_samples if self.weighting == "samples" else torch.ones_like(data.num_samples)

    def client_share(self, data: ClientData) -> Tensor:
        """Weight of a client's mean loss in a sum over all clients, [] float64: T·n_t/n, or 1; 1 on average.

        n_t counts samples, or labelled positions. A client without any counts as if it had one, so that the result can
        be a divisor.
        """
        if self.weighting == "uniform":
            return torch.ones_like(data.num_samples)
        if self.weighting == "positions":
            return self.client_weight(data).clamp(min=1) * self.num_clients / self.total_positions
        return data.num_samples.clamp(min=1) * self.num_clients / self.total_samples
