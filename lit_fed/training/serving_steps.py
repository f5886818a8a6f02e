"""The steps of a module that serve clients: validation, test and prediction."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lit_fed import serving
from lit_fed.core.types import ServingBlock
from lit_fed.data.facts import TrainingFacts
from lit_fed.metrics import summarise
from lit_fed.metrics.chosen import ChosenMetrics
from lit_fed.metrics.gathered import ClientTable
from lit_fed.rounds import FederatedRounds

__all__ = ["ServingSteps"]


class ServingSteps(LightningModule):
    """Serves the clients of a federation, predicts their samples and adds up what came of it.

    Attributes:
        tables: what was measured of the clients, by population.
        chosen_metrics: what is measured beside accuracy and loss.
        client_rows: sums over each client's samples, [T, 3 + M] by population: their number, loss, hits, then the
            mixture weights that it was served with.
        client_metrics: the chosen metrics of each client, [T, K] by population; NaN where a client has none.
    """

    federation: FederatedRounds
    facts: TrainingFacts
    tables: nn.ModuleDict
    chosen_metrics: ChosenMetrics
    client_rows: dict[str, Tensor]
    client_metrics: dict[str, Tensor]

    @abstractmethod
    def _tell(self, hook: str, about: Any) -> None:
        """Call a hook of `FederatedCallback`."""

    def measure(
        self, block: ServingBlock, population: Literal["seen", "unseen"], table: ClientTable | None = None
    ) -> None:
        """Serve some clients, predict their samples and add the results to a table, None: that of their population."""
        results: Any = self.tables[population] if table is None else table
        measured = serving.measure(self.federation, block, seen=population == "seen", chosen=self.chosen_metrics)
        for positions, rows in measured:
            results.update(positions, rows[:, : results.rows.shape[1]])
            self._tell("on_clients_served", len(positions))

    def validation_step(self, batch: ServingBlock, batch_idx: int) -> None:
        """Measure a block of seen clients."""
        self.measure(batch, "seen")

    def test_step(self, batch: ServingBlock, batch_idx: int) -> None:
        """Measure a block of seen clients."""
        self.measure(batch, "seen")

    def predict_step(self, batch: ServingBlock, batch_idx: int) -> serving.BlockPredictions | tuple[()]:
        """Serve a block of clients, all seen or all unseen; () for a block without clients."""
        if not len(batch.client_ids):
            return ()
        seen = int(batch.client_ids[0]) < self.facts.num_clients
        predictions = serving.predict_block(self.federation, batch, seen=seen, chosen=self.chosen_metrics)
        self._tell("on_clients_served", len(batch.client_ids))
        return predictions

    def keep_rows(self, population: str, rows: Tensor) -> None:
        """Keep what was measured of all clients of a population.

        Args:
            population: `seen` or `unseen`.
            rows: as of `ClientTable.compute`, [T, 3 + M + K].
        """
        width = rows.shape[1] - len(self.chosen_metrics)
        self.client_rows[population] = rows[:, :width]
        nobody = rows[:, :1] == 0  # a client without samples
        self.client_metrics[population] = rows[:, width:].masked_fill(nobody, float("nan"))

    def statistics(self, rows: Tensor) -> dict[str, float]:
        """The statistics over clients that are reported, by key; {} if no client has samples.

        Args:
            rows: as of `ClientTable.compute`, [T, 3 + M + K].
        """
        chosen = rows[:, rows.shape[1] - len(self.chosen_metrics) :]
        return summarise(rows, self.facts.target.metric) | self.chosen_metrics.statistics(chosen, rows[:, 0])
