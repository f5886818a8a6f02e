"""Common parts of all kinds of differential privacy: settings, refusals and reports."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal

from lit_fed.core.context import Context
from lit_fed.core.seeds import Secret
from lit_fed.core.types import Tree
from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedShared, WrapperSettings, part_of, wrapper_of
from lit_fed.wrappers.fedbn import averages_statistics
from lit_fed.wrappers.privacy.accountant import accountant_name

__all__ = [
    "NOT_COVERED", "Privacy", "Private", "check_statistics", "planned", "privacy_of", "spent_by", "whole_guarantee",
    "with_private_part",
]  # fmt: skip

NOT_COVERED = "metrics, training losses, mixture weights of clients, and states of clients in checkpoints"
"""Results of a run that ε does not cover: they are computed from the clients' data without noise."""

OF_PUBLIC_START = ", and the data that the models of --init_from learned from"
"""Further results not covered, for a run with a start declared public and all runs that start from it."""


class Private(AlgorithmWrapper):
    """A wrapper that records its releases, and computes their cost."""

    privacy: Privacy
    has_server_state = True

    @abstractmethod
    def guarantee(self, ctx: Context, own: Tree, exact: bool = True) -> dict[str, Any]:
        """The guarantee after the releases so far, as numbers and texts by name; ε is inf without noise.

        Args:
            ctx: the context.
            own: the wrapper's memory.
            exact: False for frequent calls, where ε may be too large by a thousandth or two.
        """

    @abstractmethod
    def charged_again(self, ctx: Context, own: Tree) -> Tree:
        """The memory after a round that may have been released is repeated with new noise."""

    def worth(self, own: Tree) -> dict[str, float]:
        """Statistics of the last release by name, for every round."""
        return {}

    @abstractmethod
    def plan(self, ctx: Context, own: Tree) -> list[str]:
        """Refuse a fit that cannot meet its privacy settings, before it begins; else return a notice for the user.

        Raises:
            ConfigError: naming the setting, or the package that is missing.
        """


class Privacy(WrapperSettings):
    """Settings of differential privacy, given as `--model.privacy`."""

    unit = ""
    """The unit that the guarantee protects."""
    adjacency = ""
    """The difference between the two data sets that ε compares."""
    noise_multiplier: float | None
    target_epsilon: float | None
    delta: float | None
    public_start: bool
    noise_seed: int | None
    weight_cap: int | None = None
    noises_steps = False
    """Whether clients add noise as they train, so that nodes draw it, and not the server."""
    fixes_denominator = False
    """Whether averages are divided by what takes part in general, whoever it is."""
    noises_messages = False
    """Whether each client adds noise to all numbers of its message."""
    needs_sizes = False
    """Whether ε depends on the number of samples of each client."""

    def check_budget(self) -> None:
        """Refuse settings that do not say how much noise there is, and for which δ.

        Raises:
            ConfigError: naming the setting.
        """
        here = "--model.privacy"
        if self.noise_multiplier is not None and self.target_epsilon is not None:
            raise ConfigError(f"{here}.noise_multiplier and target_epsilon are both given; give one")
        if self.noise_multiplier is None and self.target_epsilon is None:
            raise ConfigError(f"{here} does not say how much noise there is; give {here}.noise_multiplier or "
                              f"{here}.target_epsilon")  # fmt: skip
        if self.delta is None:
            raise ConfigError(f"{here}.delta is missing, the probability with which ε may fail; give one far below 1 "
                              "over the number of clients, such as 1e-5")  # fmt: skip
        noises = dict.fromkeys(("noise_multiplier", "noise_seed"), ">= 0")
        check_settings(self, noises, here, target_epsilon="> 0", delta="(0, 1)")

    def secret(self) -> Secret:
        """The secret behind the noise: from the given seed, or random."""
        return Secret.fresh() if self.noise_seed is None else Secret.of_seed(self.noise_seed)

    def described(self, accountant: Literal["pld", "rdp", "gaussian"]) -> dict[str, str]:
        """The text of a guarantee, for all kinds of privacy."""
        return {
            "accountant": accountant_name(accountant), "unit": self.unit, "adjacency": self.adjacency,
            "not_covered": NOT_COVERED,
        }  # fmt: skip

    def refuse_exceeding(self, epsilon: float, noise: float, after: str) -> None:
        """Refuse a fit that would exceed the target, since the run began with noise for fewer rounds.

        Raises:
            ConfigError: naming the target.
        """
        if self.target_epsilon is not None and epsilon > self.target_epsilon:
            raise ConfigError(
                f"--model.privacy.target_epsilon {self.target_epsilon:g} would be exceeded after {after}: the run has "
                f"begun with noise for fewer, a multiplier of {noise:.4g}, and would come to {epsilon:.4g}; give fewer "
                "--trainer.max_epochs, or begin a new run"
            )

    @property
    def charged(self) -> float:
        """δ, after `check_budget`."""
        assert self.delta is not None
        return self.delta

    def usual_weighting(self) -> Literal["samples", "uniform"] | None:
        """Default weight of a client's message; None: as without privacy."""
        return "uniform"

    def check_start(self, path: str, spent: dict[str, Any] | None) -> list[str]:
        """Refuse models of another run that may reveal the same clients at no charge; returns a notice.

        Args:
            path: checkpoint of the run.
            spent: its guarantee, as `spent_by` gives it; None: it had none.

        Raises:
            ConfigError: naming the checkpoint.
        """
        start = f"--init_from {path}"
        if self.public_start:
            return [f"{start} counts as public: ε says nothing of the data that its models were trained on"]
        if spent is not None and not _is_spent(spent):
            raise ConfigError(f"{start} says nothing sensible of the privacy of its models; give another checkpoint")
        if spent is None or (spent["unit"], spent["adjacency"]) != (self.unit, self.adjacency):
            kind = "without privacy" if spent is None else f"with privacy of {spent['unit']} ({spent['adjacency']})"
            raise ConfigError(
                f"{start} holds models that were trained {kind}, and ε of --model.privacy {type(self).__name__} would "
                "not cover what they tell of the clients; give the checkpoint of a run with the same --model.privacy, "
                "or --model.privacy.public_start true if it was trained on public data alone"
            )
        return [f"{start} has spent ε {spent['epsilon']:.4g} at δ {spent['delta']:g}, which are added in reports"]


def planned(
    epsilon: float, delta: float, noise_multiplier: float, after: str, accountant: str, num_clients: int
) -> list[str]:
    """A notice for the user of a private run before it begins.

    Args:
        epsilon: ε at its end.
        delta: δ.
        noise_multiplier: z.
        after: description of the releases by then.
        accountant: its name.
        num_clients: T.
    """
    said = f"ε {epsilon:.4g}" if math.isfinite(epsilon) else "no finite ε, since there is no noise,"
    lines = [f"a noise multiplier of {noise_multiplier:.4g} gives {said} at δ {delta:g} after {after} ({accountant})"]
    if delta * num_clients >= 1:
        lines.append(
            f"--model.privacy.delta {delta:g} is not below 1 over the {num_clients} clients, and would allow to "
            f"publish the data of one of them; customary is their number to the power of -1.1, {num_clients**-1.1:.2g}"
        )
    return lines


def privacy_of(algorithm: Any) -> Privacy | None:
    """The settings of the private wrapper among those around an algorithm; None: there is none."""
    found: Private | None = wrapper_of(algorithm, Private)  # type: ignore[type-abstract]
    return None if found is None else found.privacy


def check_statistics(algorithm: Any, ctx: Context) -> None:
    """Refuse BatchNorm whose running statistics would be averaged: a bound on changes does not cover them.

    Raises:
        ConfigError: naming the setting that keeps them with the clients.
    """
    if averages_statistics(algorithm, ctx):
        raise ConfigError("--model.privacy and batch normalisation: running statistics are not clipped; add "
                          "--model.batch_norm local")  # fmt: skip


def whole_guarantee(
    algorithm: Any, ctx: Context, shared: Tree, start: dict[str, Any] | None, *, starts: bool, exact: bool = True
) -> dict[str, Any]:
    """The guarantee of a run including the models that it started from, with ε and δ added; {} without privacy.

    Args:
        algorithm: inside its wrappers.
        ctx: the context.
        shared: the shared state.
        start: cost of the models that the run started from, see `spent_by`; None: nothing.
        starts: whether the run started from models of another.
        exact: as of `Private.guarantee`.
    """
    found = part_of(algorithm, shared, Private)  # type: ignore[type-abstract]
    if found is None:
        return {}
    private, own = found
    guarantee = private.guarantee(ctx, own, exact)
    is_public = starts and private.privacy.public_start
    if is_public or (start or {}).get("public_start"):
        guarantee["not_covered"] += OF_PUBLIC_START
    if is_public or start is None:
        return guarantee
    both = {name: value + start["epsilon"] for name, value in guarantee.items() if name.startswith("epsilon")}
    return guarantee | both | {"delta": guarantee["delta"] + start["delta"], "epsilon_of_start": start["epsilon"]}


def spent_by(guarantee: dict[str, Any]) -> dict[str, Any] | None:
    """The checkpoint's entry on the privacy of its models, for runs that start from them; None: no guarantee.

    Args:
        guarantee: as of `whole_guarantee`; one of an imitated population promises nothing.
    """
    names = ("epsilon", "delta", "unit", "adjacency")
    public = {"public_start": True} if guarantee.get("not_covered", "").endswith(OF_PUBLIC_START) else {}
    return {name: guarantee[name] for name in names} | public if "epsilon" in guarantee else None


def _is_spent(value: Any) -> bool:
    """Whether a checkpoint's entry has the form of `spent_by`."""
    types = {"epsilon": float, "delta": float, "unit": str, "adjacency": str}
    whole = isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in types.items())
    return whole and value["epsilon"] >= 0 and 0 <= value["delta"] <= 1


def with_private_part(algorithm: Any, shared: Tree, own: Tree) -> Tree:
    """The shared state with the private wrapper's memory replaced; there must be such a wrapper."""
    if isinstance(algorithm, Private):
        return WrappedShared(shared.inner, own)
    inner = with_private_part(algorithm.inner, algorithm.inner_shared(shared), own)
    return WrappedShared(inner, shared.own) if algorithm.has_server_state else inner
