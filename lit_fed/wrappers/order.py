"""Which wrapper goes around which: at the client the innermost acts first, at the server the outermost."""

from __future__ import annotations

from typing import Any, Literal

from lit_fed.core.algorithm import Algorithm
from lit_fed.wrappers.compression.settings import Compression
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.fedbn import LocalNorm
from lit_fed.wrappers.privacy.settings import Privacy
from lit_fed.wrappers.robust.settings import Robustness
from lit_fed.wrappers.secure.settings import SecureAggregation

__all__ = ["surround"]


def surround(
    algorithm: Algorithm,
    *,
    batch_norm: Literal["average", "local"] = "average",
    compression: Compression = Compression(),  # noqa: B008 - a tuple
    privacy: Privacy | None = None,
    secure_aggregation: SecureAggregation | None = None,
    robustness: Robustness = Robustness(),  # noqa: B008 - a tuple
    faults: Faults | None = None,
) -> Any:
    """The algorithm inside the wrappers that are asked for; without any, the algorithm itself.

    From the inside out: FedBN, faults of clients, compression, privacy, what hides messages from the server or what
    makes it look at each of them, compression of what is broadcast. Clipping is the last thing that a client does
    before messages are added up, since the bound has to hold for what is added; what the sum is made of comes last.

    Args:
        algorithm: the algorithm.
        batch_norm: `local` for FedBN.
        compression: codecs of what clients send and hear.
        privacy: differential privacy.
        secure_aggregation: what hides single messages from the server.
        robustness: rule of the server against clients that lie, and what these send.
        faults: how clients fail.
    """
    wrapped: Any = LocalNorm(algorithm) if batch_norm == "local" else algorithm
    wrapped = wrapped if faults is None else faults.around(wrapped)
    wrapped = compression.around(wrapped)
    for one in (privacy, secure_aggregation):
        wrapped = wrapped if one is None else one.around(wrapped)
    return compression.around_broadcast(robustness.around(wrapped))
