"""FedRep: many local updates of a personal head, then an update of the shared representation.

Collins, Hassani, Mokhtari, Shakkottai. "Exploiting Shared Representations for Personalized Federated Learning". ICML
2021. https://arxiv.org/abs/2102.07078, Algorithm 1.

Symbols:
    φ   -> shared.models  the representation, leaves [1, ...]
    h_i -> state.own      the head of client i, leaves [1, ...]; never leaves the client
    τ   -> head_epochs    local updates of the head, on the received φ
    α   -> solver.lr      learning rate of both
    r·n -> phase          clients of a round
Deviations:
    τ counts passes, as in the paper's experiments and the authors' program, instead of single updates; both are equal
    with `data.batch_size 0`. The representation takes one update on one batch (`body_steps: 1`), as in Algorithm
    1; in the program it takes epochs: `body_steps: null`, with `solver.local_epochs`.
    Each of the two has a fresh optimizer in each round. The program has one for both, so with momentum or weight decay,
    in PyTorch before 2.0, the fixed part kept moving; and it excludes biases from weight decay.
    The mean over clients is the paper's, uniform; the program's is weighted by samples for data of LEAF:
    `--model.weighting samples`.
    Heads start from that of the initial network. In the program the heads of clients that were not sampled yet share
    the memory of the server's head, and so are means of others' heads. Its last round trains the heads of all clients,
    for 10 epochs or more; ours is like all others.
    An unseen client trains a head, from the initial one, for `head_epochs` passes on the final φ, whose running
    statistics are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lit_fed.core.algorithm import LocalRun, Participation, ranged
from lit_fed.core.context import Context
from lit_fed.core.partial_models import (
    OWN,
    SHARED,
    KeptPart,
    Patterns,
    PersonalPart,
    SentPart,
    in_turn,
    named_leaves,
    staged_run,
    staged_step,
)
from lit_fed.core.types import Batch, ClientData, Phase, Stage

__all__ = ["FedRep"]


@dataclass(frozen=True)
class FedRep(PersonalPart):
    """Clients train personal heads on the received representation, then the representation under their heads.

    Args:
        head: names of the head's leaves or modules, as patterns; `head` is the last layer.
        head_epochs: passes over the local samples for the head.
        body_steps: local steps of the representation; null takes the solver's `local_epochs` or `local_steps`.
    """

    in_every_combination = True
    participation = Participation(weighting="uniform")

    head: Patterns = ("head",)
    head_epochs: int = ranged(10, ">= 0")
    body_steps: int | None = ranged(1, ">= 1")

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The head."""
        return named_leaves(ctx.task, self.head, "--model.algorithm.head")

    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        """One exchange: τ passes for the head, then the update of the representation."""
        work = ctx.solver.work
        epochs = work.epochs if self.body_steps is None else None
        body = Stage(SHARED, epochs, self.body_steps or work.steps)
        return (Phase("train", client_ids, in_turn(work, self.own_stage(ctx), body)),)

    def own_stage(self, ctx: Context) -> Stage:
        """τ."""
        return Stage(OWN, self.head_epochs)

    def client_init(self, ctx: Context, shared: SentPart, state: KeptPart, data: ClientData, losses: None) -> LocalRun:
        """The received representation with the personal head."""
        return staged_run(ctx, self.whole(ctx, shared, state))

    def client_step(self, ctx: Context, shared: SentPart, work: LocalRun, batch: Batch) -> LocalRun:
        """h_i ← h_i − α ∇_h f_i(h_i, φ), and in the second stage φ_i ← φ_i − α ∇_φ f_i(h_i, φ_i)."""
        return staged_step(ctx, shared, work, batch)
