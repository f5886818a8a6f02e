"""How many E-steps a client takes before it is served, and what that does for clients that were never in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lit_fed.clients import SequentialTrainer
from lit_fed.core.mixtures.e_step import expectation

__all__ = ["STEPS", "unseen_by_e_steps"]

STEPS = (1, 2, 3, 5, 10, 30, 100)


def unseen_by_e_steps(cli: Any, folder: Path) -> dict[str, float]:
    """Test accuracy of the unseen clients, all samples alike, after each of these numbers of E-steps from 1/M."""
    federation, unseen = cli.model.federation, cli.datamodule.unseen
    ctx, hits, samples = federation.context("evaluate"), dict.fromkeys(STEPS, 0.0), 0
    with torch.no_grad():
        first = unseen.train.first_id
        for client_id in range(first, first + unseen.train.num_clients):
            client, test = unseen.train.client(client_id), unseen.test.client(client_id)
            losses = SequentialTrainer().losses(ctx, federation.shared, federation.algorithm, client)
            assert losses is not None  # of a mixture they are known
            outputs = ctx.task.outputs(federation.shared.models, test.x)
            pi = losses.new_full(losses.shape[1:], 1 / losses.shape[1])
            for step in range(1, max(STEPS) + 1):
                pi = expectation(pi, losses, client.mask)[0]
                if step in STEPS:
                    hits[step] += float((ctx.task.score(ctx.task.mix(pi, outputs), test.y)[1] * test.mask).sum())
            samples += int(test.mask.sum())
    return {str(step): round(one / samples, 6) for step, one in hits.items()}
