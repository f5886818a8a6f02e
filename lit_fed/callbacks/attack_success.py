"""Success rate of a backdoor."""

from __future__ import annotations

from typing import Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed import serving
from lit_fed.callbacks.evaluation import log_results
from lit_fed.core.reduce import all_reduce
from lit_fed.core.types import Population
from lit_fed.data.poison.backdoor import Backdoor, brightest_of, with_trigger
from lit_fed.metrics.summary import RunSummary
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = ["AttackSuccess"]


class AttackSuccess(FederatedCallback):
    """Measures the success of `--data.poison Backdoor` in the test.

    Keys: `attack/success`, the share of the honest clients' test samples of other classes that are predicted as
    `target` with the square added, each by its client's model; `attack/unseen_success`, the same for unseen clients.
    Both are averages over samples. The test samples are predicted a second time.
    """

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data, module = data_of(trainer), federated(pl_module)
        if not isinstance(data.poison, Backdoor):
            return
        seen, unseen = data.populations
        brightest = brightest_of(seen).to(module.device)
        found = {"success": self._measured(trainer, data.poison, brightest, "seen", honest_positions(seen))}
        if unseen is not None:
            every = honest_positions(unseen)
            found["unseen_success"] = self._measured(trainer, data.poison, brightest, "unseen", every)
        log_results(module, "attack", {key: share for key, share in found.items() if share is not None})

    def _measured(
        self, trainer: Trainer, poison: Backdoor, brightest: Tensor, name: Literal["seen", "unseen"], positions: Tensor
    ) -> float | None:
        """Share of these clients' marked images that are predicted as `target`; None without any."""
        if not len(positions):
            return None
        module = federated(trainer.lightning_module)
        sums = torch.zeros(2, dtype=torch.float64, device=module.device)  # of whole numbers, exact in any order
        held = triggered = None
        with trainer.precision_plugin.val_step_context():
            for given in data_of(trainer).serving(name, "test", positions):
                block = trainer.strategy.batch_to_device(given)
                data = block.data.select(block.client_ids)
                if data is not held:  # what is in memory is the same split in every block
                    held, triggered = data, with_trigger(data, poison, brightest)
                block = block._replace(data=triggered)
                for _, scores in serving.measure(module.federation, block, seen=name == "seen"):
                    sums += torch.stack([scores.samples.sum(), scores.hits.sum()])
        samples, hits = all_reduce(sums).tolist()
        return hits / samples if samples else None

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        if (share := module.results.get("attack/success")) is not None:
            taken = f"take {share:.1%} of their pictures with the square for the attackers' class"
            summary.lines.append(f"back door: honest clients {taken}\n")


def honest_positions(population: Population) -> Tensor:
    """Positions of the evaluated honest clients, [E']."""
    return population.positions if population.honest is None else population.positions[population.honest]
