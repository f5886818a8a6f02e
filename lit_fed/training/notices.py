"""What Lightning says without being asked."""

from __future__ import annotations

import logging
import warnings

__all__ = ["keep_notices_out"]


def keep_notices_out() -> None:
    """Silence Lightning's notices of devices and tips: the progress bar and the final table say what a run does.

    What its callbacks and profilers have to say was asked for.
    """
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # a continued run's
    warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")  # servers are stepped
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for asked_for in ("callbacks", "profilers"):
        logging.getLogger(f"lightning.pytorch.{asked_for}").setLevel(logging.INFO)
