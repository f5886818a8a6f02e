"""How far a run is from the minimum of the objective that all its clients share."""

from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.local_solver import Penalty
from lit_fed.core.solvers.newton import minimise
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ModelState, RoundRecord
from lit_fed.training.hooks import FederatedCallback, data_of, federated, log_round
from lit_fed.training.module import FederatedModule


class ObjectiveGap(FederatedCallback):
    """Logs `objective/gap` after each round: f(θ) − min f, in float64, for strictly convex losses of small networks.

    f is the mean loss of the clients, weighted as `--model.weighting` says, without weight decay. θ is the server's
    model, or without a server the mean of the clients' models; `objective/disagreement` is then the largest Euclidean
    distance of a client's model from that mean, and otherwise 0.

    Attributes:
        minimum: min f.
        curvature: smallest and largest eigenvalue of the Hessian of f at its minimiser.
        slope: norm of the gradient of f there, which tells how well it was found.
    """

    minimum: float
    curvature: tuple[float, float]
    slope: float

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the minimum, by Newton's method on the samples of all clients."""
        module = federated(pl_module)
        network = partial(module.settings.network, module.facts.input_shape, module.target.num_outputs)
        self._task = Task.create(network, module.target, dtype=torch.float64)
        self._batch = _pooled(module, data_of(trainer).populations[0].train)
        best = minimise(self._task, self._task.init(1, module.facts.seed), self._batch, Penalty(0.0), iterations=50)
        value, gradient, _ = self._task.value_and_grad(best, self._batch)
        self.minimum, self.slope = float(value), float(tree.norm(gradient))
        eigenvalues = torch.linalg.eigvalsh(self._hessian(best))
        self.curvature = (float(eigenvalues[0]), float(eigenvalues[-1]))

    def _hessian(self, models: ModelState) -> Tensor:
        """The Hessian of f, a product with each unit vector after another."""
        leaves, columns = tree.leaves(models.parameters), []
        sizes = [leaf.numel() for leaf in leaves]
        for unit in torch.eye(sum(sizes), dtype=torch.float64):
            parts = [part.view_as(leaf) for part, leaf in zip(unit.split(sizes), leaves, strict=True)]
            product = self._task.hessian_vector(models, self._batch, tree.rebuild(models.parameters, parts))
            columns.append(torch.cat([leaf.flatten() for leaf in product.values()]))
        return torch.stack(columns)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        """Measure after each round."""
        each = _models(module)  # leaves [T or 1, ...]
        mean = tree.map_leaves(lambda leaf: leaf.mean(0, keepdim=True), each)
        value = self._task.value_and_grad(ModelState(mean, {}), self._batch)[0]
        squares = [(leaf - mean[name]).square().flatten(1).sum(1) for name, leaf in each.items()]
        disagreement = torch.stack(squares).sum(0).sqrt().max()
        gap = float(value) - self.minimum
        log_round(trainer, module, {"objective/gap": gap, "objective/disagreement": float(disagreement)})


def _models(module: FederatedModule) -> dict[str, Tensor]:
    """Parameters of the server's model, or of all clients' without a server, leaves [T or 1, ...] in float64."""
    if module.algorithm.has_server:
        return {name: leaf.double() for name, leaf in module.shared.models.parameters.items()}
    states = module.store.gather(torch.arange(module.facts.num_clients, device=module.device))["state"]
    return {name: leaf[:, 0].double() for name, leaf in states.models.parameters.items()}


def _pooled(module: FederatedModule, train: Any) -> Batch:
    """All samples as one batch, whose mask holds the weight of each in f."""
    sizes = train.sizes.double()
    weight = torch.ones_like(sizes) if module.facts.weighting == "samples" else 1 / sizes
    x = train.x.double() if train.x.is_floating_point() else train.x
    y = train.y.double() if train.y.is_floating_point() else train.y
    mask = weight.repeat_interleave(train.sizes)
    return Batch(x, y, torch.arange(len(x)), mask / mask.sum() * len(mask))
