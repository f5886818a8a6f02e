"""Clients that dropped out, came late or failed."""

from __future__ import annotations

from lightning.pytorch import Trainer

from lit_fed.core.types import RoundRecord
from lit_fed.errors import notice
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.readers import MOST, instance, keyed, list_of, record, whole
from lit_fed.training.hooks import FederatedCallback, data_of, log_round
from lit_fed.training.module import FederatedModule

__all__ = ["ClientFaults"]

COUNTS = ("faults/dropped", "faults/late", "faults/non_finite", "faults/errors", "faults/empty_rounds")

REASONS = 5
"""Upper limit of reasons printed on each rank during the run."""

NAMED = 10
"""Upper limit of failed clients printed at the end; `summary.json` names all."""


class ClientFaults(FederatedCallback):
    """Counts clients that dropped out, and names those that failed; needs `--model.faults`.

    Keys, logged for each round and summed in `summary.json`: numbers of clients that dropped out, `faults/dropped`,
    were late, `faults/late`, were excluded because they computed NaN or infinity, `faults/non_finite`, or failed
    otherwise, `faults/errors`; `faults/empty_rounds` is 1 for a round without messages. `summary.json` lists
    the failed clients with their rounds as `faults/failed_clients`. All counts survive a resume.
    """

    kept = {
        "totals": record(dict.fromkeys(COUNTS, whole())), "failed": keyed(instance(str), list_of(whole(), MOST), MOST)
    }  # fmt: skip

    def __init__(self) -> None:
        self.totals = dict.fromkeys(COUNTS, 0)
        self.failed: dict[str, list[int]] = {}
        self._num_said, self._found = 0, False

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        faults = record.faults
        if faults is None:
            return
        counts = (faults.num_dropped, faults.num_late, len(faults.non_finite), len(faults.errors), int(faults.is_empty))
        log_round(trainer, module, dict(zip(COUNTS, map(float, counts), strict=True)))
        for name, count in zip(COUNTS, counts, strict=True):
            self.totals[name] += count
        module.results |= {name: float(count) for name, count in self.totals.items()}
        population = data_of(trainer).populations[0]
        for client_id in sorted((*faults.non_finite, *faults.errors)):
            self.failed.setdefault(population.names[client_id], []).append(record.round_idx)
        for reason in faults.reasons[: REASONS - self._num_said]:
            self._num_said += 1
            last = "; further ones are named at the end" if self._num_said == REASONS else ""
            notice(f"left out of this round: {reason}{last}")

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        """Add the failed clients; the counts are among the results."""
        if self.failed:
            summary.entries["faults/failed_clients"] = self.failed
        if not any(self.totals.values()):
            return
        told = [f"{count} {name.removeprefix('faults/').replace('_', ' ')}" for name, count in self.totals.items()]
        summary.lines.append(f"faults: {', '.join(told)}\n")
        for name, rounds in list(self.failed.items())[:NAMED]:
            listed = f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
            summary.lines.append(f"  client {name} failed in {listed}\n")
        if len(self.failed) > NAMED:
            summary.lines.append(f"  and {len(self.failed) - NAMED} clients more, see summary.json\n")
