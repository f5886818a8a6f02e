"""A learning task: a network and its per-sample loss as pure functions of stacked models.

Every function takes M models at once (leaves [M, ...]) and returns one entry per model, so that one model is M = 1 and
takes the very same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core import tree
from lit_fed.core.machine.memory import check_models, check_network
from lit_fed.core.networks.forward_memory import ForwardMemory, Pass
from lit_fed.core.networks.fresh import check_trained, fresh_network, initial_seeds
from lit_fed.core.networks.layers import drops_units, normalises_batches
from lit_fed.core.target import Target
from lit_fed.core.types import Batch, ClientData, ModelState, Tree

__all__ = ["ClosedForm", "Target", "Task"]


@runtime_checkable
class ClosedForm(Protocol):
    """A network whose gradient needs no autograd; `parameters` have leaves [M, ...]."""

    def stacked_outputs(self, parameters: dict[str, Tensor], x: Tensor, per_model: bool) -> Tensor:
        """Outputs [B, M, K] for inputs [B, ...], or [M, B, ...] if `per_model`."""

    def stacked_gradient(self, x: Tensor, residual: Tensor, per_model: bool) -> dict[str, Tensor]:
        """Gradient of the parameters, leaves [M, ...], from the gradient of the outputs [B, M, K]."""


@dataclass(frozen=True)
class Task:
    """Network and log-loss.

    Args:
        build: makes a network with fresh weights from torch's global generator; called once per model by `init`.
        target: what is predicted.
        network: the template whose forward is used; its own weights are not.
        frozen: parameters that are not trained (`requires_grad` is False), one copy for all models and all clients; no
            `ModelState` holds them, so nobody sends or keeps them.
        init_seeds: seeds of the initial models, for `torch.manual_seed`; None derives them from the training seed.
        model_axis: `loop` takes the M models one after another, `vmap` at once.
        dtype: floating type of the models.
        channels_last: images and the weights of 2-D convolutions are laid out with the channels last, where the models
            are taken one after another; the numbers are the same up to rounding.
        memory: the forward pass of one client that is worth keeping.
    """

    build: Callable[[], nn.Module]
    target: Target
    network: nn.Module
    frozen: dict[str, Tensor] = field(default_factory=dict, compare=False)
    init_seeds: tuple[int, ...] | None = None
    model_axis: Literal["loop", "vmap"] = "loop"
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    memory: ForwardMemory | None = None

    @classmethod
    def create(cls, build: Callable[[], nn.Module], target: Target, seed: int = 0, **fields: object) -> Task:
        """A task with a template network of its own; the global generator is left as it was.

        What is frozen is that of the first initial model, so that it is the same wherever this model is.

        Args:
            build: see the class.
            target: see the class.
            seed: the training seed.
            fields: other fields of the class.

        Raises:
            ConfigError: if the network has no parameter that is trained, or memory has no room for it.
        """
        given: tuple[int, ...] | None = fields.get("init_seeds")  # type: ignore[assignment]
        dtype: torch.dtype = fields.get("dtype", torch.float32)  # type: ignore[assignment]
        check_network(build)
        network = fresh_network(build, initial_seeds(1, seed, given or None)[0], dtype)
        check_trained(network)
        frozen = {name: value.detach() for name, value in network.named_parameters() if not value.requires_grad}
        return cls(build, target, network, frozen, **fields)  # type: ignore[arg-type]

    def init(self, num_models: int, seed: int) -> ModelState:
        """Fresh models, each from a seed of its own; their frozen parameters are those of the task.

        Raises:
            ConfigError: if `init_seeds` names fewer seeds than there are models, or memory has no room for them.
        """
        check_models(num_models, self.network)
        return tree.stack([self._fresh(one) for one in initial_seeds(num_models, seed, self.init_seeds)])  # type: ignore[no-any-return]

    def _fresh(self, seed: int) -> ModelState:
        network = fresh_network(self.build, seed, self.dtype)
        parameters = {name: value.detach() for name, value in network.named_parameters() if name not in self.frozen}
        return ModelState(parameters, {name: value.detach() for name, value in network.named_buffers()})

    @cached_property
    def norm_names(self) -> frozenset[str]:
        """Names of the parameters and buffers of BatchNorm layers."""
        return frozenset(
            f"{place}.{name}" if place else name
            for place, layer in self.network.named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
            for name in layer.state_dict()
        )

    @cached_property
    def smallest_batch(self) -> int:
        """Samples that a local step needs: 2 where BatchNorm takes its statistics from them, else 1."""
        return 2 if normalises_batches(self.network) else 1

    @cached_property
    def same_in_training(self) -> bool:
        """Whether training and evaluation are the same function: no BatchNorm, no running statistics, no dropout."""
        norms = [one for one in self.network.modules() if isinstance(one, nn.modules.batchnorm._NormBase)]
        return (
            self.smallest_batch == 1
            and not any(one.track_running_stats for one in norms)
            and not drops_units(self.network)
        )

    def statistics(self, models: ModelState, x: Tensor) -> dict[str, Tensor]:
        """Buffers, leaves [M, ...], whose running statistics are those of these samples [B, ...] alone.

        Fewer samples than a local step needs have no statistics: the buffers stay what they are.
        """
        if len(x) < self.smallest_batch or not models.buffers:
            return models.buffers
        layers = [one for one in self.network.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
        momenta = [layer.momentum for layer in layers]
        self.network.eval()
        try:
            for layer in layers:
                layer.train()
                layer.momentum = 1.0
            each = []
            for m in range(_num_models(models)):
                model = tree.map_leaves(lambda leaf: leaf.clone(), tree.index(models, m))
                self._forward(model, self._laid_out(x))
                each.append(model.buffers)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
        return tree.stack(each)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ forward
    def outputs(self, models: ModelState, x: Tensor) -> Tensor:
        """Raw outputs in evaluation mode for inputs [B, ...]: [B, M, K], with positions [B, M, L, K]."""
        if isinstance(self.network, ClosedForm):
            return self._wide(self.network.stacked_outputs(self._stacked(models), x, False))
        self.network.eval()
        if self.model_axis == "vmap":
            forward = vmap(lambda model: self._call(model.parameters, model.buffers, x))
            return self._wide(forward(models).transpose(0, 1))
        if self.memory is not None and x is self.memory.x:
            return self._remembered(self.memory, models)
        x = self._laid_out(x)
        each = [self._forward(tree.index(models, m), x) for m in range(_num_models(models))]
        return self._wide(torch.stack(each, dim=1))

    def _remembered(self, memory: ForwardMemory, models: ModelState) -> Tensor:
        """Outputs of a pass that a gradient can be taken of later."""
        self.network.train()  # the same function here; cuDNN keeps what an LSTM's gradient needs in training only
        x = self._laid_out(memory.x)
        memory.models, memory.passes = models, [self._pass(models, m, x) for m in range(_num_models(models))]
        return torch.stack([one.outputs.detach() for one in memory.passes], dim=1)

    def _pass(self, models: ModelState, m: int, x: Tensor) -> Pass:
        """Forward pass of model m with a graph, in the mode that the network is in."""
        parameters = {name: self._laid_out(leaf[m]).detach() for name, leaf in models.parameters.items()}
        parameters = {name: leaf.requires_grad_() for name, leaf in parameters.items()}
        buffers = {name: leaf[m].clone() for name, leaf in models.buffers.items()}  # layers update them in place
        with torch.enable_grad():
            outputs = self._wide(self._call(parameters, buffers, x))
        return Pass(parameters, outputs, buffers)

    def _forward(self, model: ModelState, x: Tensor) -> Tensor:
        parameters = {name: self._laid_out(leaf) for name, leaf in model.parameters.items()}
        return self._call(parameters, model.buffers, x)

    def _call(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        """Outputs of one model, without a model axis, in the network's mode."""
        return functional_call(self.network, (parameters, buffers, self._frozen_laid_out), (x,))  # type: ignore[no-any-return]

    @cached_property
    def _frozen_laid_out(self) -> dict[str, Tensor]:
        return {name: self._laid_out(leaf) for name, leaf in self.frozen.items()}

    def _stacked(self, models: ModelState) -> dict[str, Tensor]:
        """All parameters of the models, leaves [M, ...]; the frozen ones are views."""
        num_models = _num_models(models)
        return models.parameters | {name: leaf.expand(num_models, *leaf.shape) for name, leaf in self.frozen.items()}

    def _laid_out(self, leaf: Tensor) -> Tensor:
        """Images or convolution weights in the task's memory format; everything else as it is."""
        if not self.channels_last or leaf.ndim != 4:
            return leaf
        # `contiguous` would leave a leaf of one channel as it is, and convolutions then fall back to the other format
        return leaf.to(memory_format=torch.channels_last)

    def _wide(self, outputs: Tensor) -> Tensor:
        """Losses and probabilities are taken in the models' own type, also where autocast computed in a narrower."""
        return outputs.to(self.dtype)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-loss of each sample and model, [B, M], in nats (regression: ½(ŷ − y)², a constant left out).

        Args:
            outputs: [B, M, K] or [B, M, L, K].
            y: labels [B] or [B, L], the same for every model; classes may be the probabilities of `soft_labels`.
        """
        return self._losses(outputs, self._for_each_model(outputs, y.unsqueeze(1)))

    def sample_losses(self, models: ModelState, data: ClientData, rows_per_pass: int = 1024) -> Tensor:
        """Losses [N, M] of all samples of a client, in evaluation mode and some rows at a time."""
        x, y = data.x, data.y
        parts = [slice(lo, lo + rows_per_pass) for lo in range(0, max(len(x), 1), rows_per_pass)]
        return torch.cat([self.losses(self.outputs(models, x[rows]), y[rows]) for rows in parts])

    def _for_each_model(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Labels with a model axis of the right length, [B, M] or [B, M, L]; soft ones of many classes [..., C]."""
        return y.expand(outputs.shape if self._soft(y) and self.target.kind == "multiclass" else outputs.shape[:-1])

    def _soft(self, y: Tensor) -> bool:
        """Whether classes are given as probabilities."""
        return y.is_floating_point() and self.target.kind != "regression"

    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        """Labels for distillation: share·y + (1 − share)·the prediction of another model.

        The gradient of the cross-entropy to these is that of share·CE(y) + (1 − share)·KL(prediction ‖ model), as the
        entropy of the prediction is a constant; for regression the same holds of the squared errors.

        Args:
            outputs: of the other model, [B, K] or [B, L, K]; never differentiated.
            y: labels [B] or [B, L].
            share: in [0, 1].

        Returns:
            Probabilities [B, C] or [B, L, C]; of the class 1 alone [B] (binary); means [B] (regression).
        """
        outputs = outputs.detach()
        if self.target.kind == "multiclass":
            classes = torch.arange(self.target.num_classes, device=y.device)
            hard, predicted = (y.unsqueeze(-1) == classes).to(outputs.dtype), torch.softmax(outputs, -1)
        elif self.target.kind == "binary":
            hard, predicted = y.to(outputs.dtype), torch.sigmoid(outputs[..., 0])
        else:
            hard, predicted = y, outputs[..., 0]
        return share * hard + (1 - share) * predicted

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self._soft(y):
            losses = self._soft_losses(outputs, y)
        elif self.target.kind == "binary":
            logit = outputs[..., 0]
            losses = -F.logsigmoid(torch.where(y > 0, logit, -logit))
        elif self.target.kind == "regression":
            losses = 0.5 * (outputs[..., 0] - y).square()
        else:
            losses = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
        return losses.mean(-1) if self.target.positions else losses

    def _soft_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy to probabilities, [B, M] or [B, M, L]."""
        if self.target.kind == "multiclass":
            return -(y * torch.log_softmax(outputs, -1)).sum(-1)
        logit = outputs[..., 0]
        return -y * F.logsigmoid(logit) - (1 - y) * F.logsigmoid(-logit)

    # ------------------------------------------------------------------ gradient
    def value_and_grad(
        self, models: ModelState, batch: Batch, weight: Tensor | None = None, *, training: bool = True
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Gradient of (1/B) Σ_b w_bm ℓ(θ_m; b) with respect to each θ_m.

        The sum is divided by the number of samples, not of weights: it is the gradient of FedEM's surrogate.

        Args:
            models: M models.
            batch: B samples for all models, or M batches on a leading axis, one for each.
            weight: [B, M]; None: one for every sample.
            training: in training mode; else without dropout and with the running statistics of BatchNorm, so that each
                sample has a gradient of its own.

        Returns:
            The mean loss [M], the gradient and the buffers after the step, leaves [M, ...].
        """
        if self.one_by_one:
            each = self.each_gradient(models, batch, weight, training=training)
            return tree.stack(list(each))  # type: ignore[no-any-return]
        share = self._share(models, batch, weight)
        if isinstance(self.network, ClosedForm) and not self.target.positions:
            outputs, y, gradient = self._closed_form(self.network, models, batch, share)
            return (self._losses(outputs, y) * share).sum(0), gradient, models.buffers
        self._set_mode(training)
        return self._by_vmap(models, batch, share, batch.index.ndim == 2)

    def grad(
        self, models: ModelState, batch: Batch, weight: Tensor | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gradient and buffers of `value_and_grad`, without the loss where that is work of its own."""
        if isinstance(self.network, ClosedForm) and not self.target.positions:
            return self._closed_form(self.network, models, batch, self._share(models, batch, weight))[2], models.buffers
        return self.value_and_grad(models, batch, weight)[1:]

    @property
    def one_by_one(self) -> bool:
        """The models take separate passes, so that `each_gradient` costs no more than `value_and_grad`."""
        return self.model_axis == "loop" and (not isinstance(self.network, ClosedForm) or self.target.positions)

    def _set_mode(self, training: bool) -> None:
        """Training mode, or that of `value_and_grad` without: an LSTM stays in training mode, for cuDNN's sake."""
        self.network.train()
        for layer in () if training else self.network.modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd):
                layer.eval()

    def each_gradient(
        self, models: ModelState, batch: Batch, weight: Tensor | None = None, *, training: bool = True
    ) -> Iterator[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
        """The results of `value_and_grad` for one model after another, without their leading axis.

        A parameter that the loss does not reach has the gradient 0.
        """
        share, per_model = self._share(models, batch, weight), batch.index.ndim == 2
        known = [] if self.memory is None else self.memory.take(models, batch.x)
        self._set_mode(training)
        shared_x = None if per_model else self._laid_out(batch.x)
        for m in range(_num_models(models)):
            y = batch.y[m] if per_model else batch.y  # soft labels come along as they are
            if known:
                one = known.pop(0)
            else:
                one = self._pass(models, m, self._laid_out(batch.x[m]) if shared_x is None else shared_x)
            with torch.enable_grad():
                loss = (self._losses(one.outputs, y) * share[:, m]).sum()
            yield loss.detach(), _gradient(loss, one.parameters), one.buffers

    def full_gradient(
        self, models: ModelState, data: ClientData, rows_per_pass: int = 1024, *, training: bool = True
    ) -> tuple[Tensor, Tree]:
        """Mean loss [M] and gradient, leaves [M, ...], over all samples of a client, some rows at a time.

        The mode is that of `value_and_grad`.
        """
        batch, num_rows = data.batch, len(data.mask)
        total = data.num_samples.clamp(min=1)
        parts = []
        for lo in range(0, max(num_rows, 1), rows_per_pass):
            some: Batch = tree.index(batch, slice(lo, lo + rows_per_pass))
            loss, gradient, _ = self.value_and_grad(models, some, training=training)
            parts.append((loss, gradient) if num_rows <= rows_per_pass else _scaled(loss, gradient, some, total))
        return tree.map_leaves(lambda *leaves: sum(leaves), *parts)  # type: ignore[no-any-return]

    def hessian_vector(self, models: ModelState, batch: Batch, vector: dict[str, Tensor]) -> dict[str, Tensor]:
        """Product of the Hessian of each model's mean loss on a batch with a vector, leaves [M, ...].

        Needs a network that is twice differentiable.
        """
        share, axis = self._share(models, batch, None), 0 if batch.index.ndim == 2 else None
        self.network.train()
        operands = (models.parameters, models.buffers, vector, batch.x, batch.y, share)
        if self.model_axis == "vmap":
            return vmap(self._curvature, in_dims=(0, 0, 0, axis, axis, 1))(*operands)
        each = []
        for m in range(_num_models(models)):
            parameters, buffers, direction = tree.index(operands[:3], m)
            x, y = (batch.x, batch.y) if axis is None else (batch.x[m], batch.y[m])
            each.append(self._curvature(parameters, buffers, direction, x, y, share[:, m]))
        return tree.stack(each)  # type: ignore[no-any-return]

    def _curvature(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        vector: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        share: Tensor,
    ) -> dict[str, Tensor]:
        """The Hessian-vector product of one model: the gradient of ⟨gradient, vector⟩."""

        def along(parameters: dict[str, Tensor]) -> Tensor:
            gradient = grad(lambda leaves: self.objective(leaves, buffers, x, y, share)[0])(parameters)
            return torch.stack([(gradient[name] * leaf).sum() for name, leaf in vector.items()]).sum()

        return grad(along)(parameters)  # type: ignore[no-any-return]

    @staticmethod
    def _share(models: ModelState, batch: Batch, weight: Tensor | None) -> Tensor:
        """Factor of each sample's loss in each model's objective, [B, M]."""
        dtype = next(iter(models.parameters.values())).dtype
        mask = (batch.mask.T if batch.index.ndim == 2 else batch.mask.unsqueeze(1)).to(dtype)
        share = (mask if weight is None else weight * mask) / mask.sum(0).clamp(min=1)
        return share.expand(-1, _num_models(models))

    def _closed_form(
        self, network: ClosedForm, models: ModelState, batch: Batch, share: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        per_model = batch.index.ndim == 2
        outputs = self._wide(network.stacked_outputs(self._stacked(models), batch.x, per_model))
        y = self._for_each_model(outputs, batch.y.transpose(0, 1) if per_model else batch.y.unsqueeze(1))
        residual = self._residual(outputs, y) * share.unsqueeze(-1)
        gradient = network.stacked_gradient(batch.x, residual, per_model)
        return outputs, y, {name: gradient[name] for name in models.parameters}

    def _residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of the loss of each sample with respect to its outputs, [B, M, K]."""
        if self.target.kind == "binary":
            return torch.sigmoid(outputs) - y.unsqueeze(-1)
        if self.target.kind == "regression":
            return outputs - y.unsqueeze(-1)
        if self._soft(y):
            return torch.softmax(outputs, -1) - y
        classes = torch.arange(self.target.num_classes, device=y.device)
        return torch.softmax(outputs, -1) - (y.unsqueeze(-1) == classes).to(outputs.dtype)

    def objective(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Σ_b share_b ℓ(θ; b) of one model, without a model axis, in the network's mode; and its buffers afterwards."""
        buffers = {name: leaf.clone() for name, leaf in buffers.items()}  # layers update them in place
        outputs = self._wide(self._call(parameters, buffers, x))
        return (self._losses(outputs, y) * share).sum(), buffers

    def _by_vmap(
        self, models: ModelState, batch: Batch, share: Tensor, per_model: bool
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        axis = 0 if per_model else None
        function = vmap(grad_and_value(self.objective, has_aux=True), in_dims=(0, 0, axis, axis, 1))
        gradient, (loss, buffers) = function(models.parameters, models.buffers, batch.x, batch.y, share)
        return loss, gradient, buffers

    # ------------------------------------------------------------------ prediction
    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """Prediction of a mixture of models: log of the mixed probabilities, or the mixed mean (regression).

        Args:
            weights: [M], non-negative, summing to 1; a component of weight 0 takes no part.
            outputs: [B, M, K] or [B, M, L, K].

        Returns:
            Log-probabilities [B, C] or [B, L, C] (binary: C = 2, probabilities of a mixture below the smallest normal
            number counting as that), or the mean [B, 1].
        """
        shape = (1, -1, *[1] * (outputs.ndim - 2))
        if self.target.kind == "regression":
            return (weights.view(shape) * outputs).sum(1)
        if self.target.kind == "multiclass":
            return torch.logsumexp(weights.log().view(shape) + torch.log_softmax(outputs, -1), dim=1)
        logit = outputs[..., 0]
        if logit.shape[1] == 1:
            both = torch.stack([F.logsigmoid(-logit[:, 0]), F.logsigmoid(logit[:, 0])])
        else:  # two sums of probabilities are exact on both sides and far cheaper than two log-sum-exps
            mixed = torch.stack([(weights * torch.sigmoid(part)).sum(1) for part in (-logit, logit)])
            both = mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()
        return both.movedim(0, -1)

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and hit of each sample, both [B].

        Args:
            prediction: log-probabilities [B, C] or [B, L, C], or the mean [B, 1].
            y: labels [B] or [B, L].

        Returns:
            Log-loss in nats and 1 for a correct prediction (averaged over positions), or half and whole squared error.
        """
        if self.target.kind == "regression":
            square = (prediction[..., 0] - y).square()
            return 0.5 * square, square
        if self.target.kind == "binary":
            negative, positive = prediction.unbind(-1)
            return -torch.where(y > 0, positive, negative), ((positive > negative) == (y > 0)).to(positive.dtype)
        loss = -prediction.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        hit = (prediction.argmax(-1) == y).to(loss.dtype)
        return (loss.mean(-1), hit.mean(-1)) if self.target.positions else (loss, hit)


def _scaled(loss: Tensor, gradient: Tree, some: Batch, total: Tensor) -> Tree:
    """Loss and gradient of a part of the samples as that part of the mean over all."""
    return tree.scale((loss, gradient), some.mask.sum(dtype=torch.float64) / total)


def _gradient(loss: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradient of a loss [], 0 for parameters that it does not depend on."""
    if not loss.requires_grad:  # it depends on none
        return tree.zeros_like(parameters)  # type: ignore[no-any-return]
    leaves = list(parameters.values())
    gradient = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, gradient, strict=True))


def _num_models(models: ModelState) -> int:
    return next(iter(models.parameters.values())).shape[0]
