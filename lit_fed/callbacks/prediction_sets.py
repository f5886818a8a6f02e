"""Coverage and size of prediction sets on test samples."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed import serving
from lit_fed.callbacks.evaluation import log_results
from lit_fed.core.conformal import covered_and_size, size_name
from lit_fed.core.reduce import all_reduce
from lit_fed.metrics.scores import client_statistics
from lit_fed.metrics.summary import DIRECTION, RunSummary
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = ["PredictionSets"]


class PredictionSets(FederatedCallback):
    """Measures the sets and intervals of `--model.conformal` in the test, which predicts the test samples once more.

    Keys: `test/seen/coverage`, the share of the test samples whose set holds the label, and `test/seen/set_size`, the
    mean number of classes in a set, or `test/seen/width` of intervals, with their statistics over clients; the same of
    unseen clients. `clients.csv` has both of each client, its `threshold`, infinite if there is none, and whether its
    own samples decided it (`own_threshold`) or those of all clients. Clients on nodes send both and keep their
    thresholds.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Tensor]] = {}  # by population and column, [E]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, (seen, unseen) = federated(pl_module), data_of(trainer).populations
        self._measure(trainer, module, "seen", seen.num_measured)
        if unseen is not None:
            self._measure(trainer, module, "unseen", unseen.num_measured)

    def _measure(
        self, trainer: Trainer, module: FederatedModule, population: Literal["seen", "unseen"], num_clients: int
    ) -> None:
        rows = torch.zeros(num_clients, 5, dtype=torch.float64, device=module.device)
        elsewhere = module.federation.client_trainer
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
                        held = covered_and_size(
                            module.target, found.sizes, found.labels, found.log_prob, found.thresholds
                        )
                        each = found.sizes, *held, found.thresholds, found.owned
                        rows[block.rows] = torch.stack([one.to(rows) for one in each], 1)
        samples, covered, sizes, threshold, own = all_reduce(rows).cpu().unbind(1)
        results = {"coverage": covered / samples, size_name(module.target): sizes / samples}
        self._found[population] = results | {"samples": samples}
        if not isinstance(elsewhere, serving.MeasuresElsewhere):
            self._found[population] |= {"threshold": threshold, "own": own}
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
        size = size_name(module.target)
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
                f"{population} clients: {covered:.1%} of the test samples covered, {module.settings.conformal:.1%} "
                f"asked for; mean {size.replace('_', ' ')} {mean:.4g}; thresholds: {whose}\n"
            )
