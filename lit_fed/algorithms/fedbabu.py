"""FedBABU: the body is trained under a fixed random head, and the model is tuned before it serves a client.

Oh, Kim, Yun. "FedBABU: Toward Enhanced Representation for Federated Image Classification". ICLR 2022.
https://arxiv.org/abs/2106.06042, Algorithm 1 and Section 5.

Symbols:
    θ_ext -> shared.models   the body, leaves [1, ...]
    θ_cls -> state.own       the head, which stays at the common random start, leaves [1, ...]
    n_Ck  -> message.weight  samples of client k
    τ     -> solver.work     local epochs of the body
    τ_f   -> adapt_epochs    epochs of tuning
Deviations:
    The head takes no steps. In the authors' program it takes steps at rate 0, the average over clients is unweighted
    (`--model.weighting uniform`), and the best round is chosen by the test data.
    BatchNorm and its running statistics belong to the part they are in, as in the program.
    FedBABU+, whose server trains on its own data, is not offered.
    The tuning has a fresh optimizer at the initial rate (`solver.adapt_lr`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lit_fed.core.algorithm import local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.fine_tuning import FineTunes, FineTuning
from lit_fed.core.partial_models import PartialModel, Patterns, SentPart, leaf_order, named_leaves, names_of
from lit_fed.core.types import Batch

__all__ = ["FedBABU"]


@dataclass(frozen=True)
class FedBABU(FineTunes, PartialModel):
    """Clients train the body under a head that is never trained; each client is served by a tuned copy of the model.

    Args:
        head: names of the head's leaves or modules, as patterns; `head` is the last layer.
        tune: part that is tuned before a client is served: the whole model (`all`), its `head`, or its `body`.
        adapt_epochs: passes over the local samples of that tuning; 0: clients are served by the trained body and the
            random head.
    """

    in_every_combination = True
    serving_settings = ("tune", "adapt_epochs")
    place = "--model.algorithm"
    incompatible = {
        "personal_parts": "keeps a fixed head itself",
        "fine_tuning": "fine-tunes its clients itself; give --model.algorithm.adapt_epochs",
    }

    head: Patterns = ("head",)
    tune: Literal["all", "head", "body"] = "all"
    adapt_epochs: int = ranged(5, ">= 0")

    @property
    def fine_tuning(self) -> FineTuning:  # type: ignore[override]
        """The tuning before serving."""
        return FineTuning(self.adapt_epochs)

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The head."""
        return named_leaves(ctx.task, self.head, "--model.algorithm.head")

    def tuned_names(self, ctx: Context) -> frozenset[str] | None:
        """The tuned part; None: both."""
        head = self.own_names(ctx)
        return {"all": None, "head": head, "body": frozenset(leaf_order(ctx.task.network)) - head}[self.tune]

    def client_step(self, ctx: Context, shared: SentPart, work: Any, batch: Batch) -> Any:
        """A step of the body under the fixed head; before serving, a step of the tuned part."""
        if ctx.tunes:
            return super().client_step(ctx, shared, work, batch)
        return local_step(ctx, work, batch, moving=names_of(shared.models))
