"""Privacy accounting of noisy sums over clients: ε of a number of releases, and the noise for a given ε.

A release is a sum of clipped values with Gaussian noise, which every member enters independently with the same
probability (Poisson sampling). The noise multiplier z is the noise's standard deviation over the sensitivity of the sum
to one member. The guarantee is (ε, δ) differential privacy for adding or removing one member.

The package dp-accounting (the extra `privacy`), imported on first use, has both accountants and the search for the
noise. `rdp` bounds ε by Rényi divergences; `pld` composes distributions of the privacy loss, is close to exact, and
smaller. What is added here: the grid of those distributions, exact Gaussians, and the worst of many clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Literal

from lit_fed.errors import ConfigError
from lit_fed.system.packages import optional_package

__all__ = [
    "Accountant", "accountant_name", "epsilon_of_local_messages", "epsilon_of_releases", "epsilon_of_truncated_batches",
    "noise_for_local_messages", "noise_for_releases",
]  # fmt: skip

Accountant = Literal["pld", "rdp"]

FINEST_GRID = 1e-4  # of privacy losses, in nats
GRID_ERRORS = {True: 5e-5, False: 5e-3}  # error in ε from the grid with much noise, if exact and if not
NOISE_TOLERANCE = 1e-4  # of the search, relative to the noise multiplier
MOST_NOISE, LEAST_NOISE = 1e6, 1e-3  # bounds of the search


def epsilon_of_releases(
    sampling_probability: float, noise_multiplier: float, releases: int, delta: float, accountant: Accountant = "pld",
    *, beside: tuple[float, int] = (0.0, 0), exact: bool = True,
) -> float:  # fmt: skip
    """ε of releases of Poisson-sampled sums with Gaussian noise, for adding or removing one member.

    Args:
        sampling_probability: probability of one member in one release, in (0, 1]; 1: every member enters all of them.
        noise_multiplier: standard deviation of the noise over the sensitivity of the sum.
        releases: how many sums were published; 0 costs nothing.
        delta: in (0, 1).
        accountant: `pld` or `rdp`.
        beside: noise multiplier and number of other sums, which every member enters.
        exact: False for a tenth of the time, where ε by `pld` may be too large by a few thousandths.

    Returns:
        ε, inf without noise. It is never too small: the accountants' own approximations are upper bounds.

    Raises:
        ConfigError: if the package is missing.

    Source:
        Mironov, Talwar, Zhang 2019 (arXiv 1908.10530) for `rdp`; Doroshenko et al. 2022 (arXiv 2207.04380) for `pld`.
    """
    sums = [one for one in ((sampling_probability, noise_multiplier, releases), (1.0, *beside)) if one[2]]
    if not sums or not all(noise for _, noise, _ in sums):
        return math.inf if sums else 0.0
    if accountant == "rdp":
        each = [(_divergences(probability, noise), count) for probability, noise, count in sums]
        with _quiet() as library:
            total = sum(one.rdp * count for one, count in each)
            return float(library.rdp.compute_epsilon(each[0][0].orders, total, delta)[0])
    if len(sums) == 1 and sums[0][0] == 1:  # one Gaussian of all releases, whose loss has a closed form
        return _epsilon_of_gaussian(sums[0][1] / math.sqrt(sums[0][2]), delta)
    with _quiet() as library:
        event = _sums(library, sampling_probability, noise_multiplier, releases, beside)
        return _by_losses(library, event, _grid(noise_multiplier, releases, exact), delta)


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
    most = epsilon_of_releases(sampling_probability, LEAST_NOISE, releases, delta, "rdp", beside=beside)
    if most <= target_epsilon:
        raise ConfigError(
            f"target_epsilon {target_epsilon:g} is kept with hardly any noise (a multiplier below {LEAST_NOISE:g}); "
            "ask for a smaller one"
        )
    with _quiet() as library:

        def search(fresh: Callable[[], Any], below: float, guess: float) -> float:
            """The largest 1/z, in which ε is nearly linear, from a value that costs too little."""
            return library.calibrate_dp_mechanism(  # type: ignore[no-any-return]
                fresh, lambda x: _sums(library, sampling_probability, 1 / x, releases, beside), target_epsilon, delta,
                library.LowerEndpointAndGuess(below, guess), tol=NOISE_TOLERANCE * below,
            )  # fmt: skip

        try:
            found = search(library.rdp.RdpAccountant, 1 / MOST_NOISE, 1.0)
        except library.mechanism_calibration.NoBracketIntervalFoundError as error:
            raise ConfigError(
                f"no noise multiplier up to {MOST_NOISE:g} keeps to target_epsilon {target_epsilon:g}; ask for a "
                "larger one, for fewer rounds or for a smaller share of the clients"
            ) from error
        if accountant == "pld":
            grid = _grid(0.5 / found, releases)  # at least as coarse as that of the answer, whose ε is then no larger
            fresh = partial(library.pld.PLDAccountant, value_discretization_interval=grid)
            found = search(fresh, 0.9 * found, 1.15 * found)
    return 1 / found


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
    return _epsilon_of_gaussian(noise_multiplier / 2 / math.sqrt(messages), delta) if messages else 0.0


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
        with _quiet() as library:
            event = library.TruncatedSubsampledGaussianDpEvent(
                size, sampling_probability, most_samples, noise_multiplier
            )
            repeated = library.SelfComposedDpEvent(event, steps)
            return _by_losses(library, repeated, _grid(noise_multiplier, steps, exact), delta)

    # a coarse grid only makes ε larger, so a size whose coarse ε is below an exact one needs no exact one
    rough = sorted(((epsilon(size, False), size) for size in most_steps), reverse=True)
    if not exact:
        return rough[0][0]
    largest = 0.0
    for bound, size in rough:
        if bound > largest:
            largest = max(largest, epsilon(size, True))
    return largest


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


def _sums(
    library: Any, sampling_probability: float, noise_multiplier: float, releases: int, beside: tuple[float, int]
) -> Any:
    """The event of `epsilon_of_releases`."""
    sampled = library.PoissonSampledDpEvent(sampling_probability, library.GaussianDpEvent(noise_multiplier))
    each = ((sampled, releases), (library.GaussianDpEvent(beside[0]), beside[1]))
    return library.ComposedDpEvent([library.SelfComposedDpEvent(event, count) for event, count in each if count])


def _by_losses(library: Any, event: Any, grid: float, delta: float) -> float:
    """ε of an event by `pld`."""
    teller = library.pld.PLDAccountant(value_discretization_interval=grid)
    return float(teller.compose(event).get_epsilon(delta))


def _grid(noise_multiplier: float, releases: int, exact: bool = True) -> float:
    """Distance of the privacy losses at which a distribution is held.

    Its error in ε grows with the number of releases and with its square. Losses spread like 1/z², so with little noise,
    and ε in the hundreds, a fixed grid would take minutes.
    """
    fine = max(FINEST_GRID, math.sqrt(GRID_ERRORS[exact] / max(releases, 1)))
    grid = max(fine, FINEST_GRID * (0.7 / noise_multiplier) ** 3)
    return FINEST_GRID * 2.0 ** math.floor(math.log2(grid / FINEST_GRID))  # grids are nested: a coarser one costs more


def _epsilon_of_gaussian(noise_multiplier: float, delta: float) -> float:
    with _quiet() as library:
        return float(library.get_epsilon_gaussian(noise_multiplier, delta))


@lru_cache(maxsize=8)
def _divergences(sampling_probability: float, noise_multiplier: float) -> Any:
    """`rdp` after one release, kept since releases add up and each evaluation of a run asks."""
    with _quiet() as library:
        return library.rdp.RdpAccountant().compose(_sums(library, sampling_probability, noise_multiplier, 1, (0.0, 0)))


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
