"""The server."""

from __future__ import annotations

from lightning.pytorch import Trainer

from lit_fed.training.hooks import FederatedCallback
from lit_fed.training.module import FederatedModule

__all__ = ["ServerAggregation"]


class ServerAggregation(FederatedCallback):
    """Reduces the messages of a phase over blocks and ranks and takes the algorithm's server step.

    A fit needs it. The new shared state is staged for the next phase, and committed at the end of the round.
    """

    is_server = True

    def on_phase_reduce(self, trainer: Trainer, module: FederatedModule) -> None:
        """Reduce, exchange client states between ranks, take the server step."""
        module.federation.end_phase()
