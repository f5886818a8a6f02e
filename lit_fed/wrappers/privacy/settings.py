"""Common parts of all kinds of differential privacy: settings, refusals and reports."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal

from lit_fed.core.context import Context
from lit_fed.core.seeds import Secret
from lit_fed.core.types import Tree
from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedShared, WrapperSettings, averages_statistics
from lit_fed.wrappers.privacy.accountant import accountant_name

__all__ = ["Privacy", "Private", "check_statistics", "planned", "with_private_part"]

NOT_COVERED = "metrics, training losses, mixture weights of clients, and states of clients in checkpoints"
"""Results of a run that ε does not cover: they are computed from the clients' data without noise."""


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


def check_statistics(algorithm: Any, ctx: Context) -> None:
    """Refuse BatchNorm whose running statistics would be averaged: a bound on changes does not cover them.

    Raises:
        ConfigError: naming the setting that keeps them with the clients.
    """
    if averages_statistics(algorithm, ctx):
        raise ConfigError("--model.privacy and batch normalisation: running statistics are not clipped; add "
                          "--model.batch_norm local")  # fmt: skip


def with_private_part(algorithm: Any, shared: Tree, own: Tree) -> Tree:
    """The shared state with the private wrapper's memory replaced; there must be such a wrapper."""
    if isinstance(algorithm, Private):
        return WrappedShared(shared.inner, own)
    inner = with_private_part(algorithm.inner, algorithm.inner_shared(shared), own)
    return WrappedShared(inner, shared.own) if algorithm.has_server_state else inner
