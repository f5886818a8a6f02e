"""Partial first-order surrogates, which federated surrogate optimisation minimises in place of local objectives.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Section 3.4, Definition 1, Appendices D and F.

The clients minimise Σ_i ω_i f_i(u, v_i) over shared models u and a local variable v_i of each client. A function g is
a partial first-order surrogate of f_i near (u⁰, v⁰) if

1. g(u, v) ≥ f_i(u, v) everywhere;
2. r = g − f_i is differentiable and L-smooth in u, with r(u⁰, v⁰) = 0 and ∇_u r(u⁰, v⁰) = 0;
3. g(u, v⁰) − g(u, v) = d(v⁰, v) ≥ 0 for every u and every minimiser v of g(u, ·), with d = 0 only for v = v⁰.

By the third condition the best v does not depend on u.
"""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, Leaves, ModelState, Tree

__all__ = ["Surrogate"]

Local = TypeVar("Local", bound=Any)
Bound = TypeVar("Bound", bound=Any)


class Surrogate(ABC, Generic[Local, Bound]):
    """The objective of one client and its surrogates.

    Subclasses are frozen dataclasses of hyper-parameters. Every method is a pure function of one client, which runs
    under `torch.func.vmap`; `models` are u, leaves [M, ...], `local` is v_i and `bound` is g, both trees of tensors of
    the subclass's choice. A bound is a named tuple with a field `value`, [], which is g(u⁰, v⁰) = f_i(u⁰, v⁰).
    """

    num_models: ClassVar[int] = 1
    """M, the number of models in u; a hyper-parameter of mixtures."""

    weighting: ClassVar[Literal["samples", "uniform"]] = "samples"
    """ω_i: proportional to a client's samples, or the same for all."""

    # ------------------------------------------------------------------ one round
    @abstractmethod
    def local_init(self, task: Task, models: ModelState, data: ClientData) -> Local:
        """v_i before the client's first round."""

    def losses(self, task: Task, models: ModelState, batch: Batch) -> Tensor | None:
        """Losses [B, M] of samples under u⁰, in evaluation mode, for `build`; None if it needs none."""
        return None

    def sample_losses(
        self, task: Task, models: ModelState, data: ClientData, rows_per_pass: int = 1024
    ) -> Tensor | None:
        """`losses` of all samples of a client, some rows at a time."""
        rows, batch = range(0, max(len(data.mask), 1), rows_per_pass), data.batch
        parts = [self.losses(task, models, tree.index(batch, slice(lo, lo + rows_per_pass))) for lo in rows]
        return None if parts[0] is None else torch.cat(parts)  # type: ignore[arg-type]

    @abstractmethod
    def build(self, task: Task, models: ModelState, local: Local, data: ClientData, losses: Tensor | None) -> Bound:
        """The surrogate g near (u⁰, v⁰) = (models, local); `losses` are those of all samples, [N, M], or None."""

    @abstractmethod
    def argmin_local(self, bound: Bound) -> Local:
        """The minimiser of g(u, ·), the same for every u."""

    @abstractmethod
    def gradient(
        self, task: Task, bound: Bound, local: Local, models: ModelState, batch: Batch
    ) -> tuple[Leaves, Leaves]:
        """The gradient of g(·, v) at u, estimated on a batch, and the buffers afterwards; leaves [M, ...]."""

    # ------------------------------------------------------------------ prediction
    def outputs(self, task: Task, models: ModelState, x: Tensor) -> Tree | None:
        """Predictions of samples [B, ...] that depend on u alone; None without any."""
        return task.outputs(models, x)

    @abstractmethod
    def log_prob(self, task: Task, local: Local, x: Tensor, outputs: Any) -> Tensor:
        """Prediction of the client, as `Algorithm.log_prob`, from v_i and `outputs`."""
