"""Clients and models at once, through `torch.func.vmap`; linear models through batched matrix products.

Clients are sorted by size, largest first. At every step the active ones are a prefix, so clients of different sizes
need no padding beyond their last short batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

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
    refuse,
)
from lit_fed.core import tree
from lit_fed.core.networks.layers import at_rest
from lit_fed.core.plan import Plan, plan_of
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, Split, Tree
from lit_fed.errors import ClientError
from lit_fed.system.machine import free_gpu_memory

__all__ = ["VectorizedTrainer", "vmap_clients"]

CACHE_BYTES = 8 * 2**20
"""Memory of a chunk on a CPU, so that it stays in the caches."""

PART_OF_GPU = 16
"""The free memory of a GPU divided by the memory of a chunk, which counts no activations."""


class VectorizedTrainer:
    """Train all clients of a chunk at once.

    Args:
        chunk_bytes: memory limit of the batches and models of one chunk; None: 8 MB on a CPU, to fit into caches; on a
            GPU a sixteenth of the memory that is free at the first chunk, rounded down to a power of two.
        rows_per_pass: maximum number of samples in one forward pass without gradient.
    """

    name = "vectorized"

    def __init__(self, chunk_bytes: int | None = None, rows_per_pass: int = 32768) -> None:
        self.chunk_bytes, self.rows_per_pass = chunk_bytes, rows_per_pass

    def check(self, network: nn.Module) -> None:
        """Refuse layers that depend on the order of random draws, or that are slow or impossible under vmap."""
        if getattr(network, "mixes_samples", False):
            raise refuse("outputs that depend on the other samples of a batch", self.name)
        resting = {id(one) for one in at_rest(network)}
        for layer in network.modules():
            if not getattr(layer, "vmappable", True):
                raise refuse(f"{type(layer).__name__}, which vmap cannot run", self.name)
            if id(layer) in resting and _is_fixed(layer):
                continue
            if isinstance(layer, nn.modules.batchnorm._NormBase) and not _vmappable(layer):
                raise refuse(f"{type(layer).__name__} (momentum {layer.momentum})", self.name)
            if isinstance(layer, nn.RNNBase):
                raise refuse(type(layer).__name__, self.name)
            if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
                raise refuse(f"dropout ({layer.p})", self.name)

    # ------------------------------------------------------------------ training
    def train(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Run a phase, yielding after each chunk; if a client of a chunk fails, its clients run one by one."""
        data, client_ids = job.block.data, job.block.phase.client_ids
        sizes = data.sizes[data.positions(client_ids)]
        if (sizes.diff() > 0).any():
            raise ValueError("clients of a block come longest first; core.blocks.round_blocks orders them")
        job = job._replace(ctx=job.ctx._replace(task=job.ctx.task.of_clients))
        with one_thread(data.x.device), _at_once(job.ctx.task):
            try:
                losses, starts = self._shared_losses(job, data, client_ids)
            except ClientError as error:
                if not job.forgives(error):
                    raise
                yield from self._one_by_one(job, slice(0, len(client_ids)), error)
                return
            for rows in self._chunks(job, sizes):
                try:
                    result, optimizers = self._train_chunk(job.part(rows), sizes[rows], losses, starts[rows])
                    if not job.block.is_placeholder:
                        check_finite(result, client_ids[rows], job.ctx)
                except ClientError as error:
                    if not job.forgives(error):
                        raise
                    yield from self._one_by_one(job, rows, error)
                else:
                    yield Trained(rows, result, optimizers)

    def _one_by_one(self, job: TrainJob, rows: slice, error: ClientError) -> Iterator[Trained | Failed]:
        """Run each client of a failed chunk alone."""
        if rows.stop - rows.start == 1:
            yield Failed(rows, error)
            return
        for row in range(rows.start, rows.stop):
            alone = slice(row, row + 1)
            for done in self.train(job.part(alone)):
                yield done._replace(rows=alone)

    def _chunks(self, job: TrainJob, sizes: Tensor) -> Iterator[slice]:
        """Rows of each chunk."""
        limit = self._limit(job.block.data.x.device)
        row_bytes = job.block.data.x[:1].nbytes + job.block.data.y[:1].nbytes
        copied = sum(map(tree.bits, tree.models(job.shared)))  # trained models only; the rest is read
        fixed = 4 * tree.bits(job.states) // (8 * max(len(sizes), 1)) + 4 * copied // 8
        batch = job.block.phase.work.batch_size
        if batch is None:
            widths = job.ctx.batch_sizes_of(job.block.phase.client_ids.tolist())
            batch = int(widths.max(initial=0)) if widths.all() else 0  # 0: a whole local set
        lo = 0
        while lo < len(sizes):
            width = min(int(sizes[lo]), batch or int(sizes[lo]))
            each = fixed + width * row_bytes * job.block.phase.work.batches_per_step + 64 * int(sizes[lo])
            hi = min(lo + max(1, limit // max(each, 1)), len(sizes))
            yield slice(lo, hi)
            lo = hi

    def _limit(self, device: torch.device) -> int:
        """Memory limit of a chunk on a device, in bytes; the same in all rounds, since chunks change rounding."""
        if self.chunk_bytes is None and device.type == "cuda":
            self.chunk_bytes = 1 << (max(free_gpu_memory(device) // PART_OF_GPU, 1).bit_length() - 1)
        return self.chunk_bytes or CACHE_BYTES

    def _train_chunk(
        self, job: TrainJob, sizes: Tensor, losses: Tensor | None, starts: Tensor
    ) -> tuple[ClientResult, Tree]:
        algorithm, ctx, shared, split = job.algorithm, job.ctx, job.shared, job.block.data
        client_ids = job.block.phase.client_ids
        index = _ragged(split.offsets[split.positions(client_ids)], sizes).to(split.x.device)
        mask = (torch.arange(index.shape[1]) < sizes[:, None]).to(split.x.device, torch.float32)
        if ctx.task.target.partly_labelled:
            mask = ctx.task.target.counted(split.y[index], mask)
        each_losses = None
        if losses is not None:
            rows = _ragged(starts, sizes).to(losses.device)
            each_losses = losses.index_select(1, rows.flatten()).view(len(losses), *rows.shape).permute(1, 2, 0)

        def client_init(state: Tree, losses: Tensor | None, *fields: Tensor) -> Any:
            own = ctx.of_client(fields[-1])
            return algorithm.client_init(own, shared, state, ClientData(split.x, split.y, *fields), losses)

        def client_final(work: Any, *fields: Tensor) -> ClientResult:
            own = ctx.of_client(fields[-1])
            data = ClientData(split.x, split.y, *fields)
            return complete(job, algorithm.client_final(own, shared, work, data))

        fields = (index, mask, client_ids)
        stage = "client_init"
        try:
            work = vmap_clients(client_init, job.states, each_losses, *fields)
            if job.keeps_optimizers:
                work = work._replace(optimizer=job.optimizers)
            stage = "client_step"
            for name, part in job.block.phase.work.by_stage:  # clients go from one stage to the next together
                block = job.block._replace(phase=job.block.phase._replace(work=part))
                work = self._steps(job._replace(ctx=ctx._replace(stage=name), block=block), work, sizes)
            stage = "client_final"
            return vmap_clients(client_final, work, *fields), work.optimizer if job.keeps_optimizers else job.optimizers
        except Exception as error:
            raise _blame(job, stage, error) from error

    def _steps(self, job: TrainJob, work: Any, sizes: Tensor) -> Any:
        """Take the local steps of a stage."""
        ctx, data, client_ids, local = job.ctx, job.block.data, job.block.phase.client_ids, job.block.phase.work
        there = sizes.masked_fill(job.block.multiplicity.cpu() == 0, 0)
        plan = plan_of(ctx, local, client_ids.tolist(), there.tolist())
        starts = data.offsets[data.positions(client_ids)].view(-1, 1, 1, 1)
        rows = (plan.index + starts).to(data.x.device)
        mask = torch.arange(plan.index.shape[3]) < plan.counts[:, :, None, None]
        mask = mask.to(data.x.device, torch.float32).expand(plan.index.shape)
        plan = plan._replace(index=plan.index.to(data.x.device))
        if not (plan.steps.diff() > 0).any():
            return self._advance(job, work, plan, rows, mask, client_ids)
        # the largest client need not take the most steps, where some take a share of theirs
        order = torch.argsort(plan.steps, descending=True, stable=True)
        done = self._advance(job, *tree.index((work, plan, rows, mask, client_ids), order))
        return tree.index(done, torch.argsort(order))

    def _advance(self, job: TrainJob, work: Any, plan: Plan, rows: Tensor, mask: Tensor, ids: Tensor) -> Any:
        """Take the steps of a plan whose clients are sorted by falling number of steps."""
        algorithm, ctx, shared = job.algorithm, job.ctx, job.shared
        active_at = (plan.steps[:, None] > torch.arange(plan.counts.shape[1])).sum(0).tolist()

        def step(work: Any, batch: Batch, client_id: Tensor) -> Any:
            batch = batch._replace(mask=ctx.task.target.counted(batch.y, batch.mask))
            return algorithm.client_step(ctx.of_client(client_id), shared, work, batch)

        def advanced(work: Any, members: Tensor | slice, counts: Tensor, position: int) -> Any:
            chosen = (members, position, slice(None), slice(0, max(int(counts.max()), 1)))
            batch = _batch(job.block.data, rows[chosen], plan.index[chosen], mask[chosen])
            if ctx.augmentation is not None:
                batch = _augmented(job, batch, ids[members], counts, position)
            return vmap_clients(step, work, batch, ids[members])

        finished = []
        active = len(plan.counts)
        for position, now in enumerate(active_at):
            if now < active:  # the others are done
                finished.append(tree.index(work, slice(now, active)))
                work, active = tree.index(work, slice(0, now)), now
            counts = plan.counts[:active, position]
            if ctx.task.smallest_batch == 1 or int(counts.min()) == int(counts.max()):
                work = advanced(work, slice(0, active), counts, position)
                continue
            work = _by_width(work, counts, partial(advanced, position=position))
        return tree.map_leaves(lambda *parts: torch.cat(parts), work, *reversed(finished)) if finished else work

    # ------------------------------------------------------------------ samples without a client axis
    def _shared_losses(self, job: TrainJob, data: Split, client_ids: Tensor) -> tuple[Tensor | None, Tensor]:
        """Losses [M, n] of all samples of the block in the order of the data, and the start of each client.

        Samples come last in memory, so that later operations work on long rows instead of groups of M numbers.
        """
        positions = data.positions(client_ids)
        order = positions.unique()  # adjacent clients are adjacent in memory: a view, not a copy
        sizes = data.sizes[order]
        begins = sizes.cumsum(0) - sizes
        starts = begins[torch.searchsorted(order, positions)]
        rows, total = _rows(data.offsets[order], sizes, data.x.device), int(sizes.sum())
        parts = []
        for lo in range(0, max(total, 1), self.rows_per_pass):
            hi = min(lo + self.rows_per_pass, total)
            some = rows[lo:hi] if isinstance(rows, Tensor) else slice(rows.start + lo, rows.start + hi)
            try:
                x, y = data.x[some], data.y[some]
                if not total:  # some layers refuse an empty batch: a row of zeros in place of none
                    x, y = (one.new_zeros(1, *one.shape[1:]) for one in (data.x, data.y))
                index, mask = torch.arange(len(x), device=x.device), torch.ones(len(x), device=x.device)
                losses = job.algorithm.shared_losses(job.ctx, job.shared, Batch(x, y, index, mask))
            except Exception as error:
                raise _blame(job, "losses", error) from error
            if losses is None:
                return None, starts
            parts.append(losses[: hi - lo].T)
        return torch.cat(parts, dim=1), starts

    # ------------------------------------------------------------------ prediction
    def predict(self, job: PredictJob) -> Iterator[Served]:
        """Predict in chunks of clients of similar size."""
        with one_thread(job.data.x.device), _at_once(job.ctx.task):
            yield from self._predict(job)

    def _predict(self, job: PredictJob) -> Iterator[Served]:
        job = job._replace(ctx=job.ctx._replace(task=job.ctx.task.of_clients))
        positions = job.data.positions(job.client_ids)
        sizes = job.data.sizes[positions]
        order = torch.from_numpy(np.lexsort((positions.numpy(), -sizes.numpy())))
        order = order[sizes[order] > 0]
        lo = 0
        while lo < len(order):
            longest = int(sizes[order[lo]])
            hi = min(lo + max(1, self.rows_per_pass // longest), len(order))
            for begin in range(0, longest, self.rows_per_pass):
                yield self._predict_chunk(job, order[lo:hi], begin, min(longest, begin + self.rows_per_pass))
            lo = hi

    def _predict_chunk(self, job: PredictJob, chosen: Tensor, begin: int, end: int) -> Served:
        data = job.data
        positions = data.positions(job.client_ids[chosen])
        left, shape = data.sizes[positions] - begin, (len(positions), end - begin)
        starts, sizes = data.offsets[positions] + begin, left.clamp(max=end - begin)
        if int(sizes.min()) == end - begin:  # nothing is padded
            rows = _rows(starts, sizes, data.x.device)
        else:
            rows = _ragged(starts, sizes).flatten().to(data.x.device)
        x, y = data.x[rows], data.y[rows].view(*shape, *data.y.shape[1:])
        outputs = job.algorithm.shared_outputs(job.ctx, job.shared, x)
        outputs = tree.map_leaves(lambda leaf: leaf.view(*shape, *leaf.shape[1:]), outputs)

        def predict(state: Tree, x: Tensor, outputs: Tree) -> Tensor:
            return job.algorithm.log_prob(job.ctx, job.shared, state, x, outputs)

        states = tree.index(job.states, chosen.to(data.x.device))
        x = x.view(*shape, *data.x.shape[1:])
        prediction = vmap_clients(predict, states, x, outputs)
        mask = (torch.arange(shape[1]) < left[:, None]).to(data.x.device, torch.float32)
        return Served(chosen.to(data.x.device), prediction, y, mask)


def _at_once(task: Task) -> AbstractContextManager[None]:
    """The turn of clients with a module that has steps of its own."""
    return nullcontext() if task.own is None else task.own.at_once()


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Use one thread on a CPU: for such small chunks a second one costs more than it saves, above all on busy cores."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_fixed(layer: nn.Module) -> bool:
    """Whether a layer at rest is a plain function of each sample."""
    norms = nn.modules.batchnorm._NormBase
    return isinstance(layer, nn.modules.dropout._DropoutNd) or (
        isinstance(layer, norms) and layer.running_mean is not None
    )


def _vmappable(layer: nn.modules.batchnorm._NormBase) -> bool:
    """Whether vmap runs this BatchNorm: cumulative averages (momentum None) read their counter as a number."""
    known = isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and layer.momentum is not None
    return known or not layer.track_running_stats


def _augmented(job: TrainJob, batch: Batch, client_ids: Tensor, counts: Tensor, step: int) -> Batch:
    """The batches [A, B, ...] or [A, K, B, ...] of a step augmented, each client's alone; padding is unchanged."""
    x, y, (ctx, work) = batch.x.clone(), batch.y.clone(), (job.ctx, job.block.phase.work)
    samples = batch.mask.ndim - 2  # the axis of a client's samples
    for row, (client_id, count) in enumerate(zip(client_ids.tolist(), counts.tolist(), strict=True)):
        own_x, own_y = (one[row].narrow(samples, 0, count) for one in (x, y))  # views
        new_x, new_y = augmented(ctx, work, own_x, own_y, client_id, step)
        own_x.copy_(new_x)
        own_y.copy_(new_y)
    return batch._replace(x=x, y=y)


def _by_width(work: Any, counts: Tensor, advanced: Callable[[Any, Tensor, Tensor], Any]) -> Any:
    """A step of clients by the sizes of their batches [A]: with BatchNorm, padding would change batch statistics."""
    groups = [(counts == width).nonzero()[:, 0] for width in counts.unique().tolist()]
    parts = [advanced(tree.index(work, one), one, counts[one]) for one in groups]
    order = torch.cat(groups).argsort()
    return tree.map_leaves(lambda *leaves: torch.cat(leaves)[order.to(leaves[0].device)], *parts)


def _batch(data: Split, rows: Tensor, index: Tensor, mask: Tensor) -> Batch:
    """Batch of the active clients, leaves [A, B, ...] or [A, K, B, ...]."""
    shape = index.shape if index.shape[1] > 1 else (index.shape[0], index.shape[2])
    x, y = (whole.index_select(0, rows.flatten()).view(*shape, *whole.shape[1:]) for whole in (data.x, data.y))
    return Batch(x, y, index.reshape(shape), mask.reshape(shape))


def _blame(job: TrainJob, stage: str, error: Exception) -> ClientError:
    """The error for a chunk; the failing client is unknown if several run at once."""
    client_ids = job.block.phase.client_ids
    reason = f"{type(error).__name__}: {error}"
    if len(client_ids) > 1:
        several = f"the first of {len(client_ids)} clients run at once"
        reason += f" ({several}; --model.client_trainer sequential names the one)"
    return ClientError(int(client_ids[0]), stage, job.ctx.round_idx, reason)


def _rows(starts: Tensor, sizes: Tensor, device: torch.device) -> Tensor | slice:
    """Concatenated ranges start, …, start + size - 1; a slice if each begins where the previous one ends."""
    if len(starts) and bool((starts[1:] == (starts + sizes)[:-1]).all()):
        return slice(int(starts[0]), int(starts[-1] + sizes[-1]))
    before = sizes.cumsum(0) - sizes
    return (torch.arange(int(sizes.sum())) + (starts - before).repeat_interleave(sizes)).to(device)


def _ragged(starts: Tensor, sizes: Tensor) -> Tensor:
    """Ranges as rows [C, N], padded with the first entry of each."""
    width = int(sizes.max()) if len(sizes) else 0
    if width:  # an empty last client would start after the last row
        starts = starts.clamp(max=int((starts + sizes).max()) - 1)
    steps = torch.arange(width)
    return starts[:, None] + steps * (steps < sizes[:, None])


# ---------------------------------------------------------------------- vmap over clients
class _Layer(NamedTuple):
    """The private steps of `torch.func.vmap`."""

    begin: Callable[[int, str], int]
    end: Callable[[], Any]
    add: Callable[[Tensor, int, int], Tensor]
    remove: Callable[[Tensor, int, int, int], Tensor]


def vmap_clients(function: Callable[..., Any], *arguments: Tree) -> Any:
    """`torch.func.vmap` over the leading axis of every leaf, without its slow handling of trees.

    For small models, `vmap` takes longer to flatten and rebuild its arguments than the step itself. If this PyTorch
    lacks one of the private steps of `vmap`, `vmap` itself is called; the numbers are the same.

    Args:
        function: function of one client; it must not draw from a generator of torch.
        arguments: trees with leaves [C, ...]; None is an empty tree.

    Returns:
        The function's values, leaves [C, ...].
    """
    layer = _private_layer()
    return _by_vmap(function, arguments) if layer is None else _by_layer(layer, function, arguments)


def _by_layer(layer: _Layer, function: Callable[..., Any], arguments: tuple[Tree, ...]) -> Any:
    size = len(next(leaf for _, leaf in tree.items(arguments)))
    level = layer.begin(size, "error")
    try:
        inside = tree.map_leaves(lambda leaf: layer.add(leaf, 0, level), arguments)
        result = function(*inside)
        return tree.map_leaves(lambda leaf: layer.remove(leaf, level, size, 0), result)
    finally:
        layer.end()


def _by_vmap(function: Callable[..., Any], arguments: tuple[Tree, ...]) -> Any:
    results: list[Any] = []

    def of_leaves(*leaves: Tensor) -> tuple[Tensor, ...]:
        results.append(function(*tree.rebuild(arguments, leaves)))
        return tuple(tree.leaves(results[-1]))

    leaves = torch.func.vmap(of_leaves)(*tree.leaves(arguments))
    return tree.rebuild(results[-1], leaves)


@cache
def _private_layer() -> _Layer | None:
    """The private steps, or None if this PyTorch lacks one or they behave differently."""
    try:
        from torch._C import _functorch as functorch
        from torch._functorch.predispatch import lazy_load_decompositions

        lazy_load_decompositions()
        layer = _Layer(
            functorch._vmap_increment_nesting, functorch._vmap_decrement_nesting,
            functorch._add_batch_dim, functorch._remove_batch_dim,
        )  # fmt: skip
        rows = torch.arange(6.0).view(2, 3)
        works = torch.equal(_by_layer(layer, lambda row: row.flip(0) * row.max(), (rows,)), rows.flip(1) * rows[:, 2:])
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return None
    return layer if works else None
