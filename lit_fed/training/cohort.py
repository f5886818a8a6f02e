"""The clients of the next round of a federation, and their blocks."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from lit_fed import serving
from lit_fed.core.types import ClientBlock
from lit_fed.data.module import FederatedDataModule
from lit_fed.rounds import FederatedRounds

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
    """Arguments of the draw: seed and round, who can be reached, and how many more are drawn."""
    ctx, algorithm = federation.terms._replace(round_idx=federation.server.rounds_done), federation.algorithm
    draw: dict[str, Any] = {"seed": ctx.seed, "round_idx": ctx.round_idx, "over_selection": algorithm.over_selection}
    if ctx.secret is not None and algorithm.hides_cohort:
        draw["seed"] = ctx.secret.seed("cohorts")
    if federation.selection is not None:
        draw["candidates"] = federation.selection.draw
    return draw | {"available": algorithm.reachable(ctx)}
