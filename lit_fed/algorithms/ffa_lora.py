"""FFA-LoRA: low-rank adapters with A fixed at its random start, and B trained and averaged.

Sun, Li, Li, Ding. "Improving LoRA in Privacy-preserving Federated Learning". ICLR 2024.
https://arxiv.org/abs/2403.12313, Section 4.

Symbols:
    ΔW = B A -> network        the adapter of a layer, A [r, in] and B [out, r]; see `--model.lora_rank`
    A_0      -> state.own      the common random start, leaves [1, ...]; sent once
    B        -> shared.models  averaged over clients, leaves [1, ...]: mean(B_i) A_0 = mean(B_i A_0)
Deviations:
    The weights of the average are FedAvg's.
    A classifier that is trained beside the adapters is averaged, too.
    FedAvg with `--model.trainable "[*lora_B*, head]"` takes the same steps, with A as a frozen part of the network that
    no client stores.
"""

from __future__ import annotations

from dataclasses import dataclass

from lit_fed.core.algorithm import LocalRun, local_step
from lit_fed.core.context import Context
from lit_fed.core.partial_models import PartialModel, Patterns, SentPart, named_leaves, names_of
from lit_fed.core.types import Batch

__all__ = ["FFALoRA"]


@dataclass(frozen=True)
class FFALoRA(PartialModel):
    """Clients train and average one of the two matrices of each adapter; the network needs `--model.lora_rank`.

    Args:
        frozen: patterns of names of the leaves that stay at their start: the matrices A, by the names that peft gives
            them.
    """

    incompatible = {"personal_parts": "keeps a fixed part of the model itself"}

    frozen: Patterns = ("*lora_A*",)

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The matrices A."""
        return named_leaves(ctx.task, self.frozen, "--model.algorithm.frozen")

    def client_step(self, ctx: Context, shared: SentPart, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of everything but A."""
        return local_step(ctx, work, batch, moving=names_of(shared.models))

    def adapt_work(self, ctx: Context, seen: bool) -> None:
        """All clients have the same model."""
