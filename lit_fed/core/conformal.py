"""Split-conformal prediction: thresholds from calibration samples, sets of classes, intervals of numbers.

A threshold is the k-th smallest of n scores of calibration samples, k = ⌈(n + 1)(1 − α)⌉. If these and a later sample
are exchangeable, and the model was fitted without them, the later score exceeds the threshold with probability at most
α (Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2005, section 4.1). Sets of classes have the score
1 − p(y | x) (Sadinle, Lei, Wasserman, https://arxiv.org/abs/1609.00451), intervals |y − ŷ| (Lei and others,
https://arxiv.org/abs/1604.04173, algorithm 2). Given a threshold, the number of m later samples that are covered is
BetaBinomial(m, k, n + 1 − k) (Vovk, https://arxiv.org/abs/1209.2673).

Symbols:
    n, C   -> calibration samples of a client, classes
    1 − α  -> `coverage`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.positive_numbers import LogNormal, Poisson
from lit_fed.core.targets import Binary, Multiclass, Regression, Target
from lit_fed.errors import ConfigError

__all__ = [
    "chance_of_fewer", "check_target", "covered_and_size", "covered_by_class", "described", "fewest", "intervals",
    "nonconformity", "rank", "sets", "size_name", "sizes", "threshold",
]  # fmt: skip


def check_target(target: Target, coverage: float, class_names: Sequence[str] | None = None) -> None:
    """Refuse labels that are neither one class nor one number, and names of classes that a column could not hold.

    Raises:
        ConfigError: naming the labels, or a class.
    """
    for name in class_names or ():
        if "|" in name:
            raise ConfigError(
                f"--model.conformal is {coverage:g}, whose sets are written as a|b; rename class {name!r}"
            )
    if target.positions or not isinstance(target, Binary | Multiclass | Regression | Poisson | LogNormal):
        raise ConfigError(
            f"--model.conformal is {coverage:g}, and labels are {target.name} ({type(target).__name__}): sets and "
            "intervals are of one class or one number for each sample; leave it out"
        )


def rank(num_samples: int, coverage: float) -> int:
    """K = ⌈(n + 1)(1 − α)⌉, exact for decimals; above n there is no threshold.

    Example:
        >>> rank(9, 0.9), rank(8, 0.9), rank(99, 0.9)
        (9, 9, 90)
    """
    return math.ceil((num_samples + 1) * Fraction(str(coverage)))


def fewest(coverage: float) -> int:
    """The smallest number of calibration samples with a finite threshold, ⌈1/α⌉ − 1.

    Example:
        >>> fewest(0.9), fewest(0.8), fewest(0.95)
        (9, 4, 19)
    """
    return math.ceil(1 / (1 - Fraction(str(coverage)))) - 1


def threshold(scores: Tensor, coverage: float) -> float:
    """The k-th smallest of the scores [n]; infinite if there are too few, or too many are NaN."""
    k = rank(len(scores), coverage)
    return float(scores.nan_to_num(nan=math.inf, posinf=math.inf).kthvalue(k).values) if k <= len(scores) else math.inf


def chance_of_fewer(covered: int, later: np.ndarray, held: np.ndarray, coverage: float) -> float:
    """Probability that so few later samples are covered, or fewer, if they are exchangeable with calibration samples.

    Their number is a sum of beta-binomials, here the beta-binomial with its mean and variance.

    Args:
        covered: covered samples of all thresholds.
        later: later samples of each threshold, at least one, [u].
        held: calibration samples behind it, enough for a finite one, [u].
        coverage: 1 − α.

    Example:
        >>> few = chance_of_fewer(6, np.array([24]), np.array([99]), 0.9)
        >>> few < 1e-6, round(chance_of_fewer(24, np.array([24]), np.array([99]), 0.9), 6)
        (True, 1.0)
    """
    from scipy.special import betaln, gammaln

    share = np.array([rank(int(n), coverage) for n in held]) / (held + 1)
    each = later * share * (1 - share)
    number, mean, variance = later.sum(), (later * share).sum(), (each * (1 + (later - 1) / (held + 2))).sum()
    common = mean / number
    tied = (variance / (number * common * (1 - common)) - 1) / max(number - 1, 1)  # correlation of two samples
    concentration = min(1 / max(tied, 1e-12) - 1, 1e9)
    a, b = common * concentration, (1 - common) * concentration
    k = np.arange(covered + 1)
    log_choose = gammaln(number + 1) - gammaln(k + 1) - gammaln(number - k + 1)
    return float(np.exp(log_choose + betaln(k + a, number - k + b) - betaln(a, b)).sum())


def nonconformity(target: Target, prediction: Tensor, y: Tensor) -> Tensor:
    """The score of each sample, [n] float64: 1 − p(y | x), or a distance in the units of the label.

    Args:
        target: the target.
        prediction: from `Target.mix`, [n, ...].
        y: labels [n].
    """
    if not target.continuous:
        return _of_classes(prediction).gather(1, y[:, None])[:, 0]
    center, y = (target.in_units(one).double() for one in (target.shown(prediction), y))
    return (y.log() - center.log()).abs() if isinstance(target, LogNormal) else (y - center).abs()


def sets(prediction: Tensor, thresholds: Tensor) -> Tensor:
    """Whether each class is in the set of a sample, [n, C] bool; a set may be empty.

    Args:
        prediction: log-probabilities [n, C].
        thresholds: of each sample, [n] float64.
    """
    return _of_classes(prediction) <= thresholds[:, None]


def _of_classes(prediction: Tensor) -> Tensor:
    """The score of each class, [n, C] float64."""
    return 1 - prediction.exp().double()


def intervals(target: Target, prediction: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper ends [n] float64 in the units of the labels; counts and amounts end at 0.

    Args:
        target: the target.
        prediction: from `Target.mix`, [n, ...].
        thresholds: of each sample, [n] float64.
    """
    center = target.in_units(target.shown(prediction)).double()
    if isinstance(target, LogNormal):
        return center * (-thresholds).exp(), center * thresholds.exp()
    least = 0.0 if isinstance(target, Poisson) else -math.inf
    return (center - thresholds).clamp(min=least), center + thresholds


def sizes(target: Target, prediction: Tensor, thresholds: Tensor) -> Tensor:
    """Number of classes in each set, or width of each interval, [n] float64; arguments as of `intervals`."""
    if not target.continuous:
        return sets(prediction, thresholds).sum(1, dtype=torch.float64)
    lower, upper = intervals(target, prediction, thresholds)
    return upper - lower


def covered_and_size(
    target: Target, num_samples: Tensor, y: Tensor, prediction: Tensor, thresholds: Tensor
) -> tuple[Tensor, Tensor]:
    """Covered samples of each client, and the sum of its sets' sizes, [C] float64 each.

    Args:
        target: the target.
        num_samples: samples of each client, [C] int64.
        y: labels, client after client, [n].
        prediction: from `Target.mix`, [n, ...].
        thresholds: of each client, [C] float64.
    """
    covered, size = torch.zeros(2, len(num_samples), dtype=torch.float64)
    if len(y):
        owner, each, hits = _covered(target, num_samples, y, prediction, thresholds)
        covered.index_add_(0, owner, hits)
        size.index_add_(0, owner, sizes(target, prediction, each))
    return covered, size


def covered_by_class(target: Target, num_samples: Tensor, y: Tensor, prediction: Tensor, thresholds: Tensor) -> Tensor:
    """Samples of each class and covered ones among them, of each client, [C, 2, classes] float64.

    Arguments are those of `covered_and_size`.
    """
    counts = torch.zeros(len(num_samples), 2, target.num_classes, dtype=torch.float64)
    if len(y):
        owner, _, hits = _covered(target, num_samples, y, prediction, thresholds)
        for row, one in enumerate((torch.ones_like(hits), hits)):
            counts.index_put_((owner, torch.tensor(row), y), one, accumulate=True)
    return counts


def _covered(
    target: Target, num_samples: Tensor, y: Tensor, prediction: Tensor, thresholds: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Client and threshold of each sample, and whether its set holds its label, [n] each."""
    owner = torch.arange(len(num_samples)).repeat_interleave(num_samples)
    each = thresholds[owner]
    return owner, each, (nonconformity(target, prediction, y) <= each).double()


def size_name(target: Target) -> str:
    """Key of the mean size in results."""
    return "width" if target.continuous else "set_size"


def described(target: Target, coverage: float | None, thresholds: Mapping[str, tuple[float, bool]]) -> dict[str, Any]:
    """The entry `sets` in the description of a program; {} without a coverage.

    Args:
        target: the target.
        coverage: of sets or intervals.
        thresholds: by the name of the client, and whether its own samples decided it; an infinite one, which JSON
            lacks, is null: no class is left out.
    """
    if coverage is None:
        return {}
    if not target.continuous:
        rule = "classes with 1 - probability <= threshold"
    elif isinstance(target, LogNormal):
        rule = "value * exp(-threshold) to value * exp(threshold)"
    else:
        lower = "max(0, value - threshold)" if isinstance(target, Poisson) else "value - threshold"
        rule = f"{lower} to value + threshold"
    legal = {name: one if math.isfinite(one) else None for name, (one, _) in thresholds.items()}
    own = {name: is_own for name, (_, is_own) in thresholds.items()}
    return {"sets": {"coverage": coverage, "rule": rule, "thresholds": legal, "own_threshold": own}}
