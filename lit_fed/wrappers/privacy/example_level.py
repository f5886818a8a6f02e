"""Differential privacy of single samples (DP-SGD) in the local steps of any algorithm that leaves them to the solver.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. "Deep Learning with Differential Privacy". CCS 2016.
https://arxiv.org/abs/1607.00133, Algorithm 1; its step stands in `wrappers/privacy/private_solver.py`.

Symbols:
    b      -> sample_rate       probability that a sample enters a batch, independent of the others
    C, z   -> clip_norm, noise_multiplier
    σ_π    -> mixture_noise     of Σ_s q_s in FedEM, ours
A released step may only depend on values that are public, noised, or functions of a single sample. The number of a
client's samples counts as public.
Deviations:
    Batches keep their random size; `max_batch` truncates them, which the accounting includes.
    q_s of FedEM uses the previous mixture weights, as in its paper, which already contain noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import NOT_SENT
from lit_fed.core.context import Context
from lit_fed.core.networks.layers import mixes_samples, normalises_batches
from lit_fed.core.plan import num_steps
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Phase, Tree
from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedShared, own_work
from lit_fed.wrappers.privacy.accountant import (
    Accountant,
    epsilon_of_releases,
    epsilon_of_truncated_batches,
    noise_for_releases,
)
from lit_fed.wrappers.privacy.private_solver import NoisyStep, PrivateSolver, PrivateTask
from lit_fed.wrappers.privacy.settings import Privacy, Private, planned

__all__ = ["Charged", "ExamplePrivacy", "PrivateSteps", "SteppingClient"]


@dataclass(frozen=True)
class ExamplePrivacy(Privacy):
    """(ε, δ)-differential privacy of single samples, for the shared models of all rounds.

    Clients draw every sample of a batch independently, clip each sample's gradient to a bound and add noise to the sum,
    so no receiver of their models must be trusted. Batches and noise follow from a secret, in a federation one per
    node; noise in floating point can be attacked. ε does not cover metrics, training losses and personal state.

    Args:
        noise_multiplier: z; the noise of the sum of bounded gradients has the standard deviation z·C. Without noise ε
            is infinite.
        target_epsilon: ε of a client that takes part in all rounds, which determines the noise multiplier; instead
            of it.
        delta: δ, the probability that ε fails; required, far below 1 over a client's number of samples.
        clip_norm: C, the maximum Euclidean norm of a sample's gradient over all models together; required.
        sample_rate: b, the probability that a sample enters a batch; an epoch has 1/b steps. It replaces
            `data.batch_size`; required.
        max_batch: number of samples to which larger batches are truncated, which costs privacy; null: no limit.
        mixture_noise: σ_π, standard deviation of the noise on the sums of responsibilities, from which a client
            computes its mixture weights; FedEM needs it.
        accountant: method to compute ε: `pld`, close to exact, or `rdp`, an older and larger bound.
        public_start: the models of `--init_from` were trained on public data only, and cost no privacy.
        noise_seed: seed of the noise, for simulations that must be repeatable; such noise gives no protection. Null
            draws the noise from a secret beside the checkpoints.
    """

    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float | None = None
    clip_norm: float | None = None
    sample_rate: float | None = None
    max_batch: int | None = None
    mixture_noise: float | None = None
    accountant: Accountant = "pld"
    public_start: bool = False
    noise_seed: int | None = None

    unit = "a sample of a client"
    adjacency = "add or remove one"
    noises_steps = True

    def __post_init__(self) -> None:
        self.check_budget()
        here = "--model.privacy"
        if self.clip_norm is None:
            raise ConfigError(f"{here}.clip_norm is missing, the largest norm of a gradient; give a number > 0")
        if self.sample_rate is None:
            raise ConfigError(f"{here}.sample_rate is missing, the probability with which a sample enters a batch; "
                              "give a number in (0, 1], such as 0.1")  # fmt: skip
        check_settings(self, prefix=here, clip_norm="> 0", sample_rate="(0, 1]", max_batch=">= 1", mixture_noise=">= 0")
        if self.max_batch is not None and self.accountant == "rdp":
            raise ConfigError(f"{here}.max_batch cuts batches, and accountant rdp has no answer for these; give pld")
        for other in ("target_epsilon", "mixture_noise"):
            if self.max_batch is not None and getattr(self, other) is not None:
                raise ConfigError(f"{here}.max_batch cuts batches, and the accountant has no answer for these together "
                                  f"with {other}; leave max_batch out")  # fmt: skip

    @property
    def needs_sizes(self) -> bool:  # type: ignore[override]
        """Maximum size of batches."""
        return self.max_batch is not None

    def around(self, algorithm: Any) -> AlgorithmWrapper:
        return PrivateSteps(algorithm, self)

    def usual_weighting(self) -> None:
        """As without privacy: the models already contain noise, for any average."""


class SteppingClient(NamedTuple):
    """A client's phase."""

    inner: Any  # the algorithm's own work
    client_id: Tensor  # []
    num_samples: Tensor  # [] float64
    step: Tensor  # [] float64, steps taken
    optimizer: Any  # the algorithm's, where the client trainer finds it; () where it has none


class Charged(NamedTuple):
    """The server's memory; it counts requested steps, not those that clients could take."""

    noise_multiplier: Tensor  # [] float64, z since the first step; 0 before
    steps: Tensor  # [T] float64, noisy steps of each client
    mixtures: Tensor  # [T] float64, noisy M-steps of each client


@dataclass(frozen=True)
class PrivateSteps(Private):
    """Clients take noisy steps; the server counts them."""

    privacy: ExamplePrivacy

    def server_memory(self, ctx: Context, shared: Tree) -> Charged:
        """No cost yet; refuses networks and settings that the noise does not cover."""
        _check_network(ctx, self.inner, torch.arange(ctx.num_clients))
        zero = torch.zeros(ctx.num_clients, dtype=torch.float64)
        return Charged(zero.new_zeros(()), zero, zero.clone())

    def phases(self, ctx: Context, client_ids: Tensor) -> list[Phase]:
        """The algorithm's phases, with Poisson batches."""
        drawn: dict[str, Any] = {"sample_rate": self.privacy.sample_rate, "batch_size": self.privacy.max_batch or 0}
        return [
            phase._replace(work=phase.work._replace(**drawn)) if _steps(phase.work) else phase
            for phase in self.inner.phases(ctx, client_ids)
        ]

    def client_init(
        self, ctx: Context, shared: WrappedShared, state: Tree, data: ClientData, losses: Any
    ) -> SteppingClient:
        """The algorithm's, which takes no gradient."""
        work = self.inner.client_init(self._protected(ctx), self.broadcast_view(ctx, shared), state, data, losses)
        first = torch.zeros_like(data.num_samples)
        return SteppingClient(work, data.client_id, data.num_samples, first, getattr(work, "optimizer", ()))

    def client_step(self, ctx: Context, shared: WrappedShared, work: SteppingClient, batch: Batch) -> SteppingClient:
        """The algorithm's, with one noisy gradient."""
        protected = self._protected(ctx)
        if ctx.phase != "adapt":
            bound, rate, noise = self.privacy.clip_norm, self.privacy.sample_rate, self._noise(ctx, shared.own)
            assert bound is not None
            assert rate is not None
            assert ctx.secret is not None
            noisy = NoisyStep(
                bound, noise, rate * work.num_samples, ctx.secret, ctx.round_idx, ctx.phase, work.client_id, work.step
            )
            protected = protected._replace(solver=PrivateSolver.of(ctx.solver, noisy))
        stepped = self.inner.client_step(protected, self.broadcast_view(ctx, shared), own_work(work), batch)
        return work._replace(inner=stepped, step=work.step + 1, optimizer=getattr(stepped, "optimizer", ()))

    def client_final(self, ctx: Context, shared: WrappedShared, work: SteppingClient, data: ClientData) -> ClientResult:
        """The algorithm's, which takes no gradient."""
        return super().client_final(self._protected(ctx), shared, own_work(work), data)

    def _protected(self, ctx: Context) -> Context:
        """The context with the permitted use of samples; unrestricted if nothing leaves the client."""
        if ctx.phase == "adapt":
            return ctx
        task, noise = PrivateTask.of(ctx.task), self.privacy.mixture_noise
        return ctx._replace(task=task, mixture_noise=noise, unprotected=ctx)

    def client_view(self, own: Charged, client_id: int) -> Charged:
        """The noise of a step."""
        return Charged(own.noise_multiplier, NOT_SENT, NOT_SENT)

    def charged(self, ctx: Context, own: Charged, client_ids: Tensor, sends: bool) -> Charged:
        """The steps of each client, and its mixture weights."""
        work = next(one.work for one in self.phases(ctx, client_ids) if one.name == ctx.phase)
        here = torch.zeros_like(own.steps).index_fill(0, client_ids.to(own.steps.device), 1)
        mixtures = own.mixtures if self.privacy.mixture_noise is None else own.mixtures + here
        noise = torch.full_like(own.noise_multiplier, self._noise(ctx, own))
        return Charged(noise, own.steps + here * _steps(work), mixtures)

    def charged_again(self, ctx: Context, own: Charged) -> Charged:
        """The steps of a round of all clients."""
        everybody = torch.arange(ctx.num_clients)
        for phase in self.phases(ctx._replace(phase="plan"), everybody):
            own = self.charged(ctx._replace(phase=phase.name), own, phase.client_ids, sends=True)
        return own

    # ------------------------------------------------------------------ what it costs
    def _noise(self, ctx: Context, own: Charged) -> float:
        """z: the given value, or the one that meets the target over all rounds."""
        privacy = self.privacy
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        begun = float(own.noise_multiplier)
        if begun:
            return begun
        assert privacy.target_epsilon is not None
        assert privacy.sample_rate is not None
        return _noise_for(
            privacy.target_epsilon, privacy.sample_rate, *self._to_come(ctx), privacy.mixture_noise or 0.0,
            privacy.charged, privacy.accountant,
        )  # fmt: skip

    def _to_come(self, ctx: Context) -> tuple[int, int]:
        """Noisy steps and M-steps of a client that takes part in all rounds from the present one on."""
        everybody = torch.arange(ctx.num_clients)
        steps = mixtures = 0
        for round_idx in range(ctx.round_idx, ctx.num_rounds):
            phases = self.phases(ctx._replace(phase="plan", round_idx=round_idx), everybody)
            mine = [phase.work for phase in phases if bool((phase.client_ids == 0).any())]
            steps += sum(map(_steps, mine))
            mixtures += len(mine) if self.privacy.mixture_noise is not None else 0
        return steps, mixtures

    def _epsilon(self, ctx: Context, noise: float, steps: Tensor, mixtures: int, *, exact: bool = True) -> float:
        """ε of the client for which it is largest, from the steps of each, [T]."""
        privacy = self.privacy
        assert privacy.sample_rate is not None
        if privacy.max_batch is not None:
            assert ctx.sizes is not None
            clients = zip(ctx.sizes.tolist(), map(int, steps.tolist()), strict=True)
            return epsilon_of_truncated_batches(
                clients, privacy.sample_rate, privacy.max_batch, noise, privacy.charged, exact=exact
            )
        return epsilon_of_releases(
            privacy.sample_rate, noise, int(steps.max()), privacy.charged, privacy.accountant,
            beside=(privacy.mixture_noise or 0.0, mixtures), exact=exact,
        )  # fmt: skip

    def plan(self, ctx: Context, own: Charged) -> list[str]:
        """Refuse more rounds than the target allows."""
        privacy, (to_come, mixtures) = self.privacy, self._to_come(ctx)
        mixtures += int(own.mixtures.max())
        self._check_mixtures(mixtures)
        noise = self._noise(ctx, own)
        steps = int(own.steps.max()) + to_come
        epsilon = self._epsilon(ctx, noise, own.steps + to_come, mixtures)
        privacy.refuse_exceeding(epsilon, noise, f"{steps} steps")
        lines = planned(epsilon, privacy.charged, noise, f"{steps} steps of a client", privacy.accountant, 1)
        if privacy.charged * ctx.most_samples >= 1:
            lines.append(
                f"--model.privacy.delta {privacy.charged:g} is not below 1 over the {ctx.most_samples} samples of a "
                "client, and would allow to publish one of them"
            )
        return lines

    def _check_mixtures(self, mixtures: int) -> None:
        """Refuse mixture weights that cost more than the total budget."""
        target, noise = self.privacy.target_epsilon, self.privacy.mixture_noise
        if target is None or noise is None:
            return
        epsilon = epsilon_of_releases(1.0, noise, mixtures, self.privacy.charged, self.privacy.accountant)
        if epsilon >= target:
            raise ConfigError(
                f"--model.privacy.mixture_noise {noise:g} alone comes to ε {epsilon:.4g} after {mixtures} rounds, and "
                f"target_epsilon is {target:g}; give more mixture_noise"
            )

    def guarantee(self, ctx: Context, own: Charged, exact: bool = True) -> dict[str, Any]:
        """ε for adding or removing one sample of the client that took the most steps."""
        privacy, noise = self.privacy, float(own.noise_multiplier)
        steps, mixtures = int(own.steps.max()), int(own.mixtures.max())
        found: dict[str, Any] = {
            "epsilon": self._epsilon(ctx, noise, own.steps, mixtures, exact=exact),
            "delta": privacy.charged,
            "sampling_probability": privacy.sample_rate,
            "noise_multiplier": noise,
            "releases": steps + mixtures,
            "clip_norm": privacy.clip_norm,
        }
        if mixtures:
            found |= {"mixture_noise": privacy.mixture_noise, "noisy_mixtures": mixtures}
        not_covered = "metrics, training losses, and states of clients in checkpoints"
        return found | privacy.described(privacy.accountant) | {"not_covered": not_covered}


@lru_cache(maxsize=8)
def _noise_for(
    target: float, rate: float, steps: int, mixtures: int, mixture_noise: float, delta: float, accountant: Accountant
) -> float:
    """The noise multiplier of steps that meets a target together with noisy mixture weights."""
    return noise_for_releases(target, rate, steps, delta, accountant, beside=(mixture_noise, mixtures))


def _steps(work: LocalWork) -> int:
    """Steps of a client with samples; 0 in a phase without local work."""
    return num_steps(1, work, 1) if work.sample_rate else int(work.trains)


def _check_network(ctx: Context, algorithm: Any, client_ids: Tensor) -> None:
    """Refuse networks and settings with which a sample's gradient depends on other samples.

    Raises:
        ConfigError: naming the network's layers, or the setting.
    """
    here = "--model.privacy ExamplePrivacy"
    task = ctx.task
    norm = task.norm_names or normalises_batches(task.network)
    if norm or mixes_samples(task.network):
        what = "batch normalisation" if norm else f"{type(task.network).__name__}, which looks at whole batches"
        raise ConfigError(
            f"{here} and {what}: a sample changes the gradients of others; choose a network without, or freeze its "
            "layers"
        )
    if any(phase.work.batches_per_step > 1 for phase in algorithm.phases(ctx._replace(phase="plan"), client_ids)):
        raise ConfigError(
            f"{here} draws one batch a step for all models; give --model.algorithm.shuffle_per_component false"
        )
