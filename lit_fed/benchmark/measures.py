"""Scores of clients from their predictions, and statistics over clients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.core.blocks import serving_blocks
from lit_fed.core.seeds import generator
from lit_fed.core.types import RoundRecord, Split
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import NotFiniteError
from lit_fed.serving import predict_block
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = [
    "FEW", "METRICS", "SCORES", "Scores", "ValidationCurve", "area", "calibration_error", "primary", "rounded",
    "scores_of", "scores_on_test",
]  # fmt: skip

METRICS = ("accuracy", "auroc", "r2")
"""Primary metrics, all larger for the better: share of hits; area under the ROC curve; 1 − mean squared error of
standardised labels, which for all clients together is about R²."""

SCORES = ("clients", "pooled")
"""Scores of a task: the mean over clients, or the metric of the samples of all clients together."""

ADAPTED_ON = (0, 10, 100)
"""Percent of the training samples that unseen clients adapt on."""

FEW = 5
"""With fewer clients, an interval of a pooled score is for other persons of the same clients."""

BINS = 15

CLIENT_DIGITS = 4
"""Digits of a client's score in a record: its test samples decide no more."""

Population = Literal["seen", "unseen"]

Persons = Callable[[str], np.ndarray]
"""The person of each test sample of a client."""


class Scores(NamedTuple):
    """Scores of the clients of a population."""

    clients: list[str]
    samples: list[int]
    score: list[float | None]  # None: undefined, since all labels are of one class
    ece: float | None  # expected calibration error over all samples; None for quantities
    pooled: float | None  # metric of all samples together
    influence: list[float] | None = None  # (n − 1)(pooled − pooled without a unit) of n units; None: not asked for


def primary(scores: Scores, score: str) -> float:
    """The score of a task, one of `SCORES`: the clients' mean by samples or the pooled metric; NaN without one."""
    if score == "pooled":
        return math.nan if scores.pooled is None else scores.pooled
    held = [(score, number) for score, number in zip(scores.score, scores.samples, strict=True) if score is not None]
    total = sum(number for _, number in held)
    return sum(score * number for score, number in held) / total if total else math.nan


# ---------------------------------------------------------------------- measuring
def measured(
    module: FederatedModule, data: FederatedDataModule, population: Population, split: Literal["val", "test"],
    metric: str, percent: int = 100, persons: Persons | None = None,
) -> Scores:  # fmt: skip
    """Serve the clients of a population, which adapt on some percent of their training samples, and score a split.

    With `persons` the result has the influence of each client, or of each person if clients are few.
    """
    clients = data.populations[0] if population == "seen" else data.populations[1]
    assert clients is not None
    scored, train = data.splits(population, split)
    train = train if percent == 100 else _part(train, percent, data.seed)
    parts: dict[int, tuple[Tensor, Tensor]] = {}  # labels and log-probabilities by client
    with torch.no_grad():
        for block in serving_blocks(scored, train, None, clients_per_block=data.clients_per_block):
            served = predict_block(module.federation, block, seen=population == "seen")
            sizes = served.sizes.tolist()
            pairs = zip(served.labels.split(sizes), served.log_prob.split(sizes), strict=True)
            parts |= dict(zip(served.client_ids.tolist(), pairs, strict=True))
    order = sorted(parts)
    for one in order:
        if parts[one][1].isnan().any():  # models may be finite where what they predict is not
            raise NotFiniteError(one, "log_prob", module.federation.server.rounds_done, "its predictions are NaN")
    names = [clients.names[one - scored.first_id] for one in order]
    return scores_of(names, [parts[one] for one in order], metric, persons)


def _part(train: Split, percent: int, seed: int) -> Split:
    """The first training samples of each client in a drawn order: ⌈percent · n / 100⌉ of n."""
    kept, sizes = [], []
    for number, (start, size) in enumerate(zip(train.offsets[:-1].tolist(), train.sizes.tolist(), strict=True)):
        wanted = -(-size * percent // 100)
        order = generator(seed, 0, number, "benchmark adaptation").permutation(size)[:wanted]
        kept.append(start + np.sort(order))
        sizes.append(wanted)
    rows = torch.from_numpy(np.concatenate(kept))
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return Split(train.x[rows], train.y[rows], offsets, train.first_id)


def scores_on_test(
    module: FederatedModule, data: FederatedDataModule, metric: str, persons: Persons | None = None
) -> dict[str, Scores]:
    """Scores of test samples, read once: of seen clients, and of unseen ones for each share of `ADAPTED_ON`."""
    of_unseen = {f"unseen_{one}": one for one in ADAPTED_ON}
    found = {"seen": measured(module, data, "seen", "test", metric, persons=persons)}
    return found | {
        name: measured(module, data, "unseen", "test", metric, share, persons) for name, share in of_unseen.items()
    }


class ValidationCurve(FederatedCallback):
    """Scores of the seen clients' validation samples while they train, with the bytes up to each round.

    Args:
        metric: one of `METRICS`.
        score: one of `SCORES`.
        points: number of measured rounds, the last one among them.

    Attributes:
        curve: round, score and bytes of each measured round.
        bytes_up, bytes_down: of all clients and rounds.
        seconds: CPU time of measuring, which is no time of training.
    """

    def __init__(self, metric: str = "accuracy", score: str = "clients", points: int = 10) -> None:
        self.metric, self.score, self.points = metric, score, points
        self.curve: list[list[Any]] = []
        self.bytes_up = self.bytes_down = self.seconds = 0.0

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        self.bytes_up += record.bits_up / 8
        self.bytes_down += record.bits_down / 8

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the rounds that divide the run into `points` parts."""
        module, rounds = federated(pl_module), int(trainer.max_epochs or 1)
        done = module.num_rounds_done
        if done * self.points // rounds > (done - 1) * self.points // rounds:
            began = time.process_time()
            score = short(primary(measured(module, data_of(trainer), "seen", "val", self.metric), self.score))
            self.curve.append([done, score, round(self.bytes_up + self.bytes_down)])
            self.seconds += time.process_time() - began


def scores_of(
    names: list[str], parts: list[tuple[Tensor, Tensor]], metric: str, persons: Persons | None = None
) -> Scores:
    """Scores from labels [n] and log-probabilities [n, C] of each client, or means [n, 1] of quantities.

    Of sequences, labels [n, L] and log-probabilities [n, L, C], each position counts.
    """
    labels = [y.double().flatten().numpy() for y, _ in parts]
    outputs = [shown.double().flatten(0, -2).numpy() for _, shown in parts]
    every, shown = np.concatenate(labels), np.concatenate(outputs)
    pairs, sizes = list(zip(labels, outputs, strict=True)), list(map(len, labels))
    pooled = {"r2": _r2, "accuracy": _hits, "auroc": area}[metric]
    of_client = _one_less_error if metric == "r2" else pooled
    error = None if metric == "r2" else calibration_error(every, shown)
    influence = None if persons is None else _influence(every, shown, *_units(names, sizes, persons), pooled)
    return Scores(names, sizes, [of_client(y, log) for y, log in pairs], error, pooled(every, shown), influence)


def _units(names: list[str], sizes: list[int], persons: Persons) -> tuple[np.ndarray, int]:
    """The unit of each value, and their number: clients, or persons if there are fewer than `FEW` clients."""
    if len(names) >= FEW:
        return np.repeat(np.arange(len(names)), sizes), len(names)
    parts, number = [], 0
    for name, size in zip(names, sizes, strict=True):
        known, of_sample = np.unique(persons(name), return_inverse=True)
        parts.append(np.repeat(number + of_sample, size // len(of_sample)))  # a sequence has many values
        number += len(known)
    return np.concatenate(parts), number


def _influence(
    labels: np.ndarray, shown: np.ndarray, unit: np.ndarray, number: int, pooled: Callable[..., float | None]
) -> list[float]:
    """The jackknife: (n − 1)(score − score without a unit) of each of n units; 0 where the score is undefined."""
    whole, found = pooled(labels, shown), [0.0] * number
    for one in range(number if whole is not None else 0):
        without = pooled(labels[unit != one], shown[unit != one]) if number > 1 else None
        found[one] = 0.0 if without is None else (number - 1) * (float(whole or 0) - without)
    return found


def _r2(labels: np.ndarray, means: np.ndarray) -> float:
    return 1 - float(np.square(labels - means[:, 0]).mean() / labels.var())


def _one_less_error(labels: np.ndarray, means: np.ndarray) -> float:
    return 1 - float(np.square(labels - means[:, 0]).mean())


def _hits(labels: np.ndarray, log_prob: np.ndarray) -> float:
    return float((log_prob.argmax(1) == labels).mean())


def area(labels: np.ndarray, log_prob: np.ndarray) -> float | None:
    """Area under the ROC curve of the second class; None if one class is missing.

    Example:
        >>> area(np.array([0, 1, 1, 0]), np.log([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3], [0.7, 0.3]]))
        0.875
    """
    positive = labels == 1
    count = int(positive.sum())
    if not 0 < count < len(labels):
        return None
    _, place, number = np.unique(log_prob[:, 1], return_inverse=True, return_counts=True)
    rank = (number.cumsum() - (number - 1) / 2)[place]  # ties share the mean of their ranks
    return float((rank[positive].sum() - count * (count + 1) / 2) / (count * (len(labels) - count)))


def calibration_error(labels: np.ndarray, log_prob: np.ndarray) -> float:
    """Expected calibration error: mean distance of confidence and accuracy over 15 bins of equal width.

    Example:
        >>> round(calibration_error(np.array([0, 1]), np.log([[0.9, 0.1], [0.9, 0.1]])), 6)
        0.4
    """
    confidence, hit = np.exp(log_prob.max(1)), log_prob.argmax(1) == labels
    number = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gap = np.bincount(number, weights=confidence - hit, minlength=BINS)
    return float(np.abs(gap).sum() / len(labels))


def short(value: float | None, digits: int = 6) -> float | None:
    """A number with few digits; None if it is undefined or not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def rounded(scores: Scores) -> dict[str, Any]:
    """Scores as they are kept, clients sorted by name; the task's file has their names and numbers of samples."""
    ordered = [score for _, score in sorted(zip(scores.clients, scores.score, strict=True))]
    kept: dict[str, Any] = {"score": [short(one, CLIENT_DIGITS) for one in ordered]}
    kept |= {name: short(getattr(scores, name)) for name in ("ece", "pooled")}
    if scores.influence is None:
        return kept
    influence = scores.influence
    if len(influence) == len(ordered):  # of clients
        influence = [one for _, one in sorted(zip(scores.clients, influence, strict=True))]
    return kept | {"influence": [short(one, CLIENT_DIGITS) for one in influence]}
