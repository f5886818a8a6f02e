"""One client after another on a GPU; local steps are recorded once as CUDA graphs and replayed.

A local step of a small network is a hundred kernels of a few microseconds each; the CPU launches them more slowly than
the GPU runs them. A graph launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from lit_fed.clients.base import Failed, Trained, TrainJob, check_finite
from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver, OptimizerState, Penalty, StepInputs
from lit_fed.core.objective import Objective
from lit_fed.core.task import Task
from lit_fed.core.types import ClientResult, ModelState, Tree
from lit_fed.errors import ClientError

__all__ = ["GraphedTrainer", "Recorded"]

WARM_UP = 3
"""Steps before a recording, since libraries allocate and initialise on their first calls."""

Step = Callable[[Tree], Tree]


class Recorded:
    """A pure function of tensors with fixed shapes, recorded on a GPU; elsewhere it is called directly.

    Args:
        function: takes and returns a tree of tensors; the current values of everything else it reads are recorded.
        example: example arguments.
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
        """The function's value for these arguments, in new tensors."""
        if self.graph is None:
            return self.function(arguments)
        _copy(tree.leaves(self.inputs), tree.leaves(arguments))
        self.graph.replay()
        results = tree.map_leaves(torch.empty_like, self.outputs)
        _copy(tree.leaves(results), tree.leaves(self.outputs))
        return results


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors, with one launch per type."""
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

    Batches are padded to the next power of two, so that few steps are recorded; padding has weight 0.
    """

    recorded: dict[Any, Recorded] = field(default_factory=dict, compare=False, repr=False)

    def _advance(self, task: Task, given: StepInputs) -> tuple[ModelState, OptimizerState, Tensor]:
        batch, weight = given.batch, given.weight
        alike = task.closed_form is None and task.same_in_training and batch.index.ndim == 1 and len(batch.x)
        if not alike:
            return LocalSolver._advance(self, task, given)
        penalty, number = _split(given.penalty)
        objective = given.objective
        function = None if objective is None else _function(objective)
        if objective is not None and function is None:
            return LocalSolver._advance(self, task, given)
        width = 1 << (len(batch.x) - 1).bit_length()
        pad = _padded if objective is None else _filled  # an objective need not be finite at zeros
        operands = None if objective is None else (objective.constants, pad(objective.rows, width))
        padded = pad(batch, width)._replace(mask=_padded(batch.mask, width))
        moving = given.moving
        given = given._replace(
            batch=padded, weight=_padded(weight, width), penalty=penalty, objective=None, moving=None
        )
        autocast = torch.is_autocast_enabled(given.lr.device.type)
        key = (id(task.network), number, weight is None, autocast, function, moving, _form((given, operands)))
        if key not in self.recorded:

            def step(arguments: tuple[StepInputs, Tree]) -> Tree:
                given, own = arguments
                penalty = given.penalty
                whole = penalty if number is None or penalty is None else penalty._replace(weight=number)
                if objective is not None:
                    given = given._replace(objective=objective._replace(constants=own[0], rows=own[1]))
                return LocalSolver._advance(self, task, given._replace(penalty=whole, moving=moving))

            self.recorded[key] = _recording(step, (given, operands), task)
        return self.recorded[key]((given, operands))  # type: ignore[no-any-return]


def _recording(step: Step, arguments: Tree, task: Task) -> Recorded:
    """The recorded step; a network that waits for the device cannot be recorded."""
    try:
        return Recorded(step, arguments)
    except RuntimeError as error:
        raise RuntimeError(
            f"{error}; if CUDA graphs cannot record {type(task.network).__name__}, which may read values of tensors, "
            "give --model.client_trainer sequential"
        ) from error


def _split(penalty: Penalty | None) -> tuple[Penalty | None, float | None]:
    """A penalty with tensors only, and its weight if that is a plain number."""
    if penalty is None or isinstance(penalty.weight, Tensor):
        return penalty, None
    return penalty._replace(weight=None), penalty.weight  # type: ignore[arg-type] # None is an empty tree


def _function(objective: Objective) -> Any:
    """Identity of the loss of an objective; None if it could differ in each step, as a closure could."""
    loss = objective.loss
    plain, owner = getattr(loss, "__func__", loss), getattr(loss, "__self__", None)  # owner: a frozen algorithm
    if not isinstance(plain, FunctionType) or plain.__closure__ or plain.__defaults__ or plain.__kwdefaults__:
        return None
    return plain.__module__, plain.__code__, id(owner), objective.uses_features, objective.over_batch


def _filled(rows: Tree, width: int) -> Tree:
    """Pad leaves [B, ...] to [width, ...] with copies of the first row."""
    return tree.map_leaves(lambda leaf: torch.cat([leaf, leaf[:1].expand(width - len(leaf), *leaf.shape[1:])]), rows)


def _padded(rows: Tree, width: int) -> Tree:
    """Pad leaves [B, ...] to [width, ...] with zeros."""

    def pad(leaf: Tensor) -> Tensor:
        missing = width - len(leaf)
        return torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])]) if missing else leaf

    return tree.map_leaves(pad, rows)


def _form(arguments: Tree) -> tuple[Any, ...]:
    """Paths, shapes and types of the leaves."""
    return tuple((path, leaf.shape, leaf.dtype) for path, leaf in tree.items(arguments))


def _all_finite(result: ClientResult) -> Tensor:
    """Whether the sums of all leaves are finite, [] bool on the device; then all numbers are."""
    leaves = [leaf for leaf in tree.leaves((result.message.value, result.state)) if leaf.is_floating_point()]
    sums = [leaf.sum(dtype=torch.float64) for leaf in leaves]
    return torch.stack(sums).isfinite().all() if sums else torch.ones((), dtype=torch.bool)


def _forgiven(job: TrainJob, row: int, error: ClientError) -> Failed:
    """The failure of a client if it is forgiven; otherwise raise its error."""
    if not job.forgives(error):
        raise error
    return Failed(slice(row, row + 1), error)


class GraphedTrainer(SequentialTrainer):
    """Train clients one after another, replaying local steps from CUDA graphs if every step is the same function.

    This needs a network without dropout and running statistics, one batch for all models, and a plain local solver.
    Other steps run as in the sequential client trainer. Results equal those of the sequential one up to rounding.
    """

    name = "graphed"

    def __init__(self, rows_per_pass: int = 1024, *, channels_last: bool = False) -> None:
        super().__init__(rows_per_pass, channels_last=channels_last)
        self._solver: tuple[LocalSolver, _GraphedSolver] | None = None

    def _run(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Yield each client after the next one has been launched, so that the GPU is never idle."""
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
        """The result of a client if it is finite; otherwise its failure."""
        if job.block.is_placeholder or finite:
            return done
        try:
            check_finite(done.result, job.block.phase.client_ids[done.rows], job.ctx)
        except ClientError as error:
            return _forgiven(job, done.rows.start, error)
        return done

    def _with_layout(self, ctx: Context) -> Context:
        ctx = super()._with_layout(ctx)
        if type(ctx.solver) is not LocalSolver:  # for example one that draws noise
            return ctx
        if self._solver is None or self._solver[0] != ctx.solver:
            given = {one.name: getattr(ctx.solver, one.name) for one in fields(LocalSolver)}
            self._solver = ctx.solver, _GraphedSolver(**given)
        return ctx._replace(solver=self._solver[1])
