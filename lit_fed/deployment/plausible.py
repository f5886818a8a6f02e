"""Numbers that a node cannot have computed: updates, weights and measurements are compared with what it told before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Message, Tree
from lit_fed.deployment.typed import MOST_FLOAT
from lit_fed.wrappers.deltas import delta_of, reference_of

__all__ = ["implausible_message", "implausible_rows"]

MOST_BITS = 2.0**53
"""Of a message: a whole number in float64."""


def implausible_message(
    algorithm: Any, ctx: Context, shared: Tree, client_id: int, sent: Tree, count: int, most_norm: float | None
) -> str:
    """What cannot be true of a client's message and metrics; "" if nothing stands out.

    Args:
        algorithm: the algorithm.
        ctx: what every client knows in the phase.
        shared: what the server knows.
        client_id: the client.
        sent: its message and metrics, without an axis of clients.
        count: training samples that its node told at the start.
        most_norm: bound on the norm of its update; None: that of float32.
    """
    message, metrics = Message(*sent[0]), sent[1]
    weight, most = float(message.weight), max(count, 1) if ctx.weighting == "samples" else 1
    if not 0 <= weight <= most:
        return f"its message has the weight {weight:g}, where at most {most} is possible"
    for bits in (message.bits_up, message.bits_down):
        if bits is not None and not 0 <= float(bits) <= MOST_BITS:
            return f"it reports {float(bits):g} bits"
    for name, value in metrics.items():
        if not float(value.double().abs()) <= MOST_FLOAT:
            return f"it reports {float(value):g} as {name}"
    norm = _norm(message.value)
    if not norm * norm <= MOST_FLOAT:
        return f"its message has the norm {norm:g}, whose square is no float32"
    if most_norm is None or not tree.leaves(message.value):
        return ""
    received = algorithm.received(ctx, algorithm.sent(ctx, shared, client_id), client_id)
    norm = _norm(delta_of(message.value, reference_of(algorithm, received, message.value)))
    too_long = f"its update has the norm {norm:g}, and --data.dataset.max_update_norm is {most_norm:g}"
    return "" if norm <= most_norm else too_long


def implausible_rows(rows: Tensor, counts: Tensor, *, is_share: bool) -> dict[int, str]:
    """What cannot be true of measurements, by the place of the client.

    Args:
        rows: number of samples, Σ loss, Σ hits or squared errors, and other metrics, NaN where undefined, [C, 3 + K].
        counts: samples of each client that its node told at the start, [C].
        is_share: hits are counted, and at most one for each sample.
    """
    found = {}
    for place, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
        number, loss, score, *others = row
        if number != count:
            found[place] = f"it measured {number:g} samples, and its node told {count} at the start"
        elif not abs(loss) <= count * MOST_FLOAT:
            found[place] = f"it measured the loss {loss:g} in sum over {count} samples"
        elif not 0 <= score <= count * (1 + 1e-6 if is_share else MOST_FLOAT):
            found[place] = f"it measured {score:g} {'hits' if is_share else 'as squared error'} in {count} samples"
        elif any(MOST_FLOAT < abs(one) < float("inf") for one in others):
            found[place] = "a metric of it is no float32"
    return found


def _norm(value: Tree) -> float:
    """Euclidean norm over all leaves in float64."""
    parts = [torch.linalg.vector_norm(leaf.double()) for leaf in tree.leaves(value)]
    return float(torch.linalg.vector_norm(torch.stack(parts))) if parts else 0.0
