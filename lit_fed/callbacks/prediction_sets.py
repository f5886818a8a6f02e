"""Coverage and size of prediction sets on test samples, and which classes they cover too rarely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed import serving
from lit_fed.callbacks.evaluation import log_results
from lit_fed.callbacks.report import populations_of
from lit_fed.core.conformal import chance_of_fewer, covered_and_size, covered_by_class, size_name
from lit_fed.core.reduce import all_reduce
from lit_fed.core.types import Population, ServingBlock
from lit_fed.metrics.scores import client_statistics
from lit_fed.metrics.summary import DIRECTION, RunSummary
from lit_fed.system.names import few
from lit_fed.system.packages import pd
from lit_fed.training.hooks import FederatedCallback, data_of, federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import write_table

__all__ = ["PredictionSets"]

CLEAR = 0.025
"""Probability, over the number of classes, below which a coverage is clearly less than was asked for."""


class PredictionSets(FederatedCallback):
    """Measures the sets and intervals of `--model.conformal` in the test, which predicts the test samples once more.

    Keys: `test/seen/coverage`, the share of the test samples whose set holds the label, and `test/seen/set_size`, the
    mean number of classes in a set, or `test/seen/width` of intervals, with their statistics over clients; the same of
    unseen clients. `clients.csv` has both of each client, its `threshold`, infinite if there is none, and whether its
    own samples decided it (`own_threshold`) or those of all clients. Clients on nodes send both and keep their
    thresholds.

    Sets hold the label of so many samples on average, and may miss most of a rare class. `coverage.csv` has each class
    of each client: its test samples, the share that is covered, and the calibration samples of this class behind the
    client's threshold (0: it says nothing about the class). A line names classes that are covered less than a
    beta-binomial limit of 97.5 % allows, divided by the number of classes: `undercovered/seen` in the summary.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Tensor]] = {}  # by population and column, [E] or [E, classes]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, (seen, unseen) = federated(pl_module), data_of(trainer).populations
        self._measure(trainer, module, "seen", seen.num_measured)
        if unseen is not None:
            self._measure(trainer, module, "unseen", unseen.num_measured)

    def _measure(
        self, trainer: Trainer, module: FederatedModule, population: Literal["seen", "unseen"], num_clients: int
    ) -> None:
        elsewhere = module.federation.client_trainer
        on_nodes = isinstance(elsewhere, serving.MeasuresElsewhere)
        classes = 0 if module.target.continuous or on_nodes else module.target.num_classes
        rows = torch.zeros(num_clients, 5 + 3 * classes, dtype=torch.float64, device=module.device)
        with trainer.precision_plugin.val_step_context():
            for given in data_of(trainer).serving(population, "test"):
                batch = trainer.strategy.batch_to_device(given)
                if isinstance(elsewhere, serving.MeasuresElsewhere):
                    for places, scores in elsewhere.measure(batch, seen=population == "seen", chosen=None, sets=True):
                        means = torch.stack([*scores.metrics.values()], 1)
                        rows[places, :3] = torch.cat([scores.samples[:, None], means * scores.samples[:, None]], 1)
                    continue
                for block in serving.pieces(module.federation, batch):
                    if len(block.client_ids):
                        found = module.predicted(block)
                        assert found.thresholds is not None
                        assert found.owned is not None
                        served = module.target, found.sizes, found.labels, found.log_prob, found.thresholds
                        each = found.sizes, *covered_and_size(*served), found.thresholds, found.owned
                        parts = [torch.stack([one.double() for one in each], 1)]
                        if classes:
                            parts += [covered_by_class(*served).flatten(1), _held(block, classes)]
                        rows[block.rows] = torch.cat(parts, 1).to(rows)
        totals, by_class = all_reduce(rows).cpu().split([5, 3 * classes], 1)
        samples, covered, sizes, threshold, own = totals.unbind(1)
        results = {"coverage": covered / samples, size_name(module.target): sizes / samples}
        self._found[population] = results | {"samples": samples}
        if not on_nodes:
            self._found[population] |= {"threshold": threshold, "own": own}
        if classes:
            cases, hits, held = by_class.unflatten(1, (3, classes)).unbind(1)
            self._found[population] |= {"cases": cases, "hits": hits, "held": held}
        for (name, values), larger in zip(results.items(), (None, False), strict=True):
            log_results(module, f"test/{population}", client_statistics(values, samples, name, larger_is_better=larger))

    def on_client_columns(
        self, trainer: Trainer, module: FederatedModule, population: str, positions: list[int],
        columns: dict[str, list[Any]],
    ) -> None:  # fmt: skip
        if (found := self._found.get(population)) is not None:
            names = "coverage", size_name(module.target), "threshold"
            columns.update({name: found[name].tolist() for name in names if name in found})
            if "own" in found:
                columns["own_threshold"] = (found["own"] > 0).tolist()

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        size, folder, coverage = size_name(module.target), results_folder(trainer), module.settings.conformal
        assert coverage is not None
        called = module.facts.class_names or map(str, range(module.target.num_classes))
        names = [*called] if any("cases" in found for found in self._found.values()) else []
        if names and folder is not None:
            write_table(self._by_class(names, populations_of(data_of(trainer))), folder / "coverage.csv")
        summary.entries |= {f"{DIRECTION}coverage": None, f"{DIRECTION}{size}": False} if self._found else {}
        for population, found in self._found.items():
            held = found["samples"] > 0
            if not held.any():
                continue
            weights = found["samples"][held] / found["samples"][held].sum()
            covered, mean = (float((found[name][held] * weights).sum()) for name in ("coverage", size))
            whose = "kept on the nodes"
            if "own" in found:
                own, shared = found["own"] > 0, (found["own"] == 0) & found["threshold"].isfinite()
                counts = int(own.sum()), int(shared.sum()), int((~own & ~shared).sum())
                whose = ", ".join(f"{n} {name}" for n, name in zip(counts, ("own", "shared", "none"), strict=True) if n)
            summary.lines.append(
                f"{population} clients: {covered:.1%} of the test samples covered, {coverage:.1%} "
                f"asked for; mean {size.replace('_', ' ')} {mean:.4g}; thresholds: {whose}\n"
            )
            if low := self._undercovered(found, coverage, names) if names else []:
                least = f"{population} clients: sets cover clearly less than {coverage:.1%} of class"
                said = f"{least} {few(low, between='; ')}"
                summary.entries[f"undercovered/{population}"] = said
                summary.lines.append(f"{said}\n")

    def _behind(self, found: dict[str, Tensor]) -> Tensor:
        """Calibration samples of each class behind the threshold of each client, [E, classes]."""
        pooled = self._found["seen"]["held"].sum(0) * found["threshold"].isfinite()[:, None]
        return torch.where(found["own"][:, None] > 0, found["held"], pooled)

    def _by_class(self, names: Sequence[str], populations: dict[str, Population | None]) -> pd.DataFrame:
        """One row for each client and class."""
        tables = []
        for name, found in self._found.items():
            clients = populations[name]
            assert clients is not None
            called = [clients.names[one] for one in clients.positions.tolist()]
            columns = {
                "population": name, "client": np.repeat(called, len(names)), "class": [*names] * len(called),
                "num_calibration": self._behind(found).flatten().long(), "num_test": found["cases"].flatten().long(),
                "coverage": (found["hits"] / found["cases"]).flatten(),
            }  # fmt: skip
            tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True)

    def _undercovered(self, found: dict[str, Tensor], coverage: float, names: Sequence[str]) -> list[str]:
        """The classes that are covered clearly less than was asked for, the least covered one first."""
        finite, own = found["threshold"].isfinite(), found["own"] > 0
        unit = torch.where(own, torch.arange(len(own)), len(own))[finite]  # clients of the shared threshold are one
        cases = torch.zeros(len(own) + 1, len(names), dtype=torch.float64).index_add_(0, unit, found["cases"][finite])
        held = torch.zeros(len(own) + 1, dtype=torch.float64).index_copy_(0, unit, self._behind(found)[finite].sum(1))
        hits, limit, low = found["hits"][finite].sum(0), CLEAR / max(1, int((cases.sum(0) > 0).sum())), []
        for own_cases, covered, name in zip(cases.T, hits.tolist(), names, strict=True):
            some, number = own_cases > 0, int(own_cases.sum())
            given = own_cases[some].numpy(), held[some].numpy()
            if number and chance_of_fewer(int(covered), *given, coverage) < limit:
                low.append((covered / number, f"{name} ({covered / number:.1%} of {number} test samples)"))
        return [said for _, said in sorted(low)]


def _held(block: ServingBlock, classes: int) -> Tensor:
    """Calibration samples of each class of each client, [C, classes]."""
    if block.calibration is None:
        return torch.zeros(len(block.client_ids), classes, dtype=torch.float64)
    each = [block.calibration.client(one).y.flatten().cpu() for one in block.client_ids.tolist()]
    return torch.stack([torch.bincount(y.long(), minlength=classes) for y in each]).double()
