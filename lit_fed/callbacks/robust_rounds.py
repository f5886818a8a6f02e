"""Use of the clients' messages by a robust rule."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.core.types import RoundRecord
from lit_fed.errors import notice
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.names import few
from lit_fed.training.hooks import FederatedCallback, data_of, federated, log_round
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.base import part_of
from lit_fed.wrappers.robust.feature import RobustFeature
from lit_fed.wrappers.robust.wrapper import NEVER_JUDGED, Judged, RobustAverage

__all__ = ["RobustRounds"]

NAMED = 5
"""Upper limit of clients that a line names."""


class RobustRounds(FederatedCallback):
    """Logs how much of each message the rule used, with a notice at the first dropped message and skipped round.

    Keys: `robust/dropped`, messages that held NaN or infinity; `robust/skipped`, 1 for a round that changed nothing,
    since too few messages were left; `robust/kept`, mean share of a client's message that counted, from 0 to 1;
    with `--data.attackers` also `robust/kept_attackers` and `robust/kept_honest`, the same over those of the round.
    """

    def __init__(self) -> None:
        self._before: tuple[Tensor, int] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the counts before a resume; warn of coordinate-wise rules with mixtures."""
        module = federated(pl_module)
        judged = _judged(module)
        self._before = None if judged is None else (judged.refused.clone(), int(judged.skipped))
        feature = module.settings.feature(RobustFeature)
        if trainer.is_global_zero and feature is not None and feature.freezes_minorities(module.settings.algorithm):
            notice(
                f"{feature.option} freezes components that no more clients train than it trims at either end; keep "
                "its trim below the smallest group, or choose CenteredClipping, GeometricMedian or NormBound"
            )

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        judged, feature = _judged(module), module.settings.feature(RobustFeature)
        if judged is None or feature is None or self._before is None or not len(record.client_ids):
            return
        refused, skipped = judged.refused - self._before[0], int(judged.skipped) - self._before[1]
        self._before = judged.refused.clone(), int(judged.skipped)
        kept = judged.kept[record.client_ids]
        values = {"dropped": float(refused.sum()), "skipped": float(skipped > 0), "kept": float(kept.mean())}
        attackers = module.federation.terms.attackers
        if attackers is not None:
            attacks = attackers.to(kept.device)[record.client_ids]
            parts = {"kept_attackers": kept[attacks], "kept_honest": kept[~attacks]}
            values |= {name: float(part.mean()) for name, part in parts.items() if len(part)}
        log_round(trainer, module, {f"robust/{name}": value for name, value in values.items()})
        if not trainer.is_global_zero:
            return
        index = record.round_idx
        if refused.any():
            names = _listed(trainer, refused)
            self.notice_once(
                "dropped",
                f"round {index}: {names} sent NaN or infinity, and count for nothing; robust/dropped tells of more",
            )
        if skipped:
            self.notice_once(
                "skipped",
                f"round {index} changes nothing, since too few messages were left for {feature.option}; robust/skipped "
                "tells of more",
            )

    def on_client_columns(
        self, trainer: Trainer, module: FederatedModule, population: str, positions: list[int],
        columns: dict[str, list[Any]],
    ) -> None:  # fmt: skip
        """Add `kept`, the share of a seen client's last message that counted; NaN for one that was never sampled."""
        judged = _judged(module)
        if judged is not None and population == "seen":
            kept = judged.kept[positions]
            columns["kept"] = kept.masked_fill(kept == NEVER_JUDGED, float("nan")).tolist()

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        """Add the messages and rounds that the rule dropped so far, from the shared state."""
        judged = _judged(module)
        if judged is None:
            return
        names, said = data_of(trainer).populations[0].names, []
        clients = {names[place]: int(judged.refused[place]) for place in judged.refused.nonzero()[:, 0].tolist()}
        dropped, skipped = int(judged.refused.sum()), int(judged.skipped)
        summary.entries |= {
            "robust/dropped": dropped, "robust/dropped_clients": clients, "robust/skipped": skipped,
        }  # fmt: skip
        if dropped:
            listed = few((f"{name} ({count})" for name, count in clients.items()), NAMED)
            said.append(f"{dropped} messages of NaN or infinity dropped, of {listed}")
        if skipped:
            said.append(f"{skipped} rounds changed nothing")
        if said:
            summary.lines.append(f"robust aggregation: {'; '.join(said)}\n")


def _judged(module: FederatedModule) -> Judged | None:
    """The rule's state at the server; None without a rule."""
    if not module.algorithm.drops_non_finite:
        return None
    found = part_of(module.federation.algorithm, module.shared, RobustAverage)
    return None if found is None else found[1]


def _listed(trainer: Trainer, refused: Tensor) -> str:
    names, places = data_of(trainer).populations[0].names, refused.nonzero()[:, 0].tolist()
    return f"client{'s' if len(places) > 1 else ''} {few((names[place] for place in places), NAMED)}"
