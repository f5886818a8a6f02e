"""The batch plan of a client: which of its samples each local step sees.

Plans depend on (seed, round, client) alone, never on a client trainer, so all client trainers take the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.seeds import generator
from lit_fed.core.types import LocalWork

__all__ = ["Plan", "make_plan", "num_steps"]


class Plan(NamedTuple):
    """Batches of C clients; a client's real samples come first in each of its batches."""

    index: Tensor  # type: ignore[assignment] # [C, S, K, B] int64 position within the client's samples; 0 where padded
    counts: Tensor  # [C, S] int64 samples in the batch; 0 after a client's last step


def _batch_size(num_samples: int, work: LocalWork, default: int) -> int:
    wanted = default if work.batch_size is None else work.batch_size
    return min(wanted or num_samples, num_samples)


def num_steps(num_samples: int, work: LocalWork, batch_size: int) -> int:
    """Local steps of a client with `num_samples` samples.

    Example:
        >>> num_steps(300, LocalWork(epochs=2), 128)
        6
    """
    if num_samples == 0:
        return 0
    if work.steps:
        return work.steps
    return (work.epochs or 0) * math.ceil(num_samples / _batch_size(num_samples, work, batch_size))


def _client_order(num_samples: int, steps: int, size: int, streams: int, rng: np.random.Generator) -> np.ndarray:
    """Positions [S, K, B], each stream reshuffled when its pass ends; the last batch of a pass may be short."""
    per_pass = math.ceil(num_samples / size)
    order = np.zeros((math.ceil(steps / per_pass), per_pass, streams, size), dtype=np.int64)
    for one_pass in order:
        for stream in range(streams):
            padded = np.zeros(per_pass * size, dtype=np.int64)
            padded[:num_samples] = rng.permutation(num_samples)
            one_pass[:, stream] = padded.reshape(per_pass, size)
    return order.reshape(-1, streams, size)[:steps]


def make_plan(
    sizes: Sequence[int],
    client_ids: Sequence[int],
    work: LocalWork,
    *,
    batch_size: int,
    seed: int,
    round_idx: int,
    phase: str,
) -> Plan:
    """Plans of some clients, padded to the longest.

    Args:
        sizes: samples of each client, [C].
        client_ids: identities, [C].
        work: epochs or steps, batch size, batches per step.
        batch_size: batch size where `work` names none.
        seed: training seed.
        round_idx: round, from 0.
        phase: name of the phase; each has its own shuffles.
    """
    steps = [num_steps(size, work, batch_size) for size in sizes]
    widths = [_batch_size(size, work, batch_size) for size in sizes]
    num_clients, longest, width = len(sizes), max(steps, default=0), max(widths, default=0)
    index = np.zeros((num_clients, longest, work.batches_per_step, width), dtype=np.int64)
    counts = np.zeros((num_clients, longest), dtype=np.int64)
    for row, (size, client_id) in enumerate(zip(sizes, client_ids, strict=True)):
        if steps[row]:
            rng = generator(seed, round_idx, int(client_id), f"plan/{phase}")
            order = _client_order(size, steps[row], widths[row], work.batches_per_step, rng)
            index[row, : steps[row], :, : widths[row]] = order
            counts[row, : steps[row]] = _counts(size, steps[row], widths[row])
    return Plan(torch.from_numpy(index), torch.from_numpy(counts))


def _counts(num_samples: int, steps: int, width: int) -> np.ndarray:
    per_pass = math.ceil(num_samples / width)
    return np.minimum(width, num_samples - (np.arange(steps) % per_pass) * width)
