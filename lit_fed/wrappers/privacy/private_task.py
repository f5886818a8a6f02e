"""Gradients of single samples, clipped and added up: the only gradients of a task under privacy of samples."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from lit_fed.core import tree
from lit_fed.core.networks.stacked_network import Forward, num_models_of
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ModelState
from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy.clipping import clip_factor

__all__ = ["PrivateTask", "refuse_gradient"]

GRADIENT_BYTES = 2**24
"""Memory that the gradients of single samples may take at a time; small enough for the caches of a CPU to help."""


class PrivateTask(Task):
    """A task that gives the sum of clipped gradients and no other gradient, whoever asks."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """The same task, protected."""
        return cls(**{one.name: getattr(task, one.name) for one in fields(task)})

    def clipped_sum(
        self, models: ModelState, batch: Batch, weight: Tensor | None, bound: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Σ_s f_s·g_s, where g_s are the gradients of sample s for all models as one vector and f_s shortens it.

        Every sample passes through the network alone, so that g_s is a function of s.

        Args:
            models: M models.
            batch: B samples for all models.
            weight: of each sample's loss under each model, [B, M]; None: one for all.
            bound: C, the largest norm of f_s·g_s.

        Returns:
            The sum of weighted losses [M] and of clipped gradients, leaves [M, ...].
        """
        dtype = next(iter(models.parameters.values())).dtype
        mask = batch.mask.to(dtype).unsqueeze(1).expand(-1, num_models_of(models))
        weight = mask if weight is None else weight * mask
        if self.closed_form is not None:
            return self._by_norms(models, batch, weight, bound)
        self.set_mode(True)
        call, x = self._begun(batch.x, training=True)
        at_once = max(1, 8 * GRADIENT_BYTES // max(tree.bits(models.parameters), 1))
        parts = []
        for lo in range(0, len(x), at_once):
            rows = slice(lo, lo + at_once)
            gradient, losses = self._each(models, x[rows], batch.y[rows], call)
            squares = torch.stack([_squares(leaf) for leaf in tree.leaves(gradient)]).sum(0)  # [b, M]
            shares = weight[rows] * _factors(squares, weight[rows], bound)
            parts.append(((losses * weight[rows]).sum(0), tree.map_leaves(lambda g, s=shares: _mixed(g, s), gradient)))
        return tree.map_leaves(lambda *leaves: sum(leaves), *parts)  # type: ignore[no-any-return]

    def _by_norms(
        self, models: ModelState, batch: Batch, weight: Tensor, bound: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The same where norms are known without gradients, which are then taken once of the weighted sum."""
        affine: Any = self.closed_form
        with torch.autocast(batch.x.device.type, enabled=False):  # rounded coarsely, terms would be longer than C
            outputs = affine.outputs(self._stacked(models), batch.x, False)
            y = self.target.for_models(batch.y.unsqueeze(1), outputs)
            losses, residual = self.trained_on.losses(outputs, y), self.trained_on.residual(outputs, y)
            squares = affine.squared_norms(batch.x, residual, models.parameters.keys())
            shares = weight * _factors(squares, weight, bound)
            gradient = affine.gradient(batch.x, residual * shares.unsqueeze(-1), False)
        return (losses * weight).sum(0), {name: gradient[name] for name in models.parameters}

    def _each(self, models: ModelState, x: Tensor, y: Tensor, call: Forward) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients of b samples, leaves [b, M, ...], and their losses [b, M]."""

        def one(model: ModelState, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            share = x.new_ones(1, dtype=self.dtype)
            function = grad_and_value(self.objective, has_aux=True)
            gradient, (loss, _) = function(*model, x.unsqueeze(0), y.unsqueeze(0), share, call)
            return gradient, loss

        if any(isinstance(layer, nn.RNNBase) for layer in self.network.modules()):  # vmap does not know them
            samples, count = list(zip(x, y, strict=True)), num_models_of(models)
            rows = [tree.stack([one(tree.index(models, m), *sample) for m in range(count)]) for sample in samples]
            return tree.stack(rows)  # type: ignore[no-any-return]
        every = vmap(one, in_dims=(None, 0, 0), randomness="different")
        if self.model_axis == "vmap":
            return vmap(every, in_dims=(0, None, None), out_dims=1)(models, x, y)
        each = [every(tree.index(models, m), x, y) for m in range(num_models_of(models))]
        return tree.map_leaves(lambda *leaves: torch.stack(leaves, dim=1), *each)  # type: ignore[no-any-return]

    @property
    def one_by_one(self) -> bool:
        """Never: a sample's gradients are clipped for all models together."""
        return False

    def value_and_grad(self, *_: Any, **__: Any) -> NoReturn:
        """Refused, as all gradients are that are not clipped sample by sample."""
        refuse_gradient()

    grad = each_gradient = full_gradient = hessian_vector = value_and_grad


def refuse_gradient() -> NoReturn:
    """Refuse a gradient that is neither clipped nor noised."""
    raise ConfigError(
        "--model.privacy ExamplePrivacy protects the steps of the local solver alone, and the algorithm takes "
        "gradients beside it; choose another algorithm, or leave it out"
    )


def _squares(leaf: Tensor) -> Tensor:
    """Squared norms [b, M] float64 of gradients [b, M, ...]."""
    norms: Tensor = torch.linalg.vector_norm(leaf.flatten(2), dim=2, dtype=torch.float64)
    return norms.square()


def _factors(squares: Tensor, weight: Tensor, bound: float) -> Tensor:
    """What shortens each sample's gradients, [b, 1], from the squared norms [b, M] of those without weights."""
    norms = (squares * weight.double().square()).sum(1, keepdim=True).sqrt()
    return clip_factor(norms, bound).to(weight.dtype)


def _mixed(gradient: Tensor, shares: Tensor) -> Tensor:
    """Σ_s shares_sm·g_sm, [M, ...]."""
    return torch.einsum("bm...,bm->m...", gradient, shares)
