"""The batch plan of a client: the samples of each local step.

Plans depend on (seed, round, client, phase) only, so all client trainers take the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.context import Context
from lit_fed.core.seeds import generator, generators
from lit_fed.core.types import LocalWork
from lit_fed.system.machine import require_memory

__all__ = ["Plan", "make_plan", "most_steps", "num_steps", "plan_of", "steps_of"]


FITS_ANYWHERE = 2**26
"""Bytes up to which a plan is not checked against memory."""


class Plan(NamedTuple):
    """Batches of C clients; a client's real samples come first in each of its batches."""

    index: Tensor  # type: ignore[assignment] # [C, S, K, B] int64 position within the client's samples; 0 where padded
    counts: Tensor  # [C, S] int64 samples in the batch; 0 after a client's last step, and if none was sampled
    steps: Tensor  # [C] int64 steps that a client takes


def _passes(
    sizes: np.ndarray, work: LocalWork, batch_size: int | np.ndarray, smallest_batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Batch size of each client and its batches per pass, without those below the smallest size, both [C].

    Poisson batches of rate b make a pass of 1/b.
    """
    wanted = np.asarray(batch_size if work.batch_size is None else work.batch_size)
    widths = np.where(wanted > 0, np.minimum(wanted, sizes), sizes)
    if work.sample_rate:
        return widths, np.where(sizes > 0, round(1 / work.sample_rate), 0)
    whole, rest = np.divmod(sizes, np.maximum(widths, 1))
    return widths, np.where(np.minimum(sizes, widths) < smallest_batch, 0, whole + (rest >= smallest_batch))


def num_steps(num_samples: int, work: LocalWork, batch_size: int, smallest_batch: int = 1) -> int:
    """Local steps of a client with `num_samples` samples.

    Example:
        >>> num_steps(300, LocalWork(epochs=2), 128), num_steps(129, LocalWork(epochs=1), 128, smallest_batch=2)
        (6, 1)
    """
    return int(steps_of(np.array([num_samples]), work, batch_size, smallest_batch)[0])


def steps_of(sizes: np.ndarray, work: LocalWork, batch_size: int | np.ndarray, smallest_batch: int = 1) -> np.ndarray:
    """`num_steps` for each of these numbers of samples, [C] float64, so that large settings cannot overflow."""
    if work.stages:
        return np.sum([steps_of(sizes, one, batch_size, smallest_batch) for _, one in work.by_stage], axis=0)  # type: ignore[no-any-return]
    _, per_pass = _passes(sizes, work, batch_size, smallest_batch)
    return np.where(per_pass > 0, float(work.steps), 0.0) if work.steps else float(work.epochs or 0) * per_pass


def most_steps(ctx: Context) -> int:
    """Local steps of the largest client in the solver's local work, known before training; batch sizes are common."""
    return num_steps(ctx.most_samples, ctx.solver.work, ctx.batch_size, ctx.task.smallest_batch)


def plan_of(ctx: Context, work: LocalWork, client_ids: Sequence[int], sizes: Sequence[int]) -> Plan:
    """Plans of clients for the stage of a context; arguments as for `make_plan`."""
    return make_plan(
        sizes, client_ids, work, batch_size=ctx.batch_sizes_of(client_ids), seed=ctx.seed_of_batches(work),
        round_idx=ctx.round_idx, phase=ctx.phase, stage=ctx.stage, smallest_batch=ctx.task.smallest_batch,
        shares=ctx.shares_of(client_ids),
    )  # fmt: skip


def make_plan(
    sizes: Sequence[int], client_ids: Sequence[int], work: LocalWork, *, batch_size: int | np.ndarray, seed: int,
    round_idx: int, phase: str, stage: str = "", smallest_batch: int = 1, shares: np.ndarray | None = None,
) -> Plan:  # fmt: skip
    """Plans of clients for one stage, padded to the longest.

    Args:
        sizes: samples of each client, [C].
        client_ids: identities, [C].
        work: epochs or steps, batch size and batches per step of this stage.
        batch_size: default batch size, or that of each client, [C].
        seed: training seed.
        round_idx: round, from 0.
        phase: name of the phase; each phase shuffles anew.
        stage: name of the stage; each stage shuffles anew. A straggler is one in all stages of a phase.
        smallest_batch: a smaller last batch of a pass is dropped; each pass drops other samples.
        shares: share of its steps that each client takes, rounded up, [C]; None: all steps.
    """
    samples = np.array(sizes, dtype=np.int64)
    steps = steps_of(samples, work, batch_size, smallest_batch)
    widths, per_pass = _passes(samples, work, batch_size, smallest_batch)
    longest, width = int(steps.max(initial=0)), int(widths.max(initial=0))
    num_bytes = 8 * longest * max(len(sizes) * work.batches_per_step * width, 1)
    if num_bytes > FITS_ANYWHERE:
        require_memory(
            num_bytes, f"the plan of {longest} local steps in a phase",
            "lower --model.solver.local_epochs or local_steps, the algorithm's own epochs or steps, or "
            "--data.clients_per_block",
        )  # fmt: skip
    steps, purpose = steps.astype(np.int64), f"plan/{phase}/{stage}" if stage else f"plan/{phase}"
    if shares is not None and not work.is_whole:
        steps = np.ceil(steps * shares - 1e-9).astype(np.int64)
    if work.straggler_fraction and not work.is_whole:
        steps = _with_stragglers(steps, client_ids, work, seed, round_idx, phase)
    if work.sample_rate:
        return _drawn(sizes, generators(seed, round_idx, client_ids, purpose), steps, work)
    longest = int(steps.max(initial=0))  # stragglers and clients with a share take fewer
    passes = -(-steps // np.maximum(per_pass, 1))
    room = int((passes * per_pass).max(initial=0))
    index = np.zeros((len(sizes), work.batches_per_step, room * width), dtype=np.int64)
    numbers = (steps, np.minimum(samples, per_pass * widths), passes * per_pass, per_pass, widths)
    rngs = generators(seed, round_idx, client_ids, purpose)
    each = zip(sizes, rngs, *(one.tolist() for one in numbers), strict=True)  # plain numbers are faster in a loop
    for row, (size, rng, taken, kept, batches, in_a_pass, own) in enumerate(each):
        if taken:
            place: slice | np.ndarray = slice(kept)  # within a pass
            if own < width and in_a_pass > 1:  # its batches are narrower than those of others
                place = np.arange(kept) // own * width + np.arange(kept) % own
            for start in range(0, batches * width, in_a_pass * width):
                for stream in range(work.batches_per_step):
                    index[row, stream, start:][place] = rng.permutation(size)[:kept]
    index = index.reshape(len(sizes), work.batches_per_step, room, width)[:, :, :longest].swapaxes(1, 2)
    step = np.arange(longest)
    before = step % np.maximum(per_pass, 1)[:, None] * widths[:, None]
    counts = np.where(step < steps[:, None], np.minimum(widths[:, None], samples[:, None] - before), 0)
    return Plan(*map(torch.from_numpy, (index, counts, steps)))


def _drawn(sizes: Sequence[int], rngs: Sequence[np.random.Generator], steps: np.ndarray, work: LocalWork) -> Plan:
    """Poisson batches: each sample enters independently; limited to `work.batch_size` if set."""
    drawn: list[list[np.ndarray]] = []
    for size, rng, count in zip(sizes, rngs, steps.tolist(), strict=True):
        batches = [np.flatnonzero(rng.random(size) < work.sample_rate) for _ in range(count)]
        most = work.batch_size or size
        drawn.append([one if len(one) <= most else np.sort(rng.choice(one, most, replace=False)) for one in batches])
    counts = np.zeros((len(sizes), int(steps.max(initial=0))), dtype=np.int64)
    for row, batches in enumerate(drawn):
        counts[row, : len(batches)] = [len(one) for one in batches]
    index = np.zeros((*counts.shape, 1, max(int(counts.max(initial=0)), 1)), dtype=np.int64)
    for row, batches in enumerate(drawn):
        for step, batch in enumerate(batches):
            index[row, step, 0, : len(batch)] = batch
    return Plan(*map(torch.from_numpy, (index, counts, steps)))


def _with_stragglers(
    steps: np.ndarray, client_ids: Sequence[int], work: LocalWork, seed: int, round_idx: int, phase: str
) -> np.ndarray:
    """Steps that clients take, [C]: all `steps`, or fewer of a client that is sampled as a straggler."""
    taken = steps.copy()
    for row, client_id in enumerate(client_ids):
        rng = generator(seed, round_idx, int(client_id), f"straggler/{phase}")
        if rng.random() < work.straggler_fraction and steps[row]:
            taken[row] = rng.integers(1, steps[row] + 1)
    return taken
