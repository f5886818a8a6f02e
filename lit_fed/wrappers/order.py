"""Which wrapper goes around which: at the client the innermost acts first, at the server the outermost."""

from __future__ import annotations

from typing import Any, Literal

from lit_fed.algorithms.base import Algorithm
from lit_fed.wrappers.fedbn import LocalNorm
from lit_fed.wrappers.privacy import Privacy

__all__ = ["surround"]


def surround(
    algorithm: Algorithm, *, batch_norm: Literal["average", "local"] = "average", privacy: Privacy | None = None
) -> Any:
    """The algorithm inside the wrappers that are asked for; without any, the algorithm itself.

    From the inside out: FedBN, privacy. Clipping is the last thing that a client does before messages are added up,
    since the bound has to hold for what is added.

    Args:
        algorithm: the algorithm.
        batch_norm: `local` for FedBN.
        privacy: differential privacy.
    """
    wrapped: Any = LocalNorm(algorithm) if batch_norm == "local" else algorithm
    return wrapped if privacy is None else privacy.around(wrapped)
