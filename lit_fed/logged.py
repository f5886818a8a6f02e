"""What a module's own `test_step` and `validation_step` log, for each client under the models that serve it.

A client that one model serves gets what Lightning's `Trainer.test` would log with this model and its samples. Under a
mixture, the module's `forward` predicts as the mixture does while the step runs; where the loss of the module is the
target, the client gets the mean of what its models log, by their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from lit_fed.clients.base import PredictJob
from lit_fed.core import tree
from lit_fed.core.networks.stacked_network import num_models_of
from lit_fed.core.own_module import AT_END, OwnModule, defines
from lit_fed.core.served_models import ServedModels, served_models
from lit_fed.core.task import Task
from lit_fed.core.types import Leaves, ModelState

__all__ = ["logged_by_step", "step_of"]


def step_of(own: OwnModule | None, split: str) -> str | None:
    """The step of a module that measures a split, `val` or `test`; None: it has none.

    Example:
        >>> step_of(None, "test") is None
        True
    """
    name = {"val": "validation_step", "test": "test_step"}.get(split, "")
    return name if own is not None and defines(own.network, name) else None


def logged_by_step(job: PredictJob, step: str, batch_size: int) -> Leaves:
    """What each client logs, means by its samples, [C] float64 by name; NaN where a client logs nothing of this name.

    Args:
        job: the clients, their states and samples.
        step: `test_step` or `validation_step`.
        batch_size: samples of a batch; 0: all.
    """
    own, each = job.ctx.task.own, []
    assert own is not None
    for row, client_id in enumerate(job.client_ids.tolist()):
        data, state = job.data.client(client_id), tree.row(job.states, row)
        served = _served(job, state, data.all_x[:1]) if len(data.all_y) else None
        with own.client(job.ctx.round_idx, job.ctx.num_rounds, job.ctx.solver.local_epochs):
            if served is not None:
                _run(job.ctx.task, own, served, data.all_x, data.all_y, step, batch_size or len(data.all_y))
            each.append(own.run.logged() if served is not None else {})
    names = dict.fromkeys(name for one in each for name in one)
    missing = torch.full((), torch.nan, dtype=torch.float64)
    return own.named({name: torch.stack([one.get(name, missing).cpu() for one in each]) for name in names})


def _served(job: PredictJob, state: Any, x: Tensor) -> ServedModels | None:
    """The models behind a client's prediction, or a line that there are none."""

    def predict(task: Task, x: Tensor) -> Tensor:
        ctx = job.ctx._replace(task=task)
        return job.algorithm.log_prob(ctx, job.shared, state, x, job.algorithm.shared_outputs(ctx, job.shared, x))

    if (served := served_models(predict, job.ctx.task, x)) is not None:
        return served
    own = job.ctx.task.own
    assert own is not None
    what = f"the predictions of {type(job.algorithm).__name__} are no mixture of models"
    own.say(f"{what}, so that nothing is measured by the steps of {own.name}")
    return None


def _run(task: Task, own: OwnModule, served: ServedModels, x: Tensor, y: Tensor, step: str, batch_size: int) -> None:
    """Run the step over all samples of a client, in evaluation mode."""
    run, single = own.run, len(served.weights) == 1
    task.network.eval()
    vars(run).update(training=False, testing=step == "test_step", validating=step == "validation_step")
    try:
        with torch.no_grad():
            for batch_idx, rows in enumerate(torch.arange(len(y), device=y.device).split(batch_size)):
                run.size, run.batch_idx, batch = len(rows), batch_idx, own.batch(x[rows], y[rows])
                for model, weight in _models(own, served):
                    run.scale = weight
                    mixes = nullcontext() if single or own.is_target else own.forward_as(_mixture(task, served))
                    leaves = model.parameters | {name: leaf.clone() for name, leaf in model.buffers.items()}
                    with mixes:
                        own.step(leaves | task.frozen, step, batch)
            if single and defines(own.network, AT_END[step]):
                own.call(tree.index(served.models.parameters | served.models.buffers, 0) | task.frozen, AT_END[step])
            elif defines(own.network, AT_END[step]):
                own.say(f"{own.name}.{AT_END[step]} is not called for a mixture")
    finally:
        vars(run).update(training=True, testing=False, validating=False, scale=1.0)


def _models(own: OwnModule, served: ServedModels) -> Iterator[tuple[ModelState, float]]:
    """The models whose leaves the step sees, with the weight of what it logs."""
    if len(served.weights) == 1:
        yield tree.index(served.models, 0), 1.0
    elif not own.is_target:  # the step's `forward` is that of the mixture
        yield tree.index(served.models, int(served.weights.argmax())), 1.0
    else:
        own.say(f"of a mixture, what {own.name} logs is the mean over its models, by their weights")
        for m, weight in enumerate(served.weights.tolist()):
            yield tree.index(served.models, m), weight


def _mixture(task: Task, served: ServedModels) -> Any:
    """The prediction of a mixture in the form of the network's outputs, as a function of outputs [B, M, K]."""

    def mixed(outputs: Tensor) -> Tensor:
        own = task.own
        if own is not None and own.mask is not None:  # classes come last in predictions, and second in outputs
            positions = task.mix(served.weights, outputs.to(task.dtype).flatten(3).transpose(2, 3))
            return positions.transpose(1, 2).unflatten(2, own.mask)  # type: ignore[no-any-return]
        return task.target.as_outputs(task.mix(served.weights, outputs.to(task.dtype)))

    leaves = [tree.index(served.models, m) for m in range(num_models_of(served.models))]
    return [one.parameters | one.buffers | task.frozen for one in leaves], mixed
