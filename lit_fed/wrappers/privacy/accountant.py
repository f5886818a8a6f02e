"""Privacy accounting of noisy sums over clients: ε of a number of releases, and the noise for a given ε.

A release is a sum of clipped values with Gaussian noise, which every member enters independently with the same
probability (Poisson sampling). The noise multiplier z is the noise's standard deviation over the sensitivity of the sum
to one member. The guarantee is (ε, δ) differential privacy for adding or removing one member.

Two accountants answer. `rdp` bounds ε by Rényi divergences; a release is a vector of them and releases add up, so a
number per round costs next to nothing. `pld` composes distributions of the privacy loss; it is close to exact, and
smaller. Both come from the package dp-accounting (the extra `privacy`), imported when one of them is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lit_fed.errors import ConfigError
from lit_fed.system.packages import imported_later, optional_package

if TYPE_CHECKING:
    from scipy import optimize
else:
    optimize = imported_later("scipy.optimize")

__all__ = [
    "Accountant", "accountant_name", "epsilon_of_local_messages", "epsilon_of_mixed_releases", "epsilon_of_releases",
    "epsilon_of_truncated_batches", "noise_for_local_messages", "noise_for_releases",
]  # fmt: skip

Accountant = Literal["pld", "rdp"]

FINEST_GRID = 1e-4  # of privacy losses, in nats
GRID_ERRORS = {True: 5e-5, False: 5e-3}  # error in ε from the grid with much noise, if exact and if not
NOISE_TOLERANCE = 1e-4  # of the search, relative to the noise multiplier
MOST_NOISE, LEAST_NOISE = 1e6, 1e-3  # bounds of the search


def epsilon_of_releases(
    sampling_probability: float,
    noise_multiplier: float,
    releases: int,
    delta: float,
    accountant: Accountant = "pld",
    *,
    exact: bool = True,
) -> float:
    """ε of releases of Poisson-sampled sums with Gaussian noise, for adding or removing one member.

    Args:
        sampling_probability: probability of one member in one release, in (0, 1]; 1: every member enters all of them.
        noise_multiplier: standard deviation of the noise over the sensitivity of the sum.
        releases: how many sums were published; 0 costs nothing.
        delta: in (0, 1).
        accountant: `pld` or `rdp`.
        exact: False for a tenth of the time, where ε by `pld` may be too large by a few thousandths.

    Returns:
        ε, inf without noise. It is never too small: the accountants' own approximations are upper bounds.

    Raises:
        ConfigError: if the package is missing.

    Source:
        Mironov, Talwar, Zhang 2019 (arXiv 1908.10530) for `rdp`; Doroshenko et al. 2022 (arXiv 2207.04380) for `pld`.
    """
    if releases == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if accountant == "rdp":
        orders, divergences = _divergences(sampling_probability, noise_multiplier)
        with _quiet() as library:
            return float(library.rdp.compute_epsilon(orders, divergences * releases, delta)[0])
    if sampling_probability == 1:  # one Gaussian of all releases, whose loss has a closed form
        return _epsilon_of_gaussian(noise_multiplier / math.sqrt(releases), delta)
    one = _loss_distribution(sampling_probability, noise_multiplier, _grid(noise_multiplier, releases, exact))
    with _quiet():
        return float(one.self_compose(releases).get_epsilon_for_delta(delta))


def noise_for_releases(
    target_epsilon: float,
    sampling_probability: float,
    releases: int,
    delta: float,
    accountant: Accountant = "pld",
    *,
    beside: tuple[float, int] = (0.0, 0),
) -> float:
    """The smallest noise multiplier, up to 0.01 %, whose releases cost at most a given ε.

    The answer of `rdp`, which is fast, tells `pld` where to look.

    Args:
        target_epsilon: above 0.
        sampling_probability: probability of one member in one release, in (0, 1].
        releases: how many sums will be published, 1 or more.
        delta: in (0, 1).
        accountant: method that computes the cost of the releases.
        beside: noise multiplier and number of other sums, which every member enters.

    Raises:
        ConfigError: if no noise multiplier between 0.001 and a million does it, or if the package is missing.
    """

    def costs(teller: Accountant) -> Callable[[float], float]:
        return lambda noise: epsilon_of_mixed_releases(sampling_probability, noise, releases, *beside, delta, teller)

    above = _least_noise(costs("rdp"), target_epsilon, 1.0)
    return above if accountant == "rdp" else _least_noise(costs("pld"), target_epsilon, above)


def epsilon_of_local_messages(noise_multiplier: float, messages: int, delta: float) -> float:
    """ε of messages with noise added by the client, for replacing the client's data by any other.

    Args:
        noise_multiplier: standard deviation of the noise over the clipping bound C. Two clipped messages differ by up
            to 2C, so this is twice the multiplier in the sense of the sensitivity.
        messages: number of messages that the client has sent.
        delta: in (0, 1).

    Source:
        Balle, Wang 2018 (arXiv 1805.06530), the exact loss of a Gaussian.
    """
    if messages == 0:
        return 0.0
    return (
        math.inf if noise_multiplier == 0 else _epsilon_of_gaussian(noise_multiplier / 2 / math.sqrt(messages), delta)
    )


def noise_for_local_messages(target_epsilon: float, messages: int, delta: float) -> float:
    """The noise multiplier, over the clipping bound, with which a client's messages cost a given ε, exactly.

    The textbook formula √(2 ln(1.25/δ))/ε is not used: it holds only up to ε = 1, adds too much noise there, and too
    little beyond.
    """
    with _quiet() as library:
        return 2 * math.sqrt(messages) * float(library.get_sigma_gaussian(target_epsilon, delta))


def epsilon_of_truncated_batches(
    clients: Iterable[tuple[int, int]],
    sampling_probability: float,
    most_samples: int,
    noise_multiplier: float,
    delta: float,
    *,
    exact: bool = True,
) -> float:
    """The largest ε of the clients, for noisy gradients of Poisson batches that are truncated at a maximum size.

    It is for adding or removing one sample. It first rises with a client's number of samples and then falls, since few
    samples of a large client enter a truncated batch. So the largest client does not bound the others.

    Args:
        clients: number of samples and number of steps of each.
        sampling_probability: probability of one sample in one step, in (0, 1].
        most_samples: a larger batch is cut to this many samples, drawn uniformly.
        noise_multiplier: standard deviation of the noise over the bound of a sample's gradient.
        delta: in (0, 1).
        exact: as of `epsilon_of_releases`.

    Source:
        Ganesh et al. 2025 (arXiv 2508.15089), accountant `pld`.
    """
    most_steps: dict[int, int] = {}
    for size, steps in clients:
        size = max(size, most_samples)  # batches of smaller clients are never truncated
        most_steps[size] = max(steps, most_steps.get(size, 0))

    def epsilon(size: int, exact: bool) -> float:
        steps = most_steps[size]
        if size == most_samples or not steps or not noise_multiplier:
            return epsilon_of_releases(sampling_probability, noise_multiplier, steps, delta, exact=exact)
        grid = _grid(noise_multiplier, steps, exact)
        one = _cut_loss_distribution(size, sampling_probability, most_samples, noise_multiplier, grid)
        with _quiet():
            return float(one.self_compose(steps).get_epsilon_for_delta(delta))

    # a coarse grid only makes ε larger, so a size whose coarse ε is below an exact one needs no exact one
    rough = sorted(((epsilon(size, False), size) for size in most_steps), reverse=True)
    if not exact:
        return rough[0][0]
    largest = 0.0
    for bound, size in rough:
        if bound > largest:
            largest = max(largest, epsilon(size, True))
    return largest


def epsilon_of_mixed_releases(
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    other_noise: float,
    others: int,
    delta: float,
    accountant: Accountant = "pld",
    *,
    exact: bool = True,
) -> float:
    """ε of Poisson-sampled sums and of other sums, which every member entered, together.

    Args:
        sampling_probability: probability of one member in one of the sampled sums, in (0, 1].
        noise_multiplier: noise multiplier of a sampled sum.
        steps: how many sampled sums were published.
        other_noise: noise multiplier of another sum.
        others: how many other sums were published.
        delta: in (0, 1).
        accountant: `pld` or `rdp`.
        exact: as of `epsilon_of_releases`.
    """
    if not others:
        return epsilon_of_releases(sampling_probability, noise_multiplier, steps, delta, accountant, exact=exact)
    if not steps:
        return epsilon_of_releases(1.0, other_noise, others, delta, accountant, exact=exact)
    if not noise_multiplier or not other_noise:
        return math.inf
    if accountant == "rdp":
        orders, divergences = _divergences(sampling_probability, noise_multiplier)
        both = divergences * steps + _divergences(1.0, other_noise)[1] * others
        with _quiet() as library:
            return float(library.rdp.compute_epsilon(orders, both, delta)[0])
    grid = _grid(noise_multiplier, steps, exact)
    one = _loss_distribution(sampling_probability, noise_multiplier, grid).self_compose(steps)
    with _quiet():
        all_others = _loss_distribution(1.0, other_noise / math.sqrt(others), grid)  # one Gaussian of them all
        return float(one.compose(all_others).get_epsilon_for_delta(delta))


def accountant_name(accountant: Literal["pld", "rdp", "gaussian"]) -> str:
    """Name of an accountant in reports, with the package and its version, since conversions to ε depend on both.

    Raises:
        ConfigError: if the package is missing.
    """
    from importlib.metadata import version

    with _quiet():  # refuses where it is missing
        pass
    kind = "exact Gaussian" if accountant == "gaussian" else accountant.upper()
    return f"{kind}, dp-accounting {version('dp-accounting')}"


def _least_noise(cost: Callable[[float], float], target: float, guess: float) -> float:
    """The smallest noise, up to the tolerance, whose cost is at most the target; costs fall with the noise."""
    above = guess
    while cost(above) > target:
        above *= 2
        if above > MOST_NOISE:
            raise ConfigError(
                f"no noise multiplier up to {MOST_NOISE:g} keeps to target_epsilon {target:g}; "
                "ask for a larger one, for fewer rounds or for a smaller share of the clients"
            )
    below = 0.8 * above
    while cost(below) <= target:
        above, below = below, 0.8 * below
        if below < LEAST_NOISE:
            raise ConfigError(
                f"target_epsilon {target:g} is kept with hardly any noise (a multiplier below {LEAST_NOISE:g}); "
                "ask for a smaller one"
            )
    tolerance = NOISE_TOLERANCE * below
    found = float(optimize.brentq(lambda noise: cost(noise) - target, below, above, xtol=tolerance))
    while cost(found) > target:
        found += tolerance
    return found


def _grid(noise_multiplier: float, releases: int, exact: bool = True) -> float:
    """Distance of the privacy losses at which a distribution is held.

    Its error in ε grows with the number of releases and with its square. Losses spread like 1/z², so with little noise,
    and ε in the hundreds, a fixed grid would take minutes.
    """
    fine = max(FINEST_GRID, math.sqrt(GRID_ERRORS[exact] / releases))
    grid = max(fine, FINEST_GRID * (0.7 / noise_multiplier) ** 3)
    return FINEST_GRID * 2.0 ** math.floor(math.log2(grid / FINEST_GRID))  # few entries, since a release stays cached


def _epsilon_of_gaussian(noise_multiplier: float, delta: float) -> float:
    with _quiet() as library:
        return float(library.get_epsilon_gaussian(noise_multiplier, delta))


@lru_cache(maxsize=8)
def _divergences(sampling_probability: float, noise_multiplier: float) -> tuple[list[float], np.ndarray]:
    """Orders, and the Rényi divergence of one release at each."""
    with _quiet() as library:
        gaussian = library.GaussianDpEvent(noise_multiplier)
        teller = library.rdp.RdpAccountant()
        teller.compose(library.PoissonSampledDpEvent(sampling_probability, gaussian))
        return teller.orders.tolist(), teller.rdp


@lru_cache(maxsize=8)
def _loss_distribution(sampling_probability: float, noise_multiplier: float, grid: float) -> Any:
    """The privacy loss of one release."""
    with _quiet() as library:
        return library.pld.privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=noise_multiplier, sampling_prob=sampling_probability, value_discretization_interval=grid
        )


@lru_cache(maxsize=4096)
def _cut_loss_distribution(
    num_samples: int, sampling_probability: float, most_samples: int, noise_multiplier: float, grid: float
) -> Any:
    """The privacy loss of one gradient of a truncated batch, for a client with this number of samples."""
    with _quiet() as library:
        return library.pld.privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=num_samples,
            sampling_probability=sampling_probability,
            truncated_batch_size=most_samples,
            noise_multiplier=noise_multiplier,
            value_discretization_interval=grid,
            neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE,
        )


@contextmanager
def _quiet() -> Iterator[Any]:
    """The package, without its warnings about omitted orders, which can only make ε larger."""
    library = optional_package("dp_accounting", "lit-fed[privacy]", "privacy", "--model.privacy")
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield library
    finally:
        logging.set_verbosity(before)
