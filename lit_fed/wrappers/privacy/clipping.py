"""The clipping bound of clients' deltas, and its adaptation to a quantile of their norms under the same ε."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.errors import ConfigError

__all__ = ["adapted_bound", "bound_before_rounding", "clip_factor", "noise_beside_counts"]


def clip_factor(norm: Tensor, bound: Tensor | float, lower: Tensor | None = None) -> Tensor:
    """The factor, at most 1, that brings a vector of a norm [] down to a bound; 1 for a vector of zeros.

    Args:
        norm: norm of the vector, [].
        bound: the largest norm that is not scaled down.
        lower: the norm of a vector that is scaled down; None: the bound.

    Example:
        >>> clip_factor(torch.tensor([5.0, 0.5, 2.0, 0.0]), 1.0).tolist()
        [0.20000000298023224, 1.0, 0.5, 1.0]
    """
    return torch.where(norm > bound, (bound if lower is None else lower) / norm, torch.ones_like(norm))


def bound_before_rounding(bound: Tensor | float, known: list[Tensor]) -> Tensor:
    """The bound of a float64 change that stays within `bound` after the changed model is rounded to its own type.

    Rounding moves each number of old + change by at most half a unit in its last place, together by ε/2·(‖old‖ + C).

    Args:
        bound: C, [] or a number.
        known: leaves of the models that the change is added to, in the types of the message.
    """
    half = max(torch.finfo(leaf.dtype).eps / 2 for leaf in known if leaf.is_floating_point())
    return (bound - half * (tree.norm(known) + bound)).clamp(min=0)


def adapted_bound(bound: Tensor, centred_share: Tensor, quantile: float, rate: float) -> Tensor:
    """The bound of the next round, [] float64: it grows while fewer clients than wanted are below it.

    Args:
        bound: bound of this round, [].
        centred_share: the noisy sum of ½ for each client within the bound and −½ for each beyond it, over the number of
            expected clients, []. Since counts are centred, an absent client does not affect the bound.
        quantile: the share of clients that should stay within the bound, in (0, 1).
        rate: step size of the bound's logarithm.

    Source:
        Andrew, Thakkar, McMahan, Ramaswamy 2021 (arXiv 1905.03871), geometric update.
    """
    share = (centred_share.double() + 0.5).clamp(0, 1)
    return bound.double() * torch.exp(-rate * (share - quantile))


def noise_beside_counts(noise_multiplier: float, count_noise: float) -> float:
    """The noise multiplier of the deltas for which deltas and counts together cost as much as one sum.

    Args:
        noise_multiplier: z of the two together.
        count_noise: standard deviation of the noise on the centred count, whose sensitivity is ½.

    Raises:
        ConfigError: if the counts alone already cost more.

    Source:
        Andrew et al. 2021 (arXiv 1905.03871), theorem 1.

    Example:
        >>> round(noise_beside_counts(1.0, 5.0), 10)
        1.0050378153
    """
    if noise_multiplier == 0:
        return 0.0
    if noise_multiplier >= 2 * count_noise:
        raise ConfigError(
            f"--model.privacy.noise_multiplier {noise_multiplier:g} leaves nothing for the models beside an adaptive "
            f"bound whose counts have noise {count_noise:g}; "
            f"set --model.privacy.clip_count_noise above {noise_multiplier / 2:g}"
        )
    return 1 / math.sqrt(noise_multiplier**-2 - (2 * count_noise) ** -2)
