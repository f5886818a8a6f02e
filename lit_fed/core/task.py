"""A learning task: a network and its per-sample loss as pure functions of stacked models.

The target defines losses, the stacked network gives outputs, and this module computes gradients. The network decides
how; the ways are equal up to rounding:

    closed form   affine networks: matrix products of all models at once, without autograd; not for an `Objective`
    own module    the loss of its `training_step`, or of its samples; no other way
    vmap          clients that run at once: autograd's `backward` cannot run inside `torch.func.vmap`
    together      narrow convolutions of several models in one pass, as groups of channels; not for an `Objective`
    loop          all others, each model's graph alone in memory; large outputs of positions in pieces
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, vmap
from torch.utils.checkpoint import checkpoint

from lit_fed.core import tree
from lit_fed.core.networks.layers import at_rest, frozen_leaves
from lit_fed.core.networks.products import AffineMap, grouped_outputs
from lit_fed.core.networks.stacked_network import (
    StackedNetwork,
    check_network,
    check_trained,
    fresh_network,
    initial_seeds,
    num_models_of,
)
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.own_module import OwnModule
from lit_fed.core.targets import Criterion, Sequences, Target
from lit_fed.core.types import Batch, ClientData, Leaves, ModelState, Tree

__all__ = ["Task"]

PIECE_BYTES = 2**25
"""Outputs of positions that take more memory are made in pieces of this size, if the network says how it splits."""


@dataclass(frozen=True)
class Task(StackedNetwork):
    """Network and log-loss; the fields other than target and criterion are those of the network.

    Args:
        target: the prediction target.
        criterion: loss of local steps in place of the log-loss; None: the log-loss.
        own: the steps of a network that computes its loss itself, for local steps and E-steps; None: it does not.
    """

    target: Target = field(kw_only=True)
    criterion: Criterion | None = field(default=None, kw_only=True)
    own: OwnModule | None = field(default=None, kw_only=True, compare=False)

    @classmethod
    def create(cls, build: Callable[[], nn.Module], target: Target, seed: int = 0, **fields: object) -> Task:
        """Make a task with a new template network; the global generator is unchanged.

        Frozen parameters are those of the first initial model.

        Args:
            build: as in the class.
            target: as in the class.
            seed: the training seed.
            fields: other fields of the class.

        Raises:
            ConfigError: if the network has no trained parameter, or does not fit into memory.
        """
        given: tuple[int, ...] | None = fields.get("init_seeds")  # type: ignore[assignment]
        dtype: torch.dtype = fields.get("dtype", torch.float32)  # type: ignore[assignment]
        check_network(build)
        first = initial_seeds(1, seed, given or None)[0]
        network = fresh_network(build, first, dtype)
        check_trained(network)
        return cls(
            build, network, frozen_leaves(network), at_rest(network), template_seed=first, target=target,
            **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    @cached_property
    def closed_form(self) -> AffineMap | None:
        """None for labels with positions, where the map acts on the last axis only, and for a module's own loss."""
        return None if self.target.positions or self.own is not None else super().closed_form

    # ------------------------------------------------------------------ losses and predictions
    def _call(self, parameters: Leaves, buffers: Leaves, x: Tensor) -> Tensor:
        if self.own is None:
            return super()._call(parameters, buffers, x)
        buffers = {name: leaf.clone() for name, leaf in buffers.items()}
        return self.own.outputs(parameters | buffers | self.frozen, x)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-loss of each sample and model, [B, M], in nats (regression: ½(ŷ − y)², up to a constant).

        A loss of local steps with `in_e_step` replaces it.

        Args:
            outputs: [B, M, K] or [B, M, L, K].
            y: labels [B] or [B, L]; classes may be the probabilities of `soft_labels`.
        """
        compared = self.target if self.criterion is None or not self.criterion.loss.in_e_step else self.criterion
        return compared.losses(outputs, self.target.for_models(y.unsqueeze(1), outputs))

    def losses_of(self, models: ModelState, x: Tensor, y: Tensor) -> Tensor:
        """Log-loss of each sample and model in evaluation mode, [B, M]; see `losses`."""
        if self.own is not None:
            return self._own_losses_of(self.own, models, x, y)
        if self.model_axis == "vmap" or not self._in_pieces(y):
            return self.losses(self.outputs(models, x), y)
        return self._losses_of_each(models, x, y)

    def _losses_of_each(self, models: ModelState, x: Tensor, y: Tensor) -> Tensor:
        """Log-loss of each sample and model, [B, M], without holding the outputs of all positions at once."""
        self.network.eval()
        leaves = self._stacked(models) | models.buffers
        each = (self._losses_in_pieces(tree.index(leaves, m), x, y) for m in range(num_models_of(models)))
        return torch.stack(list(each), dim=1)

    def _own_losses_of(self, own: OwnModule, models: ModelState, x: Tensor, y: Tensor) -> Tensor:
        """The module's own loss of each sample and model in evaluation mode, [B, M]."""
        self.network.eval()
        each = []
        with torch.no_grad():
            for m in range(num_models_of(models)):
                parameters, buffers = tree.index(models, m)
                leaves = parameters | {name: leaf.clone() for name, leaf in buffers.items()} | self.frozen
                each.append(own.sample_losses(leaves, x, y, training=False)[0].to(self.dtype))
                if self.model_axis == "loop" and not m:
                    own.compare(leaves, x, y, each[0])
        return torch.stack(each, dim=1)

    def sample_losses(self, models: ModelState, data: ClientData, rows_per_pass: int = 1024) -> Tensor:
        """Losses [N, M] of all samples of a client, in evaluation mode, in passes of some rows."""
        x, y = data.x, data.y
        parts = [slice(lo, lo + rows_per_pass) for lo in range(0, max(len(x), 1), rows_per_pass)]
        return torch.cat([self.losses_of(models, x[rows], y[rows]) for rows in parts])

    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        """Labels for distillation: share·y + (1 − share)·the prediction of another model.

        The gradient of the cross-entropy to these equals that of share·CE(y) + (1 − share)·KL(prediction ‖ model): the
        entropy of the prediction is constant. Likewise for squared errors.

        Args:
            outputs: outputs of the other model, [B, K] or [B, L, K]; never differentiated.
            y: labels [B] or [B, L].
            share: in [0, 1].

        Returns:
            Probabilities [B, C] or [B, L, C]; only of class 1, [B], if binary; means [B] for regression.
        """
        return self.target.soft_labels(outputs.detach(), y, share)

    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """Prediction of a mixture of models: log of the mixed probabilities, or the mixed mean (regression).

        Args:
            weights: [M], non-negative, summing to 1.
            outputs: [B, M, K] or [B, M, L, K].

        Returns:
            Log-probabilities [B, C] or [B, L, C] (binary: C = 2, at least the smallest normal number), or means
            [B, 1].
        """
        return self.target.mix(weights, outputs)

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and hit of each sample, both [B].

        Args:
            prediction: log-probabilities [B, C] or [B, L, C], or the mean [B, 1].
            y: labels [B] or [B, L].

        Returns:
            Log-loss in nats and 1 for a correct prediction (averaged over positions), or half and whole squared error.
        """
        return self.target.score(prediction, y)

    # ------------------------------------------------------------------ gradient
    @cached_property
    def trained_on(self) -> Criterion | Target:
        """The loss of local steps."""
        return self.target if self.criterion is None else self.criterion

    def value_and_grad(
        self, models: ModelState, batch: Batch, weight: Tensor | None = None, *, training: bool = True,
        objective: Objective | None = None, moving: Collection[str] | None = None,
    ) -> tuple[Tensor, Leaves, Leaves]:  # fmt: skip
        """Gradient of (1/B) Σ_b w_bm ℓ(θ_m; b) with respect to each θ_m, ℓ being the loss of `trained_on`.

        The sum is divided by the number of samples, not by the sum of weights (FedEM's surrogate).

        Args:
            models: M models.
            batch: B samples for all models, or M batches on a leading axis.
            weight: [B, M]; None: 1.
            training: training mode; otherwise no dropout, and BatchNorm uses running statistics, so that the
                gradient is a sum over samples.
            objective: replaces ℓ.
            moving: names of the parameters to differentiate by; None: all. Layers below them need a forward pass only.

        Returns:
            The mean loss [M], the gradient and the buffers after the step, leaves [M, ...].
        """
        share = self._share(models, batch, weight)
        if self.closed_form is not None and objective is None:
            return self._by_closed_form(self.closed_form, models, batch, share, moving)
        how: dict[str, Any] = {"training": training, "objective": objective, "moving": moving}
        if self.own is not None and self.model_axis == "loop":
            return self._by_own_steps(self.own, models, batch, None if weight is None else share, **how)
        if self.model_axis == "vmap":
            self.set_mode(training)
            return self._by_vmap(models, batch, share, **how)
        if objective is None and batch.index.ndim == 1 and self.goes_together(models):
            return self._together(models, batch, share, moving)
        self.set_mode(training)
        return self._by_loop(models, batch, share, **how)

    def _by_closed_form(
        self, affine: AffineMap, models: ModelState, batch: Batch, share: Tensor, moving: Collection[str] | None
    ) -> tuple[Tensor, Leaves, Leaves]:
        """All models at once, from the residual of their outputs."""
        per_model = batch.index.ndim == 2
        outputs = affine.outputs(self._stacked(models), batch.x, per_model).to(self.dtype)
        y = self.target.for_models(batch.y.transpose(0, 1) if per_model else batch.y.unsqueeze(1), outputs)
        gradient = affine.gradient(batch.x, self.trained_on.residual(outputs, y) * share.unsqueeze(-1), per_model)
        loss = (self.trained_on.losses(outputs, y) * share).sum(0)
        by = tree.named(models.parameters, moving)
        return loss, {name: gradient[name] for name in by}, models.buffers

    def _by_loop(
        self, models: ModelState, batch: Batch, share: Tensor, *, training: bool, objective: Objective | None,
        moving: Collection[str] | None,
    ) -> tuple[Tensor, Leaves, Leaves]:  # fmt: skip
        """One model after another, so that one graph alone is in memory."""
        per_model, num_models = batch.index.ndim == 2, share.shape[1]
        features = objective is not None and objective.uses_features
        in_pieces = objective is None and self._in_pieces(batch.y[0] if per_model else batch.y)
        call, x = self._call, self._laid_out(batch.x)
        if not in_pieces:
            begun = self._begun_with_features if features else self._begun
            call, x = begun(x, training=training, per_model=per_model)
        objectives = [None] * num_models if objective is None else objective.of_models(num_models)
        each = []
        for m, own in enumerate(objectives):
            parameters = _in_graph({name: self._laid_out(leaf[m]) for name, leaf in models.parameters.items()}, moving)
            by, buffers = tree.named(parameters, moving), tree.index(models.buffers, m)
            x_m, y, mask = (self._laid_out(x[m]), batch.y[m], batch.mask[m]) if per_model else (x, batch.y, batch.mask)
            with torch.enable_grad():
                if in_pieces:
                    loss, buffers = self._loss_in_pieces(parameters, buffers, x_m, y, share[:, m], by)
                else:
                    loss, buffers = self.weighted_loss(parameters, buffers, x_m, y, share[:, m], call, own, mask)
            if own is not None:
                self.set_mode(training)  # the loss may have evaluated other models
            each.append((loss.detach(), _gradient(loss, by), buffers))
        return tree.stack(each)  # type: ignore[no-any-return]

    def _by_own_steps(
        self, own: OwnModule, models: ModelState, batch: Batch, share: Tensor | None, *, training: bool,
        objective: Objective | None, moving: Collection[str] | None,
    ) -> tuple[Tensor, Leaves, Leaves]:  # fmt: skip
        """The steps of a module that computes its loss itself: of the whole batch, or with shares of its samples."""
        own.check_step(objective, soft=batch.y.is_floating_point() and not self.target.continuous)
        per_model, each = batch.index.ndim == 2, []
        for m in range(num_models_of(models)):
            self.set_mode(training)
            parameters = _in_graph({name: leaf[m] for name, leaf in models.parameters.items()}, moving)
            buffers = {name: leaf[m].clone() for name, leaf in models.buffers.items()}
            x, y, mask = (batch.x[m], batch.y[m], batch.mask[m]) if per_model else (batch.x, batch.y, batch.mask)
            leaves = parameters | buffers | self.frozen
            with torch.enable_grad():
                if share is None:
                    loss, after = own.mean_loss(leaves, x, y, mask)
                else:
                    loss, after = own.weighted_loss(leaves, x, y, share[:, m], training=training, logs=True)
            loss = loss.to(self.dtype)
            own_buffers = {name: after[name].detach() for name in buffers}
            each.append((loss.detach(), _gradient(loss, tree.named(parameters, moving)), own_buffers))
        return tree.stack(each)  # type: ignore[no-any-return]

    def _together(
        self, models: ModelState, batch: Batch, share: Tensor, moving: Collection[str] | None
    ) -> tuple[Tensor, Leaves, Leaves]:
        """One pass of all models, see `grouped_outputs`."""
        parameters = _in_graph(models.parameters, moving)
        with torch.enable_grad():
            outputs = grouped_outputs(self.grouped, parameters, self._laid_out(batch.x)).to(self.dtype)
            y = self.target.for_models(batch.y.unsqueeze(1), outputs)
            losses = (self.trained_on.losses(outputs, y) * share).sum(0)
        return losses.detach(), _gradient(losses.sum(), tree.named(parameters, moving)), models.buffers

    def _in_pieces(self, y: Tensor) -> bool:
        """Whether outputs for labels [B, L] are so large that positions are processed in pieces."""
        splits = self.target.positions and self.criterion is None
        large = splits and y.ndim == 2 and y.numel() * self.target.num_outputs * self.dtype.itemsize > PIECE_BYTES
        return large and hasattr(self.network, "split") and self.last.body is not None

    def _losses_in_pieces(self, leaves: Leaves, x: Tensor, y: Tensor, moving: Collection[str] = ()) -> Tensor:
        """Log-loss of each sample under one model, [B], in the network's mode; no outputs are kept.

        Args:
            leaves: all leaves of the network.
            x: inputs [B, ...].
            y: labels [B, L].
            moving: names of the leaves to differentiate by, besides the features.
        """
        assert isinstance(self.target, Sequences)
        per_position, head = self.target.position_losses, self.last

        def losses(features: Tensor, y: Tensor) -> Tensor:
            return per_position(head.outputs(leaves, features).to(self.dtype), y)

        rows = max(1, PIECE_BYTES // (self.target.num_outputs * self.dtype.itemsize))
        features, labels = head.features(leaves, x).to(self.dtype).flatten(0, 1), y.flatten()
        fixed = isinstance(head.top, nn.Module) and set(moving).isdisjoint(head.names.values())
        each = []
        for some, their in zip(features.split(rows), labels.split(rows), strict=True):
            if not torch.is_grad_enabled():
                each.append(losses(some, their))
            elif fixed:
                each.append(_RowLosses.apply(some, partial(losses, y=their)))
            else:  # outputs are computed again for their gradient
                each.append(checkpoint(losses, some, their, use_reentrant=False))
        return self.target.over_positions(torch.cat(each).view(y.shape), y)

    def _loss_in_pieces(
        self, parameters: Leaves, buffers: Leaves, x: Tensor, y: Tensor, share: Tensor,
        moving: Collection[str],
    ) -> tuple[Tensor, Leaves]:  # fmt: skip
        """`weighted_loss` without holding the outputs of all positions at once."""
        buffers = {name: leaf.clone() for name, leaf in buffers.items()}
        losses = self._losses_in_pieces(parameters | buffers | self.frozen, x, y, moving)
        return (losses * share).sum(), buffers

    def full_gradient(
        self, models: ModelState, data: ClientData, rows_per_pass: int = 1024, *, training: bool = True
    ) -> tuple[Tensor, Tree]:
        """Mean loss [M] and gradient, leaves [M, ...], over all samples of a client, in passes of some rows."""
        batch, num_rows = data.batch, len(data.mask)
        batch = batch._replace(mask=self.target.counted(batch.y, batch.mask))
        total = batch.mask.sum(dtype=torch.float64).clamp(min=1)
        parts = []
        for lo in range(0, max(num_rows, 1), rows_per_pass):
            some: Batch = tree.index(batch, slice(lo, lo + rows_per_pass))
            loss, gradient, _ = self.value_and_grad(models, some, training=training)
            parts.append((loss, gradient) if num_rows <= rows_per_pass else _scaled(loss, gradient, some, total))
        return tree.map_leaves(lambda *leaves: sum(leaves), *parts)  # type: ignore[no-any-return]

    def hessian_vector(self, models: ModelState, batch: Batch, vector: Leaves) -> Leaves:
        """Product of the Hessian of each model's mean loss on a batch with a vector, leaves [M, ...].

        The network must be twice differentiable.
        """
        share, axis = self._share(models, batch, None), 0 if batch.index.ndim == 2 else None
        self.set_mode(True)
        operands = (models.parameters, models.buffers, vector, batch.x, batch.y, share)
        if self.model_axis == "vmap":
            return vmap(self._curvature, in_dims=(0, 0, 0, axis, axis, 1))(*operands)
        each = []
        for m in range(num_models_of(models)):
            parameters, buffers, direction = tree.index(operands[:3], m)
            x, y = (batch.x, batch.y) if axis is None else (batch.x[m], batch.y[m])
            each.append(self._curvature(parameters, buffers, direction, x, y, share[:, m]))
        return tree.stack(each)  # type: ignore[no-any-return]

    def _curvature(
        self, parameters: Leaves, buffers: Leaves, vector: Leaves, x: Tensor,
        y: Tensor, share: Tensor,
    ) -> Leaves:  # fmt: skip
        """The Hessian-vector product of one model: the gradient of ⟨gradient, vector⟩."""

        def along(parameters: Leaves) -> Tensor:
            gradient = grad(lambda leaves: self.weighted_loss(leaves, buffers, x, y, share)[0])(parameters)
            return torch.stack([(gradient[name] * leaf).sum() for name, leaf in vector.items()]).sum()

        return grad(along)(parameters)  # type: ignore[no-any-return]

    def _share(self, models: ModelState, batch: Batch, weight: Tensor | None) -> Tensor:
        """Factor of each sample's loss in the objective of each model, [B, M]."""
        dtype, counted = next(iter(models.parameters.values())).dtype, self.target.counted(batch.y, batch.mask)
        mask = (counted.T if batch.index.ndim == 2 else counted.unsqueeze(1)).to(dtype)
        share = (mask if weight is None else weight * mask) / mask.sum(0).clamp(min=1)
        return share.expand(-1, num_models_of(models))

    def weighted_loss(
        self, parameters: Leaves, buffers: Leaves, x: Tensor, y: Tensor, share: Tensor,
        call: Callable[..., Any] | None = None, objective: Objective | None = None, mask: Tensor | None = None,
    ) -> tuple[Tensor, Leaves]:  # fmt: skip
        """Σ_b share_b ℓ(θ; b) of one model, without a model axis, in the network's mode; and the new buffers.

        Args:
            parameters: parameters of the model.
            buffers: buffers of the model.
            x: inputs of `call`.
            y: labels.
            share: factor of each sample, [B].
            call: see `_begun`; None: the whole network.
            objective: objective of this model; None: the loss of `trained_on`.
            mask: mask of the samples [B], for an objective.
        """
        buffers = {name: leaf.clone() for name, leaf in buffers.items()}  # layers update them in place
        if self.own is not None:
            self.own.check_step(objective, soft=y.is_floating_point() and not self.target.continuous)
            leaves = parameters | buffers | self.frozen
            loss, after = self.own.weighted_loss(leaves, x, y, share, training=self.network.training)
            return loss.to(self.dtype), {name: after[name] for name in buffers}
        call = call or self._call
        if objective is not None:
            return self._objective_loss(parameters, buffers, x, y, share, call, objective, mask), buffers
        return (self.trained_on.losses(call(parameters, buffers, x).to(self.dtype), y) * share).sum(), buffers

    def _objective_loss(
        self, parameters: Leaves, buffers: Leaves, x: Tensor, y: Tensor, share: Tensor,
        call: Callable[..., Any], objective: Objective, mask: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """`weighted_loss` of an objective."""
        inner, own = objective.apart(parameters)
        found = call(inner, buffers, x)
        outputs, features = found if objective.uses_features else (found, None)

        def head(features: Tensor, leaves: Leaves | None = None) -> Tensor:
            return self._call_head(inner | (leaves or {}), buffers, features)

        view = ModelView(
            outputs.to(self.dtype), y, objective.constants, objective.rows, head, self.trained_on,
            None if features is None else features.to(self.dtype), mask if objective.over_batch else None, own,
        )  # fmt: skip
        return (objective.each(view) * share).sum()

    def _by_vmap(
        self, models: ModelState, batch: Batch, share: Tensor, *, training: bool, objective: Objective | None,
        moving: Collection[str] | None,
    ) -> tuple[Tensor, Leaves, Leaves]:  # fmt: skip
        per_model = batch.index.ndim == 2
        axis = 0 if per_model else None
        begun = self._begun_with_features if objective is not None and objective.uses_features else self._begun
        call, x = begun(batch.x, training=training, per_model=per_model)
        by: Leaves = models.parameters
        if moving is not None:
            by = tree.named(by, moving) or by  # autograd refuses an empty dict
        fixed = {name: leaf for name, leaf in models.parameters.items() if name not in by}

        def loss_of(
            by: Any, fixed: Any, buffers: Any, x: Tensor, y: Tensor, share: Tensor, mask: Tensor, *own: Any
        ) -> Any:
            loss = None if objective is None else objective.with_operands(*own)
            return self.weighted_loss(by | fixed, buffers, x, y, share, call, loss, mask)

        operands = () if objective is None else objective.operands(share.shape[1])
        dims = (0, 0, 0, axis, axis, 1, axis, *((0, 1) if operands else ()))
        function = vmap(grad_and_value(loss_of, has_aux=True), in_dims=dims)
        gradient, (loss, buffers) = function(by, fixed, models.buffers, x, batch.y, share, batch.mask, *operands)
        return loss, gradient if moving is None else tree.named(gradient, moving), buffers


class _RowLosses(torch.autograd.Function):
    """Losses [N] of features [N, D]; the gradient is computed in the forward pass, and the outputs are not kept."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, losses: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            given = features.detach().requires_grad_()
            each = losses(given)
            (slope,) = torch.autograd.grad(each.sum(), given)
        ctx.save_for_backward(slope)
        return each.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return gradient.unsqueeze(-1) * slope, None


def _scaled(loss: Tensor, gradient: Tree, some: Batch, total: Tensor) -> Tree:
    """Contribution of some of the samples to the mean over all."""
    return tree.scale((loss, gradient), some.mask.sum(dtype=torch.float64) / total)


def _in_graph(parameters: Leaves, moving: Collection[str] | None) -> Leaves:
    """Detached leaves, of which those that move require a gradient."""
    return {name: leaf.detach().requires_grad_(moving is None or name in moving) for name, leaf in parameters.items()}


def _gradient(loss: Tensor, parameters: Leaves) -> Leaves:
    """Gradient of a loss [], 0 for unused parameters."""
    if not loss.requires_grad:  # the loss depends on no parameter
        return tree.zeros_like(parameters)  # type: ignore[no-any-return]
    leaves = list(parameters.values())
    gradient = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, gradient, strict=True))
