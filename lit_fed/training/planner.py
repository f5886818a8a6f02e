"""What the data module asks of the side that runs the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_fed.core.types import ClientBlock, Split
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.faults.wrapper import faults_of
from lit_fed.wrappers.privacy.client_level import clips_messages

__all__ = ["FederationPlanner"]


class FederationPlanner:
    """Answers a data module (`lit_fed.data.module.RoundPlanner`) for a federation.

    Args:
        federation: the federation, with a store.
    """

    def __init__(self, federation: FederatedRounds) -> None:
        self._federation = federation

    @property
    def next_draw(self) -> dict[str, Any]:
        """Training seed and index of the coming round; where clients fail, who can be reached and how many to draw."""
        federation = self._federation
        seed, round_idx, faults = federation.terms.seed, federation.server.rounds_done, faults_of(federation.algorithm)
        hidden = federation.terms.secret if clips_messages(federation.algorithm) else None
        # amplification by sampling holds only if the cohort is a secret
        draw: dict[str, Any] = {"seed": seed if hidden is None else hidden.seed("cohorts"), "round_idx": round_idx}
        if faults is None:
            return draw
        there = faults.available(seed, round_idx, federation.terms.num_clients)
        return draw | {"available": there, "over_selection": faults.over_selection}

    @property
    def most_per_block(self) -> int | None:
        """Most clients whose states may be gathered at once; None: any number."""
        return self._federation.store.clients_per_block

    def blocks(self, client_ids: np.ndarray, train: Split, **division: int) -> list[ClientBlock]:
        """One rank's blocks of the coming round."""
        return self._federation.blocks(client_ids, train, **division)
