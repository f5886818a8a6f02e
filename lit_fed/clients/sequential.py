"""Sequential client trainer: the reference, and the fastest for large networks on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from lit_fed.clients.base import (
    Failed,
    PredictJob,
    Served,
    Trained,
    TrainJob,
    augmented,
    check_finite,
    complete,
    sent_to,
)
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.context import Context
from lit_fed.core.plan import num_steps, plan_of
from lit_fed.core.seeds import seed_of
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Tree
from lit_fed.errors import ClientError, NotFiniteError

__all__ = ["DebugTrainer", "SequentialTrainer"]

Value = TypeVar("Value")


class SequentialTrainer:
    """Clients one after another.

    Args:
        rows_per_pass: samples in one forward pass without gradient.
        channels_last: lay out images and convolution weights with the channels last.
    """

    name = "sequential"

    def __init__(self, rows_per_pass: int = 1024, *, channels_last: bool = False) -> None:
        self.rows_per_pass, self.channels_last = rows_per_pass, channels_last

    def check(self, network: nn.Module) -> None:
        """Accepts every network."""

    def _with_layout(self, ctx: Context) -> Context:
        return ctx._replace(task=ctx.task.laid_out(self.channels_last))

    def train(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Run a phase, yielding after each client."""
        # on a device, reading the multiplicity would wait for all its work
        block = job.block._replace(multiplicity=job.block.multiplicity.cpu())
        job = job._replace(ctx=self._with_layout(job.ctx), block=block)
        yield from self._run(job)

    def _run(self, job: TrainJob) -> Iterator[Trained | Failed]:
        for row, client_id in enumerate(job.block.phase.client_ids.tolist()):
            done: Trained | Failed
            try:
                done = self._checked(job, row, client_id)
            except ClientError as error:
                if not job.forgives(error):
                    raise
                done = Failed(slice(row, row + 1), error)
            yield done

    def _checked(self, job: TrainJob, row: int, client_id: int) -> Trained:
        """The result of one client, checked to be finite."""
        done = self._trained(job, row, client_id)
        if not job.block.is_placeholder:
            check_finite(done.result, job.block.phase.client_ids[row : row + 1], job.ctx)
        return done

    def _trained(self, job: TrainJob, row: int, client_id: int) -> Trained:
        """The result of one client, with a client axis."""
        result, optimizer = self._one(job, row, client_id)
        result, optimizer = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), (complete(job, result), optimizer))
        return Trained(slice(row, row + 1), result, optimizer)

    def _one(self, job: TrainJob, row: int, client_id: int) -> tuple[ClientResult, Tree]:
        own = job.ctx.task.own
        with _turn(job.ctx):
            result, optimizer = self._run_client(job, row, client_id)
            logged = {} if own is None or not job.block.phase.work.trains else own.logged()
        return result._replace(metrics=logged | result.metrics), optimizer

    def _run_client(self, job: TrainJob, row: int, client_id: int) -> tuple[ClientResult, Tree]:
        algorithm, ctx, shared = job.algorithm, job.ctx, job.shared
        data = job.block.data.client(client_id)
        data = data._replace(mask=ctx.task.target.counted(data.y, data.mask))
        ctx = ctx.of_client(torch.tensor(client_id))

        def call(function: Callable[..., Value], *arguments: Any) -> Value:
            return self._call(client_id, ctx.round_idx, function, ctx, shared, *arguments)

        with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
            # torch.manual_seed also looks for GPUs, which takes a millisecond
            seed = torch.default_generator.manual_seed if data.mask.device.type == "cpu" else torch.manual_seed
            drawn = ctx.seed_of_batches(job.block.phase.work)
            seed(int(seed_of(drawn, ctx.round_idx, client_id, ctx.phase).generate_state(1)[0]))
            losses = call(self.losses, algorithm, data)
            work = call(algorithm.client_init, tree.row(job.states, row), data, losses)
            optimizer = tree.row(job.optimizers, row)
            if job.keeps_optimizers:
                work = work._replace(optimizer=optimizer)
            epoch_steps = _epoch_steps(job, client_id, len(data.all_y)) if ctx.task.own is not None else 0
            for step, (stage, batch) in enumerate(self._batches(job, row, client_id, data)):
                if ctx.task.own is not None:
                    ctx.task.own.at_step(step, epoch_steps)
                if stage != ctx.stage:
                    ctx = ctx._replace(stage=stage)
                work = call(algorithm.client_step, work, batch)
            ctx = ctx._replace(stage="") if ctx.stage else ctx
            result = call(algorithm.client_final, work, data)
            return result, work.optimizer if job.keeps_optimizers else optimizer

    def _call(self, client_id: int, round_idx: int, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call a function of the algorithm; a failure names the client."""
        try:
            return function(*arguments)
        except Exception as error:
            stage = function.__name__.strip("_")
            raise ClientError(client_id, stage, round_idx, f"{type(error).__name__}: {error}") from error

    def losses(self, ctx: Context, shared: Tree, algorithm: Algorithm, data: ClientData) -> Tensor | None:
        """The algorithm's `shared_losses` of one client's samples, [N, M], or None."""
        x, y, mask = data.all_x, data.all_y, data.mask
        number = len(y)
        if not number:  # some layers refuse an empty batch: a row of zeros in place of none
            x, y, mask = (one.new_zeros(1, *one.shape[1:]) for one in (x, y, mask))
        index, parts = torch.arange(len(y), device=mask.device), []
        for lo in range(0, len(y), self.rows_per_pass):
            rows = slice(lo, lo + self.rows_per_pass)
            losses = algorithm.shared_losses(ctx, shared, Batch(x[rows], y[rows], index[rows], mask[rows]))
            if losses is None:
                return None
            parts.append(losses)
        return torch.cat(parts)[:number]

    def _batches(self, job: TrainJob, row: int, client_id: int, data: ClientData) -> Iterator[tuple[str, Batch]]:
        """The batch of each local step, with the name of its stage."""
        size = len(data.all_y) if job.block.multiplicity[row] > 0 else 0
        for stage, work in job.block.phase.work.by_stage:
            ctx = job.ctx._replace(stage=stage)
            yield from ((stage, batch) for batch in self._batches_of(ctx, work, size, client_id, data))

    def _batches_of(
        self, ctx: Context, work: LocalWork, size: int, client_id: int, data: ClientData
    ) -> Iterator[Batch]:
        plan = plan_of(ctx, work, [client_id], [size])
        for step, (positions, count) in enumerate(zip(plan.index[0], np.asarray(plan.counts[0]), strict=True)):
            width = max(count, 1)  # an empty Poisson batch is one masked sample
            index = positions[:, :width] if len(positions) > 1 else positions[0, :width]
            index = sent_to(index, data.all_y.device)
            mask = torch.full(index.shape, float(count > 0), device=index.device)
            x, y = augmented(ctx, work, data.all_x[index], data.all_y[index], client_id, step)
            yield Batch(x, y, index, ctx.task.target.counted(y, mask))

    def predict(self, job: PredictJob) -> Iterator[Served]:
        """Predict client after client, at most `rows_per_pass` samples at a time."""
        job = job._replace(ctx=self._with_layout(job.ctx))
        for row, client_id in enumerate(job.client_ids.tolist()):
            data = job.data.client(client_id)
            state = tree.row(job.states, row)
            step = min(self.rows_per_pass, _most_rows(job, data.all_y))
            for lo in range(0, len(data.all_y), step):
                rows = slice(lo, lo + step)
                x = data.all_x[rows]
                with _turn(job.ctx):
                    outputs = job.algorithm.shared_outputs(job.ctx, job.shared, x)
                    prediction = job.algorithm.log_prob(job.ctx, job.shared, state, x, outputs)
                yield Served(
                    torch.tensor([row], device=x.device),
                    prediction[None],
                    data.all_y[rows][None],
                    data.mask[rows][None],
                )


def _turn(ctx: Context) -> AbstractContextManager[None]:
    """A client's turn with a module that has steps of its own."""
    own = ctx.task.own
    return nullcontext() if own is None else own.client(ctx.round_idx, ctx.num_rounds, ctx.solver.local_epochs)


def _epoch_steps(job: TrainJob, client_id: int, size: int) -> int:
    """Local steps of a pass over the samples of a client."""
    work, ctx = job.block.phase.work._replace(epochs=1, steps=None, stages=()), job.ctx
    return max(1, num_steps(size, work, int(ctx.batch_sizes_of([client_id])[0]), ctx.task.smallest_batch))


OUTPUT_BYTES = 2**28
"""Outputs of samples with positions that may be in memory at once, before they are mixed."""


def _most_rows(job: PredictJob, y: Tensor) -> int:
    """Samples whose outputs for labels [N, L] fit into `OUTPUT_BYTES`."""
    task = job.ctx.task
    if not task.target.positions:
        return len(y) or 1
    numbers = math.prod(y.shape[1:]) * task.target.num_outputs * max(job.algorithm.num_models, 1)
    return max(1, OUTPUT_BYTES // (numbers * task.dtype.itemsize))


class DebugTrainer(SequentialTrainer):
    """Clients one after another, slowly: every function's result is checked, so the first bad one is named.

    A failure is a `ClientError` whose `inputs` are the arguments of the function that failed.
    """

    name = "debug"

    def _call(self, client_id: int, round_idx: int, function: Callable[..., Value], *arguments: Any) -> Value:
        stage = function.__name__.strip("_")
        inputs = dict(zip(("ctx", "shared", "first", "second", "third"), arguments, strict=False))
        try:
            value = function(*arguments)
        except Exception as error:
            raise ClientError(client_id, stage, round_idx, f"{type(error).__name__}: {error}", inputs) from error
        for path, leaf in tree.items(value):
            if leaf.is_floating_point() and not leaf.isfinite().all():
                raise NotFiniteError(client_id, stage, round_idx, f"its result {path or ''} is NaN or infinite", inputs)
        return value
