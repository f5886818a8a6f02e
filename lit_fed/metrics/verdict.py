"""Does joining pay for a client: paired gains over training alone, on samples that chose nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.targets import Target
from lit_fed.metrics.paired import Difference
from lit_fed.metrics.scores import USUAL
from lit_fed.system.packages import pd

__all__ = [
    "COLUMNS", "EVIDENCE", "Gain", "Interval", "constant_scores", "gain_of", "in_words", "mean_gain", "metric_in",
    "probabilities", "verdict_row",
]  # fmt: skip

EVIDENCE = 0.5
"""Probability of a gain above which a client is served by the blend in place of its own training.

Chosen on halves of validation samples over 29 tables (docs/results/joining.md): stricter values lose more of the gain
than they spare clients a loss.
"""

SHARED = 0.9
"""Weight from which one run counts as what serves a client."""

KINDS = {
    "gains": "clearly gain", "loses": "clearly lose", "cannot be told": "cannot be told by their test samples",
    "alone": "are served alone, for want of evidence",
}  # fmt: skip
"""Verdicts of clients, and how a line counts them."""

COLUMNS = {
    "served": f"`alone`, its own training; `shared`, one other candidate with a weight above {SHARED}; or `blend`",
    "num_test": "its test samples, which chose nothing",
    "_alone": "result on them under its own training",
    "_served": "result on them as it is served",
    "_constant": "result on them of one prediction: its most frequent training label, or the mean of its labels",
    "gain, low, high": "its gain over training alone, larger is better, with an interval of 95 %",
    "verdict": "`gains` or `loses` if the interval excludes 0, else `cannot be told`; `alone` if it is served alone",
    "chance": f"probability, by validation samples, that others help it: above {EVIDENCE} they serve it",
}
"""Meaning of the columns of `verdict.csv`; those that begin with `_` follow the name of the metric."""


class Interval(NamedTuple):
    """A mean, and its interval of 95 %."""

    mean: float
    low: float
    high: float


class Gain(NamedTuple):
    """A client's gain, and what can be said of it."""

    interval: Interval
    samples: int

    @property
    def said(self) -> str:
        """`gains`, `loses`, or that its samples do not tell."""
        if self.interval.low > 0:
            return "gains"
        return "loses" if self.interval.high < 0 else "cannot be told"


def gain_of(served: np.ndarray, alone: np.ndarray) -> Gain:
    """The mean difference of paired scores, larger ones better, with its interval of 95 %.

    Hits, 0 or 1, by Agresti and Min ("Simple improved confidence intervals for comparing matched proportions",
    Statistics in Medicine 24, 2005): half a pair is added to each of the four kinds. Numbers by Student's t, from two
    samples on; one sample tells nothing.

    Args:
        served: scores of a client's samples as it is served, [n].
        alone: scores of the same samples under its own training, [n].

    Example:
        >>> gain_of(np.array([1.0, 1, 1, 1]), np.array([0.0, 1, 1, 1])).said
        'cannot be told'
    """
    difference, number = np.asarray(served, float) - np.asarray(alone, float), len(served)
    if not number:
        return Gain(Interval(math.nan, -math.inf, math.inf), 0)
    mean = float(difference.mean())
    if np.isin(difference, (-1, 0, 1)).all() and np.isin(served, (0, 1)).all():
        more, fewer, all_pairs = (difference > 0).sum() + 0.5, (difference < 0).sum() + 0.5, number + 2
        centre = (more - fewer) / all_pairs
        half = 1.959964 * math.sqrt((more + fewer - (more - fewer) ** 2 / all_pairs) / all_pairs**2)
        return Gain(Interval(mean, float(centre - half), float(centre + half)), number)
    return Gain(_of_student(difference), number)


def constant_scores(target: Target, trained: Tensor, y: Tensor) -> Tensor:
    """Hits or squared errors of one prediction: the most frequent training label, or their mean, [n].

    Args:
        target: of the runs.
        trained: training labels of the client, [m].
        y: labels of its test samples, [n].
    """
    if not len(trained):
        return torch.full((len(y),), math.nan)
    if target.continuous:
        return target.score(trained.mean().expand(len(y), 1), y)[1]
    return (y == trained.mode().values).double()


def verdict_row(
    client: str, target: Target, served: Tensor, alone: Tensor, constant: Tensor, mixture: Tensor, chance: float
) -> dict[str, Any]:
    """The row of `verdict.csv` of a client.

    Args:
        client: its name.
        target: of the runs.
        served: hits or squared errors of its test samples as it is served, [n].
        alone: the same under its own training, [n].
        constant: the same by `constant_scores`, [n].
        mixture: its weights, of which the last is that of its own training, [K].
        chance: probability that others help it.
    """
    metric, sign = target.metric, -1 if target.continuous else 1  # larger is better
    after, before = (sign * one.double().numpy() for one in (served, alone))
    is_alone, largest = bool(mixture[-1] == 1), float(mixture.max())
    by = "alone" if is_alone else "shared" if largest > SHARED else "blend"
    gain = Gain(Interval(0.0, 0.0, 0.0), len(after)) if is_alone else gain_of(after, before)
    return {
        "client": client, "served": by, "num_test": len(after), f"{metric}_alone": abs(before.mean()),
        f"{metric}_served": abs(after.mean()), f"{metric}_constant": float(constant.double().mean()),
        **dict(zip(("gain", "low", "high"), gain.interval, strict=True)),
        "verdict": by if is_alone else gain.said, "chance": chance,
    }  # fmt: skip


def mean_gain(gains: np.ndarray) -> Interval:
    """The mean over clients, each counting once, with an interval over clients.

    Args:
        gains: of the clients, [T]; NaN for a client without samples.
    """
    return _of_student(gains[~np.isnan(gains)])


def metric_in(table: pd.DataFrame) -> str:
    """The metric of `verdict.csv`."""
    return next(name.removesuffix("_alone") for name in table.columns if name.endswith("_alone"))


def in_words(table: pd.DataFrame) -> str:
    """What `verdict.csv` says of all clients; a second line if training alone is no better than a constant."""
    metric = metric_in(table)
    kinds = (f"{(table['verdict'] == one).sum()} {said}" for one, said in KINDS.items())
    before, after = (table[f"{metric}_{one}"].mean() for one in ("alone", "served"))
    mean = mean_gain(table["gain"].to_numpy(float))
    clear = "" if mean.low > 0 or mean.high < 0 else ", so that a gain of all together cannot be told"
    return (
        f"joining: {metric} {before:.4g} alone, {after:.4g} as served, a gain of {mean.mean:.3g} "
        f"[{mean.low:.3g}, {mean.high:.3g}] on average over {len(table)} clients, each counting once{clear}; "
        f"{', '.join(kinds)}{_if_untrained(table, metric)}"
    )


def _if_untrained(table: pd.DataFrame, metric: str) -> str:
    """The second line, with the break ahead of it; "": training alone is better, or an earlier version wrote this."""
    columns = [f"{metric}_alone", f"{metric}_constant"]
    if columns[1] not in table:
        return ""
    alone, constant = table[columns].dropna().mean()
    if not (alone <= constant if USUAL[metric] else alone >= constant):
        return ""
    label = "most frequent training label" if USUAL[metric] else "mean training label"
    return (
        f"\ntraining alone: {metric} {alone:.4g}, no better than {constant:.4g} of always predicting a client's {label}"
        ", so that a gain over it tells little; give more --trainer.max_epochs, or other --model.solver.lr"
    )


def probabilities(differences: Sequence[np.ndarray], *, pooled: bool = True) -> np.ndarray:
    """The probability that each client's true mean difference is above 0, [T].

    Clients' means are normal about a common one, with a variance between clients by DerSimonian and Laird ("Meta-
    analysis in clinical trials", Controlled Clinical Trials 7, 1986) and one variance of samples within clients: a
    client with few samples follows the others. A client without samples has the probability of a new client.

    Args:
        differences: gains of each client's samples, [n_t] each.
        pooled: by the samples of all clients; else by Student's t of each client's own, 1/2 for less than two.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> better = probabilities([rng.normal(1.0, 1.0, 40) for _ in range(10)])
        >>> bool((better > 0.95).all())
        True
    """
    from scipy.special import ndtr, stdtr

    if not pooled:
        several = [one if len(one) > 1 else np.array([-1.0, 1.0]) for one in differences]  # whose t is 0
        errors = [max(one.std(ddof=1) / math.sqrt(len(one)), 1e-300) for one in several]
        each = zip(several, errors, strict=True)
        return np.array([stdtr(len(one) - 1, one.mean() / error) for one, error in each])
    sizes = np.array([len(one) for one in differences])
    means = np.array([one.mean() if len(one) else 0.0 for one in differences])
    freedom = np.maximum(sizes - 1, 0).sum()
    if not freedom or not (sizes > 0).sum() > 1:
        return np.full(len(sizes), 0.5)
    within = sum(((one - one.mean()) ** 2).sum() for one in differences if len(one)) / freedom
    weight = sizes / max(within, 1e-12)
    centre = (weight * means).sum() / weight.sum()
    spread = (weight * (means - centre) ** 2).sum() - ((sizes > 0).sum() - 1)
    between = max(0.0, spread / (weight.sum() - (weight**2).sum() / weight.sum()))
    common = weight / (1 + between * weight)
    centre, error = (common * means).sum() / common.sum(), 1 / common.sum()
    share = between * weight / (1 + between * weight)  # of a client's own mean; 0 without samples
    mean = share * means + (1 - share) * centre
    variance = (1 - share) * between + (1 - share) ** 2 * error
    found: np.ndarray = ndtr(mean / np.sqrt(np.maximum(variance, 1e-300)))
    return found


def _of_student(values: np.ndarray) -> Interval:
    """The mean of independent values, with Student's interval; without end for less than two."""
    if len(values) < 2:
        return Interval(float(values.mean()) if len(values) else math.nan, -math.inf, math.inf)
    found = Difference(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1)
    return Interval(found.mean, found.low, found.high)
