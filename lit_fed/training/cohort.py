"""The clients of the next round of a federation, and their blocks."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from lit_fed import serving
from lit_fed.core.types import ClientBlock
from lit_fed.data.module import FederatedDataModule
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.faults.wrapper import faults_of
from lit_fed.wrappers.privacy.client_level import clips_messages

__all__ = ["next_round"]


def next_round(federation: FederatedRounds, data: FederatedDataModule, trainer: Trainer) -> list[ClientBlock]:
    """This rank's blocks of the next round: a cohort of the data, of which the federation may select some.

    Args:
        federation: the federation between two rounds.
        data: the samples, and how many clients are sampled.
        trainer: its ranks divide the clients, and its precision is that of what selects them.
    """
    train = data.populations[0].train
    division = {
        "clients_per_block": data.block_size, "rank": trainer.global_rank, "num_ranks": trainer.world_size
    }  # fmt: skip
    client_ids = data.cohort(**_draw(federation))
    if federation.selection is not None:
        with trainer.precision_plugin.val_step_context():
            client_ids = serving.selected(federation, client_ids, train, **division)
    return federation.blocks(client_ids, train, **division)


def _draw(federation: FederatedRounds) -> dict[str, Any]:
    """Arguments of the draw: seed and round; with faults, who is available and how many more to sample."""
    seed, round_idx, faults = federation.terms.seed, federation.server.rounds_done, faults_of(federation.algorithm)
    draw: dict[str, Any] = {"seed": seed, "round_idx": round_idx}
    secret = federation.terms.secret
    if secret is not None and clips_messages(federation.algorithm):
        draw["seed"] = secret.seed("cohorts")  # amplification by sampling holds only if the cohort is a secret
    if federation.selection is not None:
        draw["candidates"] = federation.selection.draw
    if faults is None:
        return draw
    available = faults.available(seed, round_idx, federation.terms.num_clients)
    return draw | {"available": available, "over_selection": faults.over_selection}
