"""The local solver under example-level privacy: clipped gradients with noise instead of gradients (DP-SGD).

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. "Deep Learning with Differential Privacy". CCS 2016.
https://arxiv.org/abs/1607.00133, Algorithm 1.

Symbols:
    g_s    -> PrivateTask.clipped_sum  gradient of sample s for all models jointly, with its weights
    C, σ   -> clip_norm, noise_multiplier
    L      -> expected                 expected size of a batch, not its actual size
Deviations:
    Penalties are added after the noise: they are functions of public values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver, StepInputs
from lit_fed.core.networks.stacked_network import num_models_of
from lit_fed.core.noise import protecting_normals
from lit_fed.core.objective import Objective
from lit_fed.core.seeds import Secret
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, Leaves, ModelState
from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy.clipping import clip_factor

__all__ = ["NoisyStep", "PrivateSolver", "PrivateTask", "refuse_gradient"]

GRADIENT_BYTES = 2**24
"""Memory that the gradients of single samples may take at a time; small enough for the caches of a CPU to help."""


class PrivateTask(Task):
    """A task whose only gradient is the sum of clipped gradients."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """The same task, protected."""
        return cls(**{one.name: getattr(task, one.name) for one in fields(task)})

    def clipped_sum(
        self, models: ModelState, batch: Batch, weight: Tensor | None, bound: float,
        objective: Objective | None = None, moving: frozenset[str] | None = None,
    ) -> tuple[Tensor, Leaves]:  # fmt: skip
        """Σ_s f_s·g_s, where g_s is the gradient of sample s for all models as one vector and f_s scales it down.

        Every sample passes through the network separately, so g_s depends only on s.

        Args:
            models: M models.
            batch: B samples for all models.
            weight: weight of each sample's loss under each model, [B, M]; None: 1.
            bound: C, the largest norm of f_s·g_s.
            objective: the loss of each sample; None: that of the task.
            moving: names of the parameters to differentiate by; None: all.

        Returns:
            The sum of weighted losses [M] and of clipped gradients, leaves [M, ...].

        Raises:
            ConfigError: if the objective is a loss over a batch.
        """
        if objective is not None and objective.over_batch:
            raise ConfigError(
                "--model.privacy ExamplePrivacy bounds the gradient of each sample, and the algorithm's objective is a "
                "loss over a batch, in which a sample has no gradient of its own; choose another algorithm, or leave "
                "it out"
            )
        dtype = next(iter(models.parameters.values())).dtype
        mask = batch.mask.to(dtype).unsqueeze(1).expand(-1, num_models_of(models))
        weight = mask if weight is None else weight * mask
        if self.closed_form is not None and objective is None:
            return self._by_norms(models, batch, weight, bound, moving)
        self.set_mode(True)
        features = objective is not None and objective.uses_features
        begun = self._begun_with_features if features else self._begun
        call, x = begun(batch.x, training=True)
        at_once = max(1, 8 * GRADIENT_BYTES // max(tree.bits(tree.named(models.parameters, moving)), 1))
        parts = []
        for lo in range(0, len(x), at_once):
            rows = slice(lo, lo + at_once)
            own = None if objective is None else objective.of_rows(rows)
            gradient, losses = self._each(models, x[rows], batch.y[rows], call, own, moving)
            squares = torch.stack([_squares(leaf) for leaf in tree.leaves(gradient)]).sum(0)  # [b, M]
            shares = weight[rows] * _factors(squares, weight[rows], bound)
            parts.append(((losses * weight[rows]).sum(0), tree.map_leaves(lambda g, s=shares: _mixed(g, s), gradient)))
        return tree.map_leaves(lambda *leaves: sum(leaves), *parts)  # type: ignore[no-any-return]

    def _by_norms(
        self, models: ModelState, batch: Batch, weight: Tensor, bound: float, moving: frozenset[str] | None
    ) -> tuple[Tensor, Leaves]:
        """The same if norms have a closed form; one gradient of the weighted sum is then enough."""
        affine: Any = self.closed_form
        with torch.autocast(batch.x.device.type, enabled=False):  # coarse rounding would make terms longer than C
            outputs = affine.outputs(self._stacked(models), batch.x, False)
            y = self.target.for_models(batch.y.unsqueeze(1), outputs)
            losses, residual = self.trained_on.losses(outputs, y), self.trained_on.residual(outputs, y)
            names = tree.named(models.parameters, moving).keys()
            squares = affine.squared_norms(batch.x, residual, names)
            shares = weight * _factors(squares, weight, bound)
            gradient = affine.gradient(batch.x, residual * shares.unsqueeze(-1), False)
        return (losses * weight).sum(0), {name: gradient[name] for name in names}

    def _each(
        self,
        models: ModelState,
        x: Tensor,
        y: Tensor,
        call: Callable[..., Any],
        objective: Objective | None,
        moving: frozenset[str] | None,
    ) -> tuple[Leaves, Tensor]:
        """Gradients of b samples, leaves [b, M, ...], and their losses [b, M]."""
        count = num_models_of(models)
        constants, rows = ([], []) if objective is None else objective.operands(count)

        def one(
            model: ModelState, constants: list[Tensor], x: Tensor, y: Tensor, rows: list[Tensor]
        ) -> tuple[Leaves, Tensor]:
            share = x.new_ones(1, dtype=self.dtype)
            own = None if objective is None else objective.with_operands(constants, [row.unsqueeze(0) for row in rows])
            operands = (model.buffers, x.unsqueeze(0), y.unsqueeze(0), share, call, own)
            function = grad_and_value(lambda by: self.weighted_loss(model.parameters | by, *operands), has_aux=True)
            gradient, (loss, _) = function(tree.named(model.parameters, moving))
            return gradient, loss

        def model(m: int) -> tuple[ModelState, list[Tensor]]:
            return tree.index((models, constants), m)  # type: ignore[no-any-return]

        if any(isinstance(layer, nn.RNNBase) for layer in self.network.modules()):  # vmap does not know them
            samples = [
                [one(*model(m), x[b], y[b], [row[b, m] for row in rows]) for m in range(count)] for b in range(len(x))
            ]
            return tree.stack(list(map(tree.stack, samples)))  # type: ignore[no-any-return]
        every = vmap(one, in_dims=(None, None, 0, 0, 0), randomness="different")
        if self.model_axis == "vmap":
            return vmap(every, in_dims=(0, 0, None, None, 1), out_dims=1)(models, constants, x, y, rows)
        each = [every(*model(m), x, y, [row[:, m] for row in rows]) for m in range(count)]
        return tree.map_leaves(lambda *leaves: torch.stack(leaves, dim=1), *each)  # type: ignore[no-any-return]

    def value_and_grad(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: gradients must be clipped per sample."""
        refuse_gradient()

    full_gradient = hessian_vector = value_and_grad


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
    """Clipping factor of each sample's gradients, [b, 1], from their unweighted squared norms [b, M]."""
    norms = (squares * weight.double().square()).sum(1, keepdim=True).sqrt()
    return clip_factor(norms, bound).to(weight.dtype)


def _mixed(gradient: Tensor, shares: Tensor) -> Tensor:
    """Σ_s shares_sm·g_sm, [M, ...]."""
    return torch.einsum("bm...,bm->m...", gradient, shares)


class NoisyStep(NamedTuple):
    """The release of one step of one client."""

    clip_norm: float  # C
    noise: Tensor | float  # z, standard deviation of the noise over C
    expected: Tensor  # [] L, samples in a batch on average
    secret: Secret
    round_idx: int
    phase: str
    client_id: Tensor  # []
    step: Tensor  # [] index of the step in this phase


@dataclass(frozen=True)
class PrivateSolver(LocalSolver):
    """The local solver of one client for one step, usable once.

    Args:
        noisy: the release of the step.
    """

    noisy: NoisyStep = None  # type: ignore[assignment] # fields of the solver have defaults, so this has to have one
    taken: list[bool] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, solver: LocalSolver, noisy: NoisyStep) -> PrivateSolver:
        """The same solver with private gradients."""
        return cls(**{one.name: getattr(solver, one.name) for one in fields(LocalSolver)}, noisy=noisy)

    def _gradient(self, task: Task, given: StepInputs) -> tuple[Tensor, Leaves, Leaves]:
        """The clipped and noised gradient, divided by the expected batch size; buffers are unchanged."""
        if not isinstance(task, PrivateTask):
            refuse_gradient()
        if self.taken:
            raise ConfigError("--model.privacy ExamplePrivacy charges one gradient in a local step, and this takes two")
        self.taken.append(True)
        models, batch, weight = given.models, given.batch, given.weight
        loss, total = task.clipped_sum(models, batch, weight, self.noisy.clip_norm, given.objective, given.moving)
        noisy = dict(zip(total, self._noised(list(total.values())), strict=True))
        return loss / self.noisy.expected.to(loss.dtype), noisy, models.buffers

    def _noised(self, total: list[Tensor]) -> list[Tensor]:
        """(Σ_s f_s·g_s + N(0, (zC)²))/L, leaf by leaf."""
        secret, round_idx, phase, client_id, step = self.noisy[3:]
        if isinstance(self.noisy.noise, Tensor) or self.noisy.noise:
            sizes = [leaf.numel() for leaf in total]
            chances = protecting_normals(secret, round_idx, client_id, f"example/{phase}", sum(sizes), step)
            noise = (self.noisy.noise * self.noisy.clip_norm * chances).split(sizes)
            total = [leaf + one.view(leaf.shape).to(leaf.dtype) for leaf, one in zip(total, noise, strict=True)]
        return [leaf / self.noisy.expected.to(leaf.dtype) for leaf in total]

    def update(self, *_: object, **__: object) -> NoReturn:
        """Refused: a gradient from elsewhere is neither clipped nor noised."""
        refuse_gradient()
