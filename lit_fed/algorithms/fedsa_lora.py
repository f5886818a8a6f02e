"""FedSA-LoRA: low-rank adapters with A averaged and B personal.

Guo, Zeng, Wang, Fan, Wang, Qu. "Selective Aggregation for Low-Rank Adaptation in Federated Learning". ICLR 2025.
https://arxiv.org/abs/2410.01463, Section 4.

Symbols:
    ΔW = B A -> network        the adapter of a layer, A [r, in] and B [out, r]; see `--model.lora_rank`
    A        -> shared.models  averaged over clients, leaves [1, ...]
    B_i      -> state.own      of client i, leaves [1, ...]; never leaves the client
Deviations:
    The weights of the average are FedAvg's.
    A classifier that is trained beside the adapters is averaged, too; in the authors' program it stays with its client:
    `personal: ["*lora_B*", head]`.
    An unseen client trains B, from 0, as in a round while everything else is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from lit_fed.core.context import Context
from lit_fed.core.partial_models import Patterns, PersonalPart, named_leaves

__all__ = ["FedSALoRA"]


@dataclass(frozen=True)
class FedSALoRA(PersonalPart):
    """Clients train adapters and average one of their two matrices; the network needs `--model.lora_rank`.

    Args:
        personal: patterns of names of the leaves that stay with the client: the matrices B, by the names that peft
            gives them.
    """

    personal: Patterns = ("*lora_B*",)

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The matrices B."""
        return named_leaves(ctx.task, self.personal, "--model.algorithm.personal")
