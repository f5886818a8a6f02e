"""Plans the rounds of a data module for a federation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from lit_fed import serving
from lit_fed.core.types import ClientBlock, Split
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.faults.wrapper import faults_of
from lit_fed.wrappers.privacy.client_level import clips_messages

__all__ = ["Planner"]


class Planner:
    """Plans the rounds of a data module (`lit_fed.data.module.RoundPlanner`) for a federation with a store.

    Args:
        federation: the federation.
        measuring: context of what is measured between rounds, for its precision.
    """

    def __init__(self, federation: FederatedRounds, measuring: Callable[[], AbstractContextManager[Any]]) -> None:
        self._federation, self._measuring = federation, measuring

    @property
    def next_draw(self) -> dict[str, Any]:
        """Arguments of the draw: seed and round; with faults, who is available and how many more to sample."""
        federation = self._federation
        seed, round_idx, faults = federation.terms.seed, federation.server.rounds_done, faults_of(federation.algorithm)
        hidden = federation.terms.secret if clips_messages(federation.algorithm) else None
        # amplification by sampling holds only if the cohort is a secret
        draw: dict[str, Any] = {"seed": seed if hidden is None else hidden.seed("cohorts"), "round_idx": round_idx}
        if federation.selection is not None:
            draw["candidates"] = federation.selection.draw
        if faults is None:
            return draw
        there = faults.available(seed, round_idx, federation.terms.num_clients)
        return draw | {"available": there, "over_selection": faults.over_selection}

    @property
    def most_per_block(self) -> int | None:
        """Upper limit of the clients in a block, for the memory of their states; None: no limit."""
        return self._federation.store.clients_per_block

    def blocks(self, client_ids: np.ndarray, train: Split, **division: int) -> list[ClientBlock]:
        """One rank's blocks of the coming round, with the selected ones of these clients."""
        with self._measuring():
            client_ids = serving.selected(self._federation, client_ids, train, **division)
        return self._federation.blocks(client_ids, train, **division)
