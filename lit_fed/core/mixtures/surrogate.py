"""Partial first-order surrogates, which federated surrogate optimisation minimises in place of local objectives.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Section 3.4, Definition 1, Appendices D and F.

The clients minimise Σ_i ω_i f_i(u, v_i) over shared models u and a local variable v_i of each client. A function g is
a partial first-order surrogate of f_i near (u⁰, v⁰) if

1. g(u, v) ≥ f_i(u, v) everywhere;
2. r = g − f_i is differentiable and L-smooth in u, with r(u⁰, v⁰) = 0 and ∇_u r(u⁰, v⁰) = 0;
3. g(u, v⁰) − g(u, v) = d(v⁰, v) ≥ 0 for every u and every minimiser v of g(u, ·), with d = 0 only for v = v⁰.

By the third condition the best v does not depend on u. `check_surrogate` tests the conditions numerically.
"""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ModelState, Tree
from lit_fed.errors import ConfigError

__all__ = ["Surrogate", "SurrogateReport", "check_surrogate"]

Local = TypeVar("Local", bound=Any)
Bound = TypeVar("Bound", bound=Any)

STEP = 1e-4
"""Step length of the finite differences in the check."""


class Surrogate(ABC, Generic[Local, Bound]):
    """The objective of one client and its surrogates.

    Subclasses are frozen dataclasses of hyper-parameters. Every method is a pure function of one client, which runs
    under `torch.func.vmap`; `models` are u, leaves [M, ...], `local` is v_i and `bound` is g, both trees of tensors of
    the subclass's choice. A bound is a named tuple with a field `value`, [], which is g(u⁰, v⁰) = f_i(u⁰, v⁰).
    """

    num_models: ClassVar[int] = 1
    """M, the number of models in u; a hyper-parameter of mixtures."""

    weighting: ClassVar[Literal["samples", "uniform"]] = "samples"
    """ω_i: proportional to a client's samples, or the same for all."""

    # ------------------------------------------------------------------ one round
    @abstractmethod
    def local_init(self, task: Task, models: ModelState, data: ClientData) -> Local:
        """v_i before the client's first round."""

    def losses(self, task: Task, models: ModelState, batch: Batch) -> Tensor | None:
        """Losses [B, M] of samples under u⁰, in evaluation mode, for `build`; None if it needs none."""
        return None

    def sample_losses(
        self, task: Task, models: ModelState, data: ClientData, rows_per_pass: int = 1024
    ) -> Tensor | None:
        """`losses` of all samples of a client, some rows at a time."""
        rows, batch = range(0, max(len(data.mask), 1), rows_per_pass), data.batch
        parts = [self.losses(task, models, tree.index(batch, slice(lo, lo + rows_per_pass))) for lo in rows]
        return None if parts[0] is None else torch.cat(parts)  # type: ignore[arg-type]

    @abstractmethod
    def build(self, task: Task, models: ModelState, local: Local, data: ClientData, losses: Tensor | None) -> Bound:
        """The surrogate g near (u⁰, v⁰) = (models, local); `losses` are those of all samples, [N, M], or None."""

    @abstractmethod
    def argmin_local(self, bound: Bound) -> Local:
        """The minimiser of g(u, ·), the same for every u."""

    @abstractmethod
    def gradient(
        self, task: Task, bound: Bound, local: Local, models: ModelState, batch: Batch
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The gradient of g(·, v) at u, estimated on a batch, and the buffers afterwards; leaves [M, ...]."""

    # ------------------------------------------------------------------ prediction
    def outputs(self, task: Task, models: ModelState, x: Tensor) -> Tree | None:
        """Predictions of samples [B, ...] that depend on u alone; None without any."""
        return task.outputs(models, x)

    @abstractmethod
    def log_prob(self, task: Task, local: Local, x: Tensor, outputs: Any) -> Tensor:
        """Prediction of the client, as `Algorithm.log_prob`, from v_i and `outputs`."""

    # ------------------------------------------------------------------ the definition, for the checker
    @abstractmethod
    def objective(self, task: Task, models: ModelState, local: Local, data: ClientData) -> Tensor:
        """f_i(u, v), []."""

    @abstractmethod
    def value(self, task: Task, bound: Bound, models: ModelState, local: Local, data: ClientData) -> Tensor:
        """g(u, v), []."""

    @abstractmethod
    def distance(self, old: Local, new: Local) -> Tensor:
        """d(old, new), []."""

    def distance_on(self, task: Task, data: ClientData, old: Local, new: Local) -> Tensor:
        """d(old, new), [], if it depends on the kind of samples; by default it does not."""
        return self.distance(old, new)

    @abstractmethod
    def random_local(self, task: Task, models: ModelState, data: ClientData, rng: torch.Generator) -> Local:
        """Any v; without a local variable, the result of `local_init`."""


class SurrogateReport(NamedTuple):
    """The largest violation of each condition over all probes; a surrogate has none, up to rounding."""

    below: float  # 1: f(u, v) − g(u, v)
    contact: float  # 2: |g − f| at (u⁰, v⁰)
    slope: float  # 2: |derivative of g − f| at (u⁰, v⁰), along a direction of length 1 in u
    not_least: float  # 3: g(u, v*) − g(u, v), where v* = argmin_local
    distance: float  # 3: |g(u, v⁰) − g(u, v*) − d(v⁰, v*)|, |d(v⁰, v⁰)|
    negative: float  # 3: −d(v⁰, v*)
    gradient: float  # `gradient` on all samples against finite differences of `value`, along a direction


def check_surrogate(
    surrogate: Surrogate, task: Task, data: ClientData, *, probes: int = 8, scale: float = 1.0,
    tolerance: float = 1e-6, seed: int = 0,
) -> SurrogateReport:  # fmt: skip
    """Probe the conditions on a surrogate at random models and local variables.

    Two conditions are not probed: smoothness, and d = 0 for equal arguments only.

    Args:
        surrogate: the surrogate.
        task: network and loss, in float64; training and evaluation must be the same function.
        data: samples of one client.
        probes: number of points (u⁰, v⁰).
        scale: standard deviation of the random models around the initial ones.
        tolerance: largest violation that counts as rounding.
        seed: seed of all draws.

    Returns:
        The largest violations.

    Raises:
        ConfigError: if one exceeds the tolerance, or is not a number; or if the task cannot be probed.
    """
    if task.dtype != torch.float64 or not task.same_in_training:
        raise ConfigError("a surrogate is checked in float64, and without BatchNorm or dropout")
    rng = torch.Generator().manual_seed(seed)
    start = task.init(surrogate.num_models, seed)
    rows = []
    for _ in range(probes):
        here, there, direction = _draw(start, rng, scale), _draw(start, rng, scale), _direction(start, rng)
        old, other = (surrogate.random_local(task, models, data, rng) for models in (here, there))
        rows.append(_probe(surrogate, task, data, here, there, direction, old, other))
    report = SurrogateReport(*torch.tensor(rows, dtype=torch.float64).amax(0).tolist())
    broken = {name: value for name, value in report._asdict().items() if not value <= tolerance}
    if broken:
        found = ", ".join(f"{name} {value:.3g}" for name, value in broken.items())
        raise ConfigError(f"{type(surrogate).__name__} is no partial first-order surrogate: {found}")
    return report


def _probe(
    surrogate: Surrogate, task: Task, data: ClientData, here: ModelState, there: ModelState,
    direction: dict[str, Tensor], old: Any, other: Any,
) -> list[float]:  # fmt: skip
    """Violations of the surrogate near (here, old), probed there and at another point."""
    bound = surrogate.build(task, here, old, data, surrogate.losses(task, here, data.batch))
    new = surrogate.argmin_local(bound)

    def f(models: ModelState, local: Any) -> float:
        return float(surrogate.objective(task, models, local, data))

    def g(models: ModelState, local: Any) -> float:
        return float(surrogate.value(task, bound, models, local, data))

    gradient, _ = surrogate.gradient(task, bound, new, there, data.batch)
    d = float(surrogate.distance_on(task, data, old, new))
    gaps = [abs(g(u, old) - g(u, new) - d) for u in (here, there)]
    return [
        _largest(f(u, v) - g(u, v) for u in (here, there) for v in (old, new, other)),
        _largest([abs(g(here, old) - f(here, old)), abs(float(bound.value) - f(here, old))]),
        abs(_derivative(lambda u: g(u, old) - f(u, old), here, direction)),
        _largest(g(u, new) - g(u, v) for u in (here, there) for v in (old, other)),
        _largest([*gaps, abs(float(surrogate.distance(old, old)))]),
        _largest([-d]),
        abs(float(tree.dot(gradient, direction)) - _derivative(lambda u: g(u, new), there, direction)),
    ]


def _draw(models: ModelState, rng: torch.Generator, scale: float) -> ModelState:
    """Models around the given ones."""
    noise = {name: torch.randn(p.shape, generator=rng, dtype=p.dtype) for name, p in models.parameters.items()}
    return models._replace(parameters=tree.add(models.parameters, tree.scale(noise, scale)))


def _direction(models: ModelState, rng: torch.Generator) -> dict[str, Tensor]:
    """A random direction of length 1."""
    zeros = models._replace(parameters=tree.zeros_like(models.parameters))
    drawn = _draw(zeros, rng, 1.0).parameters
    return tree.scale(drawn, 1 / float(tree.norm(drawn)))  # type: ignore[no-any-return]


def _derivative(function: Callable[[ModelState], float], models: ModelState, direction: dict[str, Tensor]) -> float:
    """Central difference along a direction."""
    ends = [
        function(models._replace(parameters=tree.add(models.parameters, tree.scale(direction, step))))
        for step in (STEP, -STEP)
    ]
    return (ends[0] - ends[1]) / (2 * STEP)


def _largest(violations: Any) -> float:
    """The largest of some numbers and 0; NaN if one is."""
    numbers = [0.0, *violations]
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)
