"""Central differential privacy of whole clients (DP-FedAvg), around any algorithm that averages models.

McMahan, Ramage, Talwar, Zhang. "Learning Differentially Private Recurrent Language Models". ICLR 2018.
https://arxiv.org/abs/1710.06963, Algorithm 1 with the estimator of a fixed denominator.
Andrew, Thakkar, McMahan, Ramaswamy. "Differentially Private Learning with Adaptive Clipping". NeurIPS 2021.
https://arxiv.org/abs/1905.03871, Algorithm 1, for the bound that follows a quantile.

Symbols:
    Δ_i, C, S_r  -> delta, clip_norm       the change in a client's message, one vector of all numbers; its bound
    w_i, w_cap   -> weights, weight_cap    1, or the number of samples up to the cap
    q, W         -> ctx.sampling_probability, ctx.total_weight
    z            -> noise_multiplier       σ = z·C·w_max/(qW) is added to each number of the average
    γ, η_C, σ_b  -> clip_quantile, clip_lr, clip_count_noise
Deviations:
    The paper's other estimator divides by the actual weight; its sensitivity is twice as large, and it is not offered.
    Counts of clients within the bound are centred, b_i − ½, so absent clients do not move the bound.
    Messages keep their types, and models are rounded to them: changes are clipped below C by the possible rounding.
    The size of the noise is reported as its share of the release, from released numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import NOT_SENT, Participation
from lit_fed.core.context import Context
from lit_fed.core.noise import protecting_normals
from lit_fed.core.types import ClientData, Leaves, Message, Reduced, Tree
from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.deltas import delta_of, reference_of, with_delta
from lit_fed.wrappers.privacy.accountant import Accountant, accountant_name, epsilon_of_releases, noise_for_releases
from lit_fed.wrappers.privacy.clipping import adapted_bound, bound_before_rounding, clip_factor, noise_beside_counts
from lit_fed.wrappers.privacy.settings import Privacy, Private, check_statistics, planned

__all__ = ["ClientPrivacy", "Counted", "PrivateAverage", "Released"]


class Counted(NamedTuple):
    """A client's message under an adaptive bound."""

    value: Any  # the algorithm's
    within: Tensor  # [] float64, ½ if the delta was within the bound, −½ otherwise


class Released(NamedTuple):
    """The server's memory; each [] float64, and computed from released numbers only."""

    clip_norm: Tensor  # of the coming round
    noise_multiplier: Tensor  # since the first release
    releases: Tensor  # averages that were published so far
    noise_share: Tensor  # of the last: expected norm of the noise over the norm of the noisy change


@dataclass(frozen=True)
class ClientPrivacy(Privacy):
    """(ε, δ)-differential privacy of whole clients, for the shared models of all rounds.

    Clients take part at random (`--data.client_sampling poisson`), their changes are scaled down to a bound, and the
    server adds noise to the average. The cohorts and the noise follow from a secret beside the checkpoints; noise in
    floating point can be attacked. ε does not cover metrics, training losses and personal state.

    Args:
        noise_multiplier: z; the noise of the sum of bounded changes has the standard deviation z·C. Without noise ε is
            infinite.
        target_epsilon: ε after all rounds, which determines the noise multiplier; instead of it.
        delta: δ, the probability that ε fails; required, far below 1 over the number of clients.
        clip_norm: C, the maximum Euclidean norm of a client's change, to which longer ones are scaled down; required
            unless `adaptive`.
        weight_cap: weight clients by their samples, up to this number; null: equal weights.
        adaptive: let the bound follow a quantile of the norms of the clients' changes, noisily counted.
        initial_clip_norm: the adaptive bound of the first round.
        clip_quantile: share of the clients whose changes the adaptive bound should not clip.
        clip_lr: step size of the adaptive bound.
        clip_count_noise: standard deviation of the noise on the counts of the adaptive bound; null: a twentieth of the
            expected number of clients.
        accountant: method to compute ε: `pld`, close to exact, or `rdp`, an older and larger bound.
        public_start: the models of `--init_from` were trained on public data only, and cost no privacy.
        noise_seed: seed of the noise, for simulations that must be repeatable; such noise gives no protection. Null
            draws the noise from a secret beside the checkpoints.
    """

    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float | None = None
    clip_norm: float | None = None
    weight_cap: int | None = None
    adaptive: bool = False
    initial_clip_norm: float = 0.1
    clip_quantile: float = 0.5
    clip_lr: float = 0.2
    clip_count_noise: float | None = None
    accountant: Accountant = "pld"
    public_start: bool = False
    noise_seed: int | None = None

    unit = "a client with all of its samples"
    adjacency = "add or remove one"
    fixes_denominator = True

    def __post_init__(self) -> None:
        self.check_budget()
        here = "--model.privacy"
        if self.adaptive and self.clip_norm is not None:
            raise ConfigError(f"{here}.clip_norm is fixed, and adaptive is true; give {here}.initial_clip_norm instead")
        if not self.adaptive and self.clip_norm is None:
            raise ConfigError(f"{here}.clip_norm is missing, the largest norm of a client's change; give a number > 0, "
                              f"or {here}.adaptive true")  # fmt: skip
        positive = dict.fromkeys(("clip_norm", "initial_clip_norm", "clip_count_noise"), "> 0")
        check_settings(self, positive, here, clip_quantile="(0, 1)", weight_cap=">= 1", clip_lr=">= 0")

    def around(self, algorithm: Any) -> AlgorithmWrapper:
        return PrivateAverage(algorithm, self)

    def usual_weighting(self) -> Literal["samples", "uniform"]:
        """By samples if they are capped."""
        return "uniform" if self.weight_cap is None else "samples"

    @property
    def largest_weight(self) -> int:
        """w_max, of one client."""
        return self.weight_cap or 1


@dataclass(frozen=True)
class PrivateAverage(Private):
    """Clients send bounded changes, and the server adds noise to their average."""

    privacy: ClientPrivacy

    hides_cohort = True  # privacy amplification by subsampling needs a secret cohort

    @property
    def participation(self) -> Participation:
        """The algorithm's; noise hides participation, so the server also steps on empty rounds."""
        return self.inner.participation._replace(steps_on_empty_rounds=True)  # type: ignore[no-any-return]

    def server_memory(self, ctx: Context, shared: Tree) -> Released:
        """The first bound; refuses statistics of BatchNorm, which a bound on changes does not cover."""
        check_statistics(self.inner, ctx)
        privacy = self.privacy
        bound = torch.tensor(privacy.clip_norm or privacy.initial_clip_norm, dtype=torch.float64)
        return Released(bound, *(torch.zeros_like(bound) for _ in Released._fields[1:]))

    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, Leaves]:
        """The message with its delta scaled down to the bound."""
        bound: Tensor = shared.own.clip_norm
        reference = reference_of(self.inner, self.broadcast_view(ctx, shared), message.value)
        changes = delta_of(message.value, reference)
        factor = clip_factor(tree.norm(changes), bound, bound_before_rounding(bound, tree.leaves(reference)))
        told = tree.map_leaves(lambda leaf: leaf * factor, changes)
        value = with_delta(message.value, reference, changes, told)
        clipped = (factor < 1).double()
        message = message._replace(weight=message.weight.clamp(max=self.privacy.largest_weight))
        if self.privacy.adaptive:
            bits = tree.bits(value) if message.bits_up is None else message.bits_up
            message = message._replace(bits_up=torch.zeros_like(message.weight) + bits + 1)
            value = Counted(value, 0.5 - clipped)
        return message._replace(value=value), memory, {"privacy/clipped_share": clipped}

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Released]:
        """The sum of changes divided by the expected weight qW, with noise; the true sum of weights is unchanged."""
        own, privacy = shared.own, self.privacy
        usual = ctx.sampling_probability * ctx.total_weight
        share, mean, bound = reduced.weight / usual, reduced.value, own.clip_norm
        noise = self._noise(ctx) if float(own.releases) == 0 else float(own.noise_multiplier)
        unit = privacy.largest_weight / usual  # deviation at a multiplier and a bound of 1
        of_models = noise
        if privacy.adaptive:
            of_counts, mean, within = self._count_noise(ctx), mean.value, mean.within
            of_models = noise_beside_counts(noise, of_counts)
            drawn = _drawn(ctx, "counts", 1)[0].to(within.device) if noise else 0.0
            within = share * within + unit * of_counts * drawn
            bound = adapted_bound(bound, within, privacy.clip_quantile, privacy.clip_lr)
        reference = reference_of(self.inner, self.inner_shared(shared), mean)
        value = tree.map_leaves(lambda new, old: share * new + (1 - share) * old.double(), mean, reference)
        noise_share = torch.zeros_like(bound)
        if noise:
            std, leaves = unit * of_models * own.clip_norm, tree.leaves(value)
            drawn = _drawn(ctx, "models", sum(leaf.numel() for leaf in leaves)).split([leaf.numel() for leaf in leaves])
            noise_of = zip(leaves, drawn, strict=True)
            value = tree.rebuild(value, [leaf + std * one.view(leaf.shape).to(leaf.device) for leaf, one in noise_of])
            variance = sum(std**2 * leaf.numel() for leaf in leaves)
            noise_share = torch.sqrt(variance) / tree.norm(delta_of(value, reference))
        new = Released(bound, torch.full_like(bound, noise), own.releases + 1, noise_share)
        return Reduced(value, torch.full_like(reduced.weight, usual)), new

    def charged_again(self, ctx: Context, own: Released) -> Released:
        """Count one more release."""
        return own._replace(releases=own.releases + 1)

    def client_view(self, own: Released, client_id: int) -> Released:
        """The bound, which clients need for clipping."""
        return Released(own.clip_norm, NOT_SENT, NOT_SENT, NOT_SENT)

    def _noise(self, ctx: Context) -> float:
        """z: the given value, or the one that meets the target over all rounds."""
        given, privacy = self.privacy.noise_multiplier, self.privacy
        if given is not None:
            return given
        assert privacy.target_epsilon is not None
        return _noise_for(privacy.target_epsilon, ctx.sampling_probability, ctx.num_rounds, privacy.charged,
                          privacy.accountant)  # fmt: skip

    def _count_noise(self, ctx: Context) -> float:
        """σ_b, of counts in units of the largest weight."""
        return self.privacy.clip_count_noise or ctx.sampling_probability * ctx.num_clients / 20

    def plan(self, ctx: Context, own: Released) -> list[str]:
        """Refuse more rounds than the target allows, and counts that cost more than the total budget."""
        privacy = self.privacy
        noise = self._noise(ctx) if float(own.releases) == 0 else float(own.noise_multiplier)
        if privacy.adaptive:
            noise_beside_counts(noise, self._count_noise(ctx))
        in_all = int(own.releases) + ctx.num_rounds - ctx.round_idx
        epsilon = self._epsilon(ctx, noise, in_all)
        privacy.refuse_exceeding(epsilon, noise, f"{in_all} rounds")
        name = accountant_name(privacy.accountant)
        return planned(epsilon, privacy.charged, noise, f"{in_all} rounds", name, ctx.num_clients)

    def _epsilon(self, ctx: Context, noise: float, releases: int, exact: bool = True) -> float:
        privacy = self.privacy
        return epsilon_of_releases(
            ctx.sampling_probability, noise, releases, privacy.charged, privacy.accountant, exact=exact
        )

    def worth(self, own: Released) -> dict[str, float]:
        """The bound of the coming round, and the share of the noise in the release."""
        return {"clip_norm": float(own.clip_norm), "noise_share": float(own.noise_share)}

    def guarantee(self, ctx: Context, own: Released, exact: bool = True) -> dict[str, Any]:
        """ε for adding or removing one client with all of its samples."""
        privacy, noise, releases = self.privacy, float(own.noise_multiplier), int(own.releases)
        found: dict[str, Any] = {"epsilon": self._epsilon(ctx, noise, releases, exact), "delta": privacy.charged}
        if privacy.accountant == "pld":
            found["epsilon_rdp"] = epsilon_of_releases(
                ctx.sampling_probability, noise, releases, privacy.charged, "rdp"
            )
        found |= {
            "sampling_probability": ctx.sampling_probability, "noise_multiplier": noise, "releases": releases,
        }  # fmt: skip
        return found | self.worth(own) | privacy.described(privacy.accountant)


_noise_for = lru_cache(maxsize=8)(noise_for_releases)


def _drawn(ctx: Context, purpose: str, count: int) -> Tensor:
    """Standard normal numbers of the server, [count] float64 on the CPU: the same on every rank and device."""
    assert ctx.secret is not None
    nobody = torch.zeros((), dtype=torch.int64)
    return protecting_normals(ctx.secret, ctx.round_idx, nobody, f"central/{ctx.phase}/{purpose}", count)
