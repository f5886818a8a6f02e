"""Thresholds of the clients' prediction sets, as a run finds them and its checkpoints keep them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lit_fed import serving
from lit_fed.core import conformal
from lit_fed.core.conformal import threshold
from lit_fed.core.reduce import all_reduce
from lit_fed.core.targets import Target
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.training.history import plain_settings
from lit_fed.training.output import Predictions

__all__ = ["Thresholds", "calibrated", "check_calibration", "covered_and_size", "covered_by_class", "said_of"]


class Thresholds(NamedTuple):
    """Thresholds of seen clients, and the shared one of clients with too few calibration samples.

    Attributes:
        coverage: 1 − α.
        fraction: share of later clients' training samples that decide their thresholds: `--data.calibration_fraction`,
            or 0 if the training kept persons or times together, which these clients' data do not name.
        served: digest of what served the clients; other models or other adaptation need other thresholds.
        shared: threshold of all samples together; infinite if it was not formed.
        ids: ascending numbers of clients, [m] int64.
        own: their thresholds, infinite with too few samples, [m] float64.
    """

    coverage: float
    fraction: float
    served: str
    shared: float = math.inf
    ids: Tensor = torch.zeros(0, dtype=torch.int64)
    own: Tensor = torch.zeros(0, dtype=torch.float64)

    def completed(self, client_ids: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Thresholds that serve clients, [C] float64, and whether they are by a client's own samples, [C] bool.

        Args:
            client_ids: the clients, [C].
            own: thresholds by samples at hand, infinite without enough, [C] float64; those that are kept stand in.
        """
        kept = dict(zip(self.ids.tolist(), self.own.tolist(), strict=True))
        known = torch.tensor([kept.get(one, math.inf) for one in client_ids.tolist()], dtype=torch.float64)
        own = torch.where(own.isinf(), known, own)
        return torch.where(own.isinf(), self.shared, own), ~own.isinf()


def check_calibration(coverage: float | None, data: FederatedDataModule) -> None:
    """Refuse a coverage without samples for thresholds, and such samples without a coverage.

    Raises:
        ConfigError: naming both settings.
    """
    fraction = data.calibration_fraction
    if coverage is None and fraction:
        raise ConfigError(
            f"--data.calibration_fraction is {fraction:g}, and only --model.conformal reads these samples; give "
            "--model.conformal 0.9, or leave it out"
        )
    if coverage is not None and not fraction:
        raise ConfigError(
            f"--model.conformal is {coverage:g}, and no samples are set apart for its thresholds; give "
            "--data.calibration_fraction 0.2"
        )


def calibrated(trainer: Trainer | None, module: Any, data: Any) -> Thresholds:
    """The thresholds that serve now: those that the module has, if they still hold, or new ones.

    Of clients on nodes, and after a private training, there is no shared one: it would release what calibration
    samples say, which no guarantee covers. A checkpoint that serves new clients has what the training found.
    """
    known, coverage = module.thresholds, module.settings.conformal
    federation = module.federation
    served = hashlib.blake2b(digest_size=16)
    steps = (plain_settings(one) for one in (module.algorithm, federation.terms.solver.given))
    tuned = [one for one in module.settings.features if one.only_serves]
    for part in (federation.server.rounds_done, *steps, tuned):
        served.update(repr(part).encode())
    if known is not None and (known.coverage, known.served) == (coverage, served.hexdigest()):
        return known  # type: ignore[no-any-return]
    if trainer is None or not isinstance(data, FederatedDataModule):
        return Thresholds(coverage, 0.0 if known is None else known.fraction, served.hexdigest())
    units = data.split == "time" or getattr(data.dataset, "group_column", None) is not None
    found = Thresholds(coverage, 0.0 if units else data.calibration_fraction, served.hexdigest())
    seen = data.populations[0]
    if isinstance(federation.client_trainer, serving.MeasuresElsewhere) or seen.calibration is None:
        return found
    sizes = seen.calibration.sizes[seen.positions].tolist()
    scores = torch.zeros(sum(sizes), dtype=torch.float64, device=module.device)
    each = scores.split(sizes)
    with torch.no_grad(), trainer.precision_plugin.val_step_context():
        for given in data.serving("seen", "calibration"):
            for block in serving.pieces(federation, trainer.strategy.batch_to_device(given)):
                if len(block.client_ids):
                    predicted = serving.predict_block(federation, block, seen=True)
                    for row, own in zip(block.rows.tolist(), predicted.conformal_scores(module.target), strict=True):
                        each[row].copy_(own)
    scores = all_reduce(scores).cpu()
    return found._replace(
        shared=math.inf if module.settings.is_private else threshold(scores, coverage),
        ids=seen.train.client_ids[seen.positions],
        own=torch.tensor([threshold(one, coverage) for one in scores.split(sizes)], dtype=torch.float64),
    )


def covered_and_size(served: Predictions, target: Target) -> tuple[Tensor, Tensor]:
    """Covered samples of each client, and the sum of its sets' sizes, [C] float64 each."""
    covered, size = torch.zeros(2, len(served.client_ids), dtype=torch.float64)
    if len(served.labels):
        owner, each, hits = _covered(served, target)
        covered.index_add_(0, owner, hits)
        size.index_add_(0, owner, conformal.sizes(target, served.log_prob, each))
    return covered, size


def covered_by_class(served: Predictions, target: Target) -> Tensor:
    """Samples of each class and covered ones among them, of each client, [C, 2, classes] float64."""
    counts = torch.zeros(len(served.client_ids), 2, target.num_classes, dtype=torch.float64)
    if len(served.labels):
        owner, _, hits = _covered(served, target)
        for row, one in enumerate((torch.ones_like(hits), hits)):
            counts.index_put_((owner, torch.tensor(row), served.labels), one, accumulate=True)
    return counts


def _covered(served: Predictions, target: Target) -> tuple[Tensor, Tensor, Tensor]:
    """Client and threshold of each sample, and whether its set holds its label, [n] each."""
    assert served.thresholds is not None
    owner = torch.arange(len(served.client_ids)).repeat_interleave(served.sizes)
    each = served.thresholds[owner]
    return owner, each, (conformal.nonconformity(target, served.log_prob, served.labels) <= each).double()


def said_of(coverage: float | None, served: Sequence[Predictions]) -> str:
    """A line on clients that are not served by a threshold of their own; "" if there are none, or no sets."""
    if coverage is None:
        return ""
    owned = torch.cat([one.owned for one in served if one.owned is not None])
    others = torch.cat([one.thresholds for one in served if one.thresholds is not None])[~owned]
    if not len(others):
        return ""
    least = conformal.fewest(coverage)
    said = f"{len(others):,} of {len(owned):,} clients have no threshold by {least} calibration samples of their own"
    if not others.isinf().any():
        return f"{said}; the shared threshold {float(others[0]):.4g} serves them\n"
    return (
        f"{said}, and there is no shared one: their sets hold all classes, their intervals all numbers. None is formed "
        "in private trainings, on nodes or from too few samples, nor kept for another --model.conformal or "
        "--model.serving than the training's; `test`, `predict` and `export`, which read the training's data, find it\n"
    )
