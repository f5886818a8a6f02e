"""A random subsample of what a data set holds, such as the tenth of EMNIST that the FedEM paper trains on."""

from __future__ import annotations

import numpy as np

from lit_fed.core.blocks import whole_part
from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require

__all__ = ["check_subsample", "draw_subsample"]


def check_subsample(fraction: float, seed: int) -> None:
    """Raise a `ConfigError` unless the data set's fields `fraction` and `seed` are in their ranges."""
    require(0 < fraction <= 1, f"--data.dataset.fraction is {fraction}; give a number above 0 and up to 1")
    require(0 <= seed < 2**32, f"--data.dataset.seed is {seed}; give a whole number from 0 to {2**32 - 1}")


def draw_subsample(total: int, fraction: float, seed: int) -> np.ndarray:
    """Choose the samples, or the clients, of a random subsample; a smaller one lies in a larger one of the same seed.

    Args:
        total: how many there are.
        fraction: how much of them the subsample holds; one of them at least.
        seed: seed of the choice.

    Returns:
        Whether each is in the subsample, [total] bool.

    Example:
        >>> int(draw_subsample(100, 0.29, seed=0).sum())
        29
    """
    kept = np.ones(total, dtype=bool)
    if fraction < 1:
        order = generator(seed, 0, 0, "fraction").permutation(total)
        kept[order[max(1, whole_part(fraction, total)) :]] = False
    return kept
