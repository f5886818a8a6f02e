"""Differential privacy of single samples (DP-SGD) in the local steps of any algorithm that leaves them to the solver.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. "Deep Learning with Differential Privacy". CCS 2016.
https://arxiv.org/abs/1607.00133, Algorithm 1; its step stands in `core/privacy/private_solver.py`.

Symbols:
    b      -> sample_rate       probability with which a sample enters a batch, of which it tells others nothing
    C, z   -> clip_norm, noise_multiplier
    σ_π    -> mixture_noise     of Σ_s q_s in FedEM, ours
The rule that decides what is allowed: whatever a released step depends on is public, noised, or a function of that one
sample. How many samples a client has counts as public.
Deviations:
    Batches are as wide as they are drawn; `max_batch` cuts them, and the cut is accounted for.
    q_s of FedEM comes from the mixture weights of before, as in its paper, which were noised when they were new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.algorithms.base import Algorithm
from lit_fed.core.context import Context
from lit_fed.core.errors import ConfigError, check_settings
from lit_fed.core.networks.layers import normalises_batches
from lit_fed.core.plan import num_steps
from lit_fed.core.privacy.private_solver import NoisyStep, PrivateSolver
from lit_fed.core.privacy.private_task import PrivateTask
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Phase, Reduced, Tree
from lit_fed.wrappers.around import Around, Guarded, own_work
from lit_fed.wrappers.privacy import Privacy

__all__ = ["Charged", "ExamplePrivacy", "PrivateSteps", "SteppingClient"]


@dataclass(frozen=True)
class ExamplePrivacy(Privacy):
    """The shared models of all rounds tell little of any one sample of a client, (ε, δ)-privately.

    Clients draw every sample of a batch by itself, shorten each sample's gradient to a bound and add noise to the sum,
    so that nobody needs to be trusted with their models. This simulates the mechanism: its random numbers are not
    cryptographic, and noise in floating point can be attacked. ε says nothing of metrics, training losses, and what
    clients keep for themselves.

    Args:
        noise_multiplier: z; the noise of the sum of bounded gradients has the standard deviation z·C. Without noise ε
            is infinite.
        clip_norm: C, the largest Euclidean norm of a sample's gradient, of all models together.
        sample_rate: b, the probability with which a sample enters a batch; an epoch has 1/b steps. `data.batch_size`
            has no meaning beside it.
        delta: δ, the probability with which ε may fail; to be set, far below 1 over a client's number of samples.
        max_batch: samples to which a larger batch is cut, which costs privacy; null: none is cut.
        mixture_noise: σ_π, standard deviation of the noise on the sums of responsibilities, of which a client makes its
            mixture weights; FedEM needs it.
    """

    noise_multiplier: float
    clip_norm: float
    sample_rate: float
    delta: float
    max_batch: int | None = None
    mixture_noise: float | None = None

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        checks = {
            "noise_multiplier": (0 <= self.noise_multiplier < math.inf, "a number >= 0"),
            "clip_norm": (self.clip_norm > 0, "a number > 0"),
            "sample_rate": (0 < self.sample_rate <= 1, "a number in (0, 1]"),
            "delta": (0 < self.delta < 1, "a number in (0, 1)"),
            "max_batch": (self.max_batch is None or self.max_batch >= 1, "a whole number >= 1, or null"),
            "mixture_noise": (self.mixture_noise is None or 0 <= self.mixture_noise < math.inf, "a number >= 0"),
        }
        check_settings(self, checks, "--model.privacy")

    def around(self, algorithm: Any) -> Around:
        """`PrivateSteps` around it."""
        return PrivateSteps(algorithm, self)

    def check(self, algorithm: Algorithm, name: str, aggregation: str) -> None:
        """Refuse an algorithm whose messages depend on samples beside the noisy steps."""
        here = f"--model.privacy ExamplePrivacy cannot protect {name}"
        unfit = {
            "rows": "it keeps rows of single clients at the server, which was not looked into",
            "multiples": "it sends models times numbers that are private",
            "nothing": "it sends nothing, so that there is nothing to protect",
        }
        if algorithm.sends in unfit:
            raise ConfigError(f"{here}: {unfit[algorithm.sends]}; choose another algorithm, or leave it out")
        if algorithm.heeds_mixture_noise and self.mixture_noise is not None:
            return
        if found := algorithm.fits_without_noise:
            fix = "give --model.privacy.mixture_noise" if algorithm.heeds_mixture_noise else "choose another algorithm"
            raise ConfigError(
                f"{here}: its shared steps depend on {found}, fitted without noise; {fix}, or leave it out"
            )
        if self.mixture_noise is not None:
            raise ConfigError(f"--model.privacy.mixture_noise is for FedEM's mixture weights, and {name} has none; "
                              "leave it out")  # fmt: skip


class SteppingClient(NamedTuple):
    """A client's phase."""

    inner: Any  # the algorithm's own work
    client_id: Tensor  # []
    num_samples: Tensor  # [] float64
    step: Tensor  # [] float64, steps taken
    optimizer: Any  # the algorithm's, where the client trainer finds it; None where it has none


class Charged(NamedTuple):
    """What the server remembers."""

    steps: Tensor  # [T] float64, noisy steps of each client
    mixtures: Tensor  # [T] float64, noisy M-steps of each client


@dataclass(frozen=True)
class PrivateSteps(Around):
    """Clients take noisy steps; the server counts them.

    Args:
        inner: the algorithm.
        privacy: the settings.
    """

    privacy: ExamplePrivacy

    remembers_rounds = True

    def server_memory(self, ctx: Context, shared: Tree) -> Charged:
        """Nothing charged; refuses networks and settings that the noise does not cover."""
        _check_network(ctx, self.inner, torch.arange(ctx.num_clients))
        zero = torch.zeros(ctx.num_clients, dtype=torch.float64)
        return Charged(zero, zero.clone())

    def phases(self, ctx: Context, client_ids: Tensor) -> list[Phase]:
        """The algorithm's, with batches into which every sample comes by itself."""
        drawn = {"sample_rate": self.privacy.sample_rate, "batch_size": self.privacy.max_batch or 0}
        return [
            phase._replace(work=phase.work._replace(**drawn)) if _steps(phase.work) else phase
            for phase in self.inner.phases(ctx, client_ids)
        ]

    def client_init(self, ctx: Context, shared: Tree, state: Tree, data: ClientData, losses: Any) -> SteppingClient:
        """The algorithm's, which takes no gradient."""
        work = self.inner.client_init(self._protected(ctx), self.heard(ctx, shared), state, data, losses)
        first = torch.zeros_like(data.num_samples)
        return SteppingClient(work, data.client_id, data.num_samples, first, getattr(work, "optimizer", None))

    def client_step(self, ctx: Context, shared: Tree, work: SteppingClient, batch: Batch) -> SteppingClient:
        """The algorithm's, with one noisy gradient."""
        stepped = self.inner.client_step(self._protected(ctx, work), self.heard(ctx, shared), own_work(work), batch)
        return work._replace(inner=stepped, step=work.step + 1, optimizer=getattr(stepped, "optimizer", None))

    def client_final(self, ctx: Context, shared: Tree, work: SteppingClient, data: ClientData) -> ClientResult:
        """The algorithm's, which takes no gradient."""
        return super().client_final(self._protected(ctx), shared, own_work(work), data)

    def _protected(self, ctx: Context, work: SteppingClient | None = None) -> Context:
        """What an algorithm may use of its samples; all of it where nothing leaves the client."""
        if ctx.phase == "adapt":
            return ctx
        privacy, solver = self.privacy, ctx.solver
        if work is not None:
            expected = privacy.sample_rate * work.num_samples
            noisy = NoisyStep(
                privacy.clip_norm, privacy.noise_multiplier, expected, ctx.seed, ctx.round_idx, ctx.phase,
                work.client_id, work.step,
            )  # fmt: skip
            solver = PrivateSolver.of(ctx.solver, noisy)
        noise = privacy.mixture_noise
        return ctx._replace(task=PrivateTask.of(ctx.task), solver=solver, mixture_noise=noise, unprotected=ctx)

    def server_step(self, ctx: Context, shared: Guarded, reduced: Reduced, client_ids: Tensor) -> Guarded:
        """The algorithm's; clients are charged for their steps."""
        work = next(one.work for one in self.phases(ctx, client_ids) if one.name == ctx.phase)
        own: Charged = shared.own
        here = torch.zeros_like(own.steps).index_fill(0, client_ids.to(own.steps.device), 1)
        mixtures = own.mixtures + (0.0 if self.privacy.mixture_noise is None else here)
        new = super().server_step(ctx, shared, reduced, client_ids)
        return Guarded(new.inner, Charged(own.steps + here * _steps(work), mixtures))


def _steps(work: LocalWork) -> int:
    """Steps of a client with samples; 0 in a phase without local work."""
    return num_steps(1, work, 1) if work.sample_rate else int(bool(work.epochs or work.steps))


def _check_network(ctx: Context, algorithm: Any, client_ids: Tensor) -> None:
    """Refuse what makes the gradient of a sample depend on others.

    Raises:
        ConfigError: naming the network's layers, or the setting.
    """
    here = "--model.privacy ExamplePrivacy"
    task = ctx.task
    if task.norm_names or normalises_batches(task.network):
        raise ConfigError(
            f"{here} and batch normalisation: its statistics let a sample change the gradients of others; choose a "
            "network without, or freeze its layers"
        )
    if any(phase.work.batches_per_step > 1 for phase in algorithm.phases(ctx._replace(phase="plan"), client_ids)):
        raise ConfigError(
            f"{here} draws one batch a step for all models; leave out --model.algorithm.shuffle_per_component"
        )
