"""One client after another on a GPU, whose local steps are recorded once as CUDA graphs and replayed ever after.

A local step of a small network is a hundred kernels of some microseconds each, which a processor launches more slowly
than the device runs them. A graph launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from lit_fed.clients.base import Failed, Trained, TrainJob, check_finite
from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver, OptimizerState, Penalty, StepInputs
from lit_fed.core.task import Task
from lit_fed.core.types import ClientResult, ModelState, Tree
from lit_fed.errors import ClientError

__all__ = ["GraphedTrainer", "Recorded"]

WARM_UP = 3
"""Steps before a recording: what libraries set up on the first calls must not be recorded."""

Step = Callable[[Tree], Tree]


class Recorded:
    """A pure function of tensors whose shapes never change, recorded on a GPU; elsewhere it is called as it is.

    Args:
        function: takes and returns a tree of tensors; whatever else it depends on is recorded as it is now.
        example: arguments.
    """

    def __init__(self, function: Step, example: Tree) -> None:
        self.function, self.graph = function, None
        if next(iter(tree.leaves(example))).device.type != "cuda":
            return
        self.inputs = tree.map_leaves(torch.clone, example)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                function(self.inputs)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = function(self.inputs)

    def __call__(self, arguments: Tree) -> Tree:
        """The function's value at other arguments, in tensors of its own."""
        if self.graph is None:
            return self.function(arguments)
        _copy(tree.leaves(self.inputs), tree.leaves(arguments))
        self.graph.replay()
        results = tree.map_leaves(torch.empty_like, self.outputs)
        _copy(tree.leaves(results), tree.leaves(self.outputs))
        return results


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors, those of one type in one launch."""
    for dtype in {leaf.dtype for leaf in targets}:
        chosen = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype == dtype]
        if copy := getattr(torch, "_foreach_copy_", None):  # private
            copy(*map(list, zip(*chosen, strict=True)))
        else:
            for target, source in chosen:
                target.copy_(source)


@dataclass(frozen=True)
class _GraphedSolver(LocalSolver):
    """A local solver that replays its steps.

    Batches are padded to the next power of two, so that few steps are recorded; padding has the weight 0.
    """

    recorded: dict[Any, Recorded] = field(default_factory=dict, compare=False, repr=False)

    def _advance(
        self, task: Task, given: StepInputs, *, with_loss: bool
    ) -> tuple[ModelState, OptimizerState, Tensor | None]:
        batch, weight = given.batch, given.weight
        alike = task.one_by_one and task.same_in_training and batch.index.ndim == 1 and len(batch.x)
        if not alike:
            return LocalSolver._advance(self, task, given, with_loss=with_loss)
        penalty, number = _split(given.penalty)
        width = 1 << (len(batch.x) - 1).bit_length()
        given = given._replace(batch=_padded(batch, width), weight=_padded(weight, width), penalty=penalty)
        key = (id(task.network), number, weight is None, torch.is_autocast_enabled(given.lr.device.type), _form(given))
        if key not in self.recorded:
            task = replace(task, memory=None)

            def step(given: StepInputs) -> Tree:
                penalty = given.penalty
                whole = penalty if number is None or penalty is None else penalty._replace(weight=number)
                return LocalSolver._advance(self, task, given._replace(penalty=whole), with_loss=True)

            self.recorded[key] = Recorded(step, given)
        return self.recorded[key](given)  # type: ignore[no-any-return]


def _split(penalty: Penalty | None) -> tuple[Penalty | None, float | None]:
    """A penalty whose leaves are tensors, and its weight where that is a plain number."""
    if penalty is None or isinstance(penalty.weight, Tensor):
        return penalty, None
    return penalty._replace(weight=None), penalty.weight  # type: ignore[arg-type] # None is an empty tree


def _padded(rows: Tree, width: int) -> Tree:
    """Leaves [B, ...] as [width, ...], with zeros."""

    def pad(leaf: Tensor) -> Tensor:
        missing = width - len(leaf)
        return torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])]) if missing else leaf

    return tree.map_leaves(pad, rows)


def _form(arguments: Tree) -> tuple[Any, ...]:
    """Paths, shapes and types of the leaves."""
    return tuple((path, leaf.shape, leaf.dtype) for path, leaf in tree.items(arguments))


def _all_finite(result: ClientResult) -> Tensor:
    """Whether the sums of all leaves are finite, on the device: [] bool. If they are, so are all numbers."""
    leaves = [leaf for leaf in tree.leaves((result.message.value, result.state)) if leaf.is_floating_point()]
    sums = [leaf.sum(dtype=torch.float64) for leaf in leaves]
    return torch.stack(sums).isfinite().all() if sums else torch.ones((), dtype=torch.bool)


def _forgiven(job: TrainJob, row: int, error: ClientError) -> Failed:
    """The failure of a client, where it is forgiven."""
    if not job.forgives(error):
        raise error
    return Failed(slice(row, row + 1), error)


class GraphedTrainer(SequentialTrainer):
    """Clients one after another, with local steps replayed from CUDA graphs where a step is the same function ever.

    That is: networks without dropout and running statistics, one batch for all models, and a plain local solver. Other
    steps are taken as the sequential client trainer takes them. Results are those of the sequential one up to rounding.
    """

    name = "graphed"
    shares_passes = False

    def __init__(self, rows_per_pass: int = 1024, *, channels_last: bool = False) -> None:
        super().__init__(rows_per_pass, channels_last=channels_last)
        self._solver: tuple[LocalSolver, _GraphedSolver] | None = None

    def _run(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Yield after each client, when the next one's work is under way: the device never waits to be asked."""
        waiting: tuple[Trained, Tensor] | None = None
        for row, client_id in enumerate(job.block.phase.client_ids.tolist()):
            done: Trained | ClientError
            try:
                done = self._trained(job, row, client_id)
                finite = _all_finite(done.result)
            except ClientError as error:
                done = error
            if waiting is not None:
                yield self._judged(job, *waiting)
            waiting = None if isinstance(done, ClientError) else (done, finite)
            if isinstance(done, ClientError):
                yield _forgiven(job, row, done)
        if waiting is not None:
            yield self._judged(job, *waiting)

    def _judged(self, job: TrainJob, done: Trained, finite: Tensor) -> Trained | Failed:
        """What a client returned, if it is finite."""
        if job.block.is_placeholder or finite:
            return done
        try:
            check_finite(done.result, job.block.phase.client_ids[done.rows], job.ctx)
        except ClientError as error:
            return _forgiven(job, done.rows.start, error)
        return done

    def _with_layout(self, ctx: Context) -> Context:
        ctx = super()._with_layout(ctx)
        if type(ctx.solver) is not LocalSolver:  # one that draws noise, say
            return ctx
        if self._solver is None or self._solver[0] != ctx.solver:
            given = {one.name: getattr(ctx.solver, one.name) for one in fields(LocalSolver)}
            self._solver = ctx.solver, _GraphedSolver(**given)
        return ctx._replace(solver=self._solver[1])
