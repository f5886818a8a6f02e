"""Fine-tuning around an algorithm: training, messages and states of rounds are the algorithm's."""

from __future__ import annotations

from dataclasses import dataclass

from lit_fed.core.fine_tuning import FineTunes, FineTuning
from lit_fed.wrappers.base import AlgorithmWrapper

__all__ = ["FineTuned"]


@dataclass(frozen=True)
class FineTuned(FineTunes, AlgorithmWrapper):
    """An algorithm whose clients fine-tune the models that serve them.

    Args:
        inner: the algorithm.
        fine_tuning: the settings.
    """

    fine_tuning: FineTuning = FineTuning()  # noqa: RUF009 - frozen

    only_serves = True
