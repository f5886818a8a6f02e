"""FedAvg+: FedAvg, then every client fine-tunes a copy before it is served.

Jiang, Konečný, Rush, Kannan. "Improving Federated Learning Personalization via Model Agnostic Meta Learning". 2019.
https://arxiv.org/abs/1909.12488; the FedEM paper (https://arxiv.org/abs/2108.10252, Section 4) calls it FedAvg+.

Symbols:
    w   -> shared.models  the global model, leaves [1, ...]
    φ_i -> state.models   the tuned copy of client i, leaves [1, ...]; exists only while the client is served
Deviations:
    The copy is tuned with a fresh optimizer, by default at the initial learning rate. The official FedEM code carries
    momentum and a separate schedule from one evaluation to the next; that leak is not offered.
    `tune` restricts the tuned leaves. With `[head]` it is the baseline of the FedRep paper
    (https://arxiv.org/abs/2102.07078, Section 5), which tunes for 10 epochs.
"""

from dataclasses import dataclass

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, ranged, tuned
from lit_fed.core.fine_tuning import FineTunes, FineTuning
from lit_fed.core.partial_models import Patterns

__all__ = ["FedAvgPlus"]


@dataclass(frozen=True)
class FedAvgPlus(FineTunes, Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg with local fine-tuning: a client is served by a copy of the global model tuned on its own samples.

    Args:
        fine_tune_epochs: passes over the local training samples.
        fine_tune_lr: learning rate of the tuning; null takes the solver's `adapt_lr`, by default its initial one.
        tune: patterns of names of the leaves or modules that are tuned, or `head`, `body`, `norm`; null: all.
    """

    in_every_combination = True
    serving_settings = ("fine_tune_epochs", "fine_tune_lr", "tune")
    place = "--model.algorithm"
    incompatible = {"fine_tuning": "fine-tunes its clients itself; give --model.algorithm.fine_tune_epochs"}

    fine_tune_epochs: int = tuned(1, 1, 5, 10, within=">= 0")
    fine_tune_lr: float | None = ranged(None, ">= 0")
    tune: Patterns | None = None

    @property
    def fine_tuning(self) -> FineTuning:  # type: ignore[override]
        """The tuning of a copy of w."""
        return FineTuning(self.fine_tune_epochs, self.fine_tune_lr, self.tune)
