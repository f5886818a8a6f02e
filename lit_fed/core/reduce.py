"""From messages to what the server sees: a weighted mean or the stack of all messages, over blocks and over ranks.

Sums run in float64 with whole-number weights and are divided last, so that neither the size of blocks nor the number of
ranks changes a float32 result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Message, ModelState, Reduced, Tree
from lit_fed.errors import ConfigError

__all__ = [
    "Accumulator",
    "RunningMeans",
    "all_reduce",
    "as_shared",
    "cast_like",
    "exact_average",
    "gather_rows",
    "guard_collectives",
    "num_ranks",
    "server_average",
]


PIECE = 2**18
"""Elements of a model that are added up at once: few enough for the caches of a CPU."""


_guard: Callable[[], AbstractContextManager[None]] = nullcontext


def guard_collectives(guard: Callable[[], AbstractContextManager[None]]) -> None:
    """Enter this context around each collective of this process, such as one that waits until all ranks arrive."""
    global _guard
    _guard = guard


def num_ranks() -> int:
    """How many ranks there are; 1 in a single process."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce(value: Tensor) -> Tensor:
    """Sum over ranks; the value itself in a single process."""
    if num_ranks() > 1:
        with _guard():
            dist.all_reduce(value)
    return value


def gather_rows(rows: Tree, client_ids: Tensor, counts: list[int]) -> Tree:
    """Rows of all ranks, in the order of `client_ids`, from each rank's own rows (one collective for all leaves).

    Args:
        rows: this rank's rows, leaves [C_r, ...], in the order in which its ids stand in `client_ids` below.
        client_ids: positions of the gathered rows in the result, rank after rank, [C].
        counts: rows of each rank; every rank computes them for itself, so ids need not be sent.
    """
    if num_ranks() == 1 or not len(client_ids):
        return tree.map_leaves(lambda leaf: _place(leaf, client_ids), rows)
    flat = [_as_bytes(leaf) for leaf in tree.leaves(rows)]
    widths = [part.shape[1] for part in flat]
    packed = torch.zeros(max(counts), sum(widths), dtype=torch.uint8, device=client_ids.device)
    packed[: flat[0].shape[0]] = torch.cat(flat, dim=1)
    gathered = [torch.empty_like(packed) for _ in counts]
    with _guard():
        dist.all_gather(gathered, packed)
    whole = torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])
    parts = torch.split(whole, widths, dim=1)
    values = [
        # a copy also of a single row, whose place among the others need not be one of its type
        part.clone(memory_format=torch.contiguous_format).view(leaf.dtype).view(len(whole), *leaf.shape[1:])
        for part, leaf in zip(parts, tree.leaves(rows), strict=True)
    ]
    return tree.map_leaves(lambda leaf: _place(leaf, client_ids), tree.rebuild(rows, values))


def _as_bytes(leaf: Tensor) -> Tensor:
    return leaf.reshape(len(leaf), leaf.shape[1:].numel()).contiguous().view(torch.uint8)


def _place(leaf: Tensor, positions: Tensor) -> Tensor:
    placed = torch.empty_like(leaf)
    placed[positions] = leaf
    return placed


class Accumulator:
    """What one rank has gathered in a phase.

    Args:
        kind: `sum` keeps one running sum, constant in memory; `stack` keeps every message.

    Attributes:
        metric_names: of the metrics that came with the messages, in the order of their means. A name with a slash
            is a wrapper's, of messages; all others are of local training.
    """

    def __init__(self, kind: Literal["sum", "stack"]) -> None:
        self.kind = kind
        self._sum: Tree = None
        self._stacked: list[Tree] = []
        self._totals: Tensor | None = None  # Σ weight, bits up, bits down, Σ weight of those that took steps, Σ metrics
        self.metric_names: list[str] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added, so that even the form of the messages is unknown."""
        return self._totals is None

    def add(
        self,
        message: Message,
        multiplicity: Tensor,
        metrics: dict[str, Tensor],
        heard: Tensor | None = None,
        stepped: Tensor | None = None,
    ) -> None:
        """Take in the messages and metrics of C clients, leaves [C, ...]; multiplicity 0 adds only the shape.

        Args:
            message: what they sent.
            multiplicity: how often each counts, [C] float64.
            metrics: theirs.
            heard: who received something, [C] bool; None: those that count.
            stepped: who took local steps, [C] bool; None: all. Others take no part in means of local training.
        """
        self.metric_names = list(metrics)
        weight = message.weight.double() * multiplicity
        assert message.bits_up is not None
        assert message.bits_down is not None
        present = (multiplicity > 0).double()
        received = present if heard is None else heard.double()
        trained = weight if stepped is None else weight * stepped
        traffic = [weight.sum(), message.bits_up @ present, message.bits_down @ received, trained.sum()]
        sums = [(weight if "/" in name else trained) @ value.double() for name, value in metrics.items()]
        totals = torch.stack([*traffic, *sums])
        self._totals = totals if self._totals is None else self._totals + totals
        if self.kind == "stack":
            keep = multiplicity > 0
            self._stacked.append(tree.index(message._replace(weight=weight, bits_up=None, bits_down=None), keep))
            return
        if self._sum is None:
            self._sum = tree.map_leaves(_zeros, message.value)
        tree.map_leaves(lambda total, leaf: _add(total, weight, leaf), self._sum, message.value)

    def reduce(self, positions: Tensor, counts: list[int]) -> tuple[Reduced, Tensor, dict[str, tuple[float, float]]]:
        """The reduction over all ranks.

        Args:
            positions: for each row, rank after rank and in the order it was added, its place in the phase, [C].
            counts: clients of each rank.

        Returns:
            What the server sees; the bits sent up and down in this phase, [2] float64; the mean of each metric and its
            weight. Means of what weighs nothing are 0.
        """
        assert self._totals is not None
        if self.kind == "stack":
            rows: Message = tree.map_leaves(lambda *parts: torch.cat(parts), *self._stacked)
            rows = gather_rows(rows, positions, counts)
            totals = all_reduce(self._totals)
            return Reduced(rows.value, rows.weight), totals[1:3], self._means(totals)
        totals, sums = self._totals, tree.leaves(self._sum)
        if num_ranks() > 1:
            flat = all_reduce(torch.cat([totals, *(leaf.flatten() for leaf in sums)]))
            parts = torch.split(flat, [len(totals), *(leaf.numel() for leaf in sums)])
            totals, sums = parts[0], [part.view(leaf.shape) for part, leaf in zip(parts[1:], sums, strict=True)]
        divisor = _divisor(totals[0])
        values = [leaf / divisor for leaf in sums]
        return Reduced(tree.rebuild(self._sum, values), totals[0]), totals[1:3], self._means(totals)

    def _means(self, totals: Tensor) -> dict[str, tuple[float, float]]:
        """The mean of each metric, and the weight of the clients that it is over."""
        weight, _, _, trained, *sums = totals.tolist()
        weights = {name: weight if "/" in name else trained for name in self.metric_names}
        return {
            name: (total / (weights[name] or 1.0), weights[name]) for name, total in zip(weights, sums, strict=True)
        }


class RunningMeans:
    """Means over what comes in parts, by name.

    Example:
        >>> means = RunningMeans()
        >>> means.add("loss", 1.0, 2.0), means.add("loss", 4.0, 1.0), means.means
        (None, None, {'loss': 2.0})

    Attributes:
        means: the mean of all parts so far, by name.
    """

    def __init__(self) -> None:
        self.means: dict[str, float] = {}
        self._totals: dict[str, tuple[float, float]] = {}

    def add(self, name: str, mean: float, weight: float) -> None:
        """Take in the mean of a part and its weight; one that weighs nothing has no mean."""
        if not weight:
            return
        total, before = self._totals.get(name, (0.0, 0.0))
        self._totals[name] = total + weight * mean, before + weight
        self.means[name] = (total + weight * mean) / (before + weight) if before else mean


def _divisor(weight: Tensor) -> Tensor:
    """What a weighted sum is divided by; a sum of nothing stays 0."""
    return torch.where(weight == 0, torch.ones_like(weight), weight)


def _zeros(leaf: Tensor) -> Tensor:
    """A sum of no rows; consecutive in memory, whatever the layout of convolution weights."""
    return torch.zeros(leaf.shape[1:], dtype=torch.float64, device=leaf.device)


def _add(total: Tensor, weight: Tensor, leaf: Tensor) -> None:
    """Add Σ_c w_c leaf_c in place, piece by piece: a float64 copy of large models would cost more than the sum."""
    flat, rows = total.view(-1), leaf.reshape(len(leaf), -1)
    on_cpu = flat.device.type == "cpu"
    at_once = PIECE if on_cpu else max(len(flat), 1)  # elsewhere a piece costs launches
    alone = float(weight[0]) if on_cpu and len(rows) == 1 else None  # a number, which elsewhere would be waited for
    for lo in range(0, len(flat), at_once):
        total_piece, piece = flat[lo : lo + at_once], rows[:, lo : lo + at_once].double()
        if alone is None:
            total_piece += weight @ piece
        else:
            total_piece.add_(piece[0], alpha=alone)


def server_average(ctx: Context, models: ModelState, reduced: Reduced) -> ModelState:
    """The average of the clients' models, in the models' own types."""
    return cast_like(exact_average(ctx, models, reduced), models)  # type: ignore[no-any-return]


def exact_average(ctx: Context, models: ModelState, reduced: Reduced) -> ModelState:
    """The average of the clients' models in float64, for a server that takes small differences to its own.

    `renormalised` averages over the clients that took part; `stale_fill` lets the others count with the model that they
    were last sent, which is the server's (the official FedEM code): Σ_S p_i θ_i + (1 − Σ_S p_i) θ. It is refused with
    draws by size, whose mean is Σ p_i θ_i on average already, and whose Σ_S p_i may exceed 1.
    """
    if ctx.aggregation == "renormalised":
        return reduced.value  # type: ignore[no-any-return]
    share = reduced.weight / ctx.total_weight

    def fill_in(new: Tensor, old: Tensor) -> Tensor:
        return share * new + (1 - share) * old.double()

    return tree.map_leaves(fill_in, reduced.value, models)  # type: ignore[no-any-return]


def cast_like(values: Tree, like: Tree) -> Tree:
    """Leaves in the types of the tree that they replace; whole numbers are rounded."""

    def cast(value: Tensor, old: Tensor) -> Tensor:
        if value.dtype == old.dtype or old.is_floating_point():
            return value.to(old.dtype)
        return value.round().to(old.dtype)

    return tree.map_leaves(cast, values, like)


def as_shared(new: Tree, old: Tree, algorithm: str) -> Tree:
    """What a server step returned, in the types of the shared state, which never change.

    Args:
        new: what it returned; sums and averages may be float64.
        old: the shared state before the step.
        algorithm: its name, for error messages.

    Raises:
        ConfigError: naming the algorithm, the leaf and both shapes, if leaves differ.
    """
    before, after = dict(tree.items(old)), dict(tree.items(new))
    for path in before.keys() ^ after.keys():
        raise ConfigError(
            f"{algorithm}.server_step {'leaves out' if path in before else 'adds'} {path or 'a leaf'}; return the same "
            "fields and keys as shared_init"
        )
    for path, leaf in after.items():
        if leaf.shape != before[path].shape:
            raise ConfigError(
                f"{algorithm}.server_step returns {path or 'a leaf'} of shape {list(leaf.shape)} for one of shape "
                f"{list(before[path].shape)}; shapes of the shared state never change, so return that of shared_init"
            )
    return cast_like(new, old)
