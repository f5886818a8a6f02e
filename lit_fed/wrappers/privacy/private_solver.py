"""The local solver under privacy of samples: clipped gradients and noise in the place of gradients (DP-SGD).

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. "Deep Learning with Differential Privacy". CCS 2016.
https://arxiv.org/abs/1607.00133, Algorithm 1.

Symbols:
    g_s    -> PrivateTask.clipped_sum  gradient of sample s for all models jointly, with its weights
    C, σ   -> clip_norm, noise_multiplier
    L      -> expected                 what a batch holds on average, not what it holds
Deviations:
    Penalties are added after the noise: they are functions of what is known already.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple, NoReturn

from torch import Tensor

from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.noise import protecting_normals
from lit_fed.core.seeds import Secret
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ModelState
from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy.private_task import PrivateTask, refuse_gradient

__all__ = ["NoisyStep", "PrivateSolver"]


class NoisyStep(NamedTuple):
    """What one step of one client releases."""

    clip_norm: float  # C
    noise: Tensor | float  # z, standard deviation of the noise over C
    expected: Tensor  # [] L, samples in a batch on average
    secret: Secret
    round_idx: int
    phase: str
    client_id: Tensor  # []
    step: Tensor  # [] which of its steps in this phase


@dataclass(frozen=True)
class PrivateSolver(LocalSolver):
    """The local solver of one client in one step, which it may take once.

    Args:
        noisy: what the step releases.
    """

    noisy: NoisyStep = None  # type: ignore[assignment] # fields of the solver have defaults, so this has to have one
    taken: list[bool] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, solver: LocalSolver, noisy: NoisyStep) -> PrivateSolver:
        """The same solver with private gradients."""
        return cls(**{one.name: getattr(solver, one.name) for one in fields(LocalSolver)}, noisy=noisy)

    def _gradient(
        self, task: Task, models: ModelState, batch: Batch, weight: Tensor | None, *, with_loss: bool
    ) -> tuple[Tensor | None, dict[str, Tensor], dict[str, Tensor]]:
        """The clipped and noised gradient over the expected batch; buffers stay."""
        assert isinstance(task, PrivateTask)
        if self.taken:
            raise ConfigError("--model.privacy ExamplePrivacy charges one gradient in a local step, and this takes two")
        self.taken.append(True)
        loss, total = task.clipped_sum(models, batch, weight, self.noisy.clip_norm)
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
        """Refused: a gradient that comes from elsewhere is neither clipped nor noised."""
        refuse_gradient()

    _advance_each = update
