"""Reduction of messages over blocks and ranks: a weighted mean, or the stack of all messages.

Sums run in float64 with whole-number weights and are divided last, so neither the block size nor the number of ranks
changes a float32 result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Leaves, Message, ModelState, Reduced, Tree
from lit_fed.errors import ConfigError

__all__ = [
    "Accumulator",
    "all_reduce",
    "as_shared",
    "cast_like",
    "exact_average",
    "gather_rows",
    "num_ranks",
    "server_average",
    "stacked_average",
]  # fmt: skip


PIECE = 2**18
"""Elements added at once, to fit into CPU caches."""


def num_ranks() -> int:
    """Number of ranks; 1 in a single process."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce(value: Tensor) -> Tensor:
    """Sum over ranks; the value itself in a single process."""
    if num_ranks() > 1:
        dist.all_reduce(value)
    return value


def gather_rows(rows: Tree, client_ids: Tensor, counts: list[int]) -> Tree:
    """Gather the rows of all ranks with one collective for all leaves.

    Args:
        rows: this rank's rows, leaves [C_r, ...].
        client_ids: position of each gathered row in the result, rank after rank, [C].
        counts: rows of each rank; every rank computes them, so they are not sent.
    """
    if num_ranks() == 1 or not len(client_ids):
        return tree.map_leaves(lambda leaf: _place(leaf, client_ids), rows)
    flat = [_as_bytes(leaf) for leaf in tree.leaves(rows)]
    widths = [part.shape[1] for part in flat]
    packed = torch.zeros(max(counts), sum(widths), dtype=torch.uint8, device=client_ids.device)
    packed[: flat[0].shape[0]] = torch.cat(flat, dim=1)
    gathered = [torch.empty_like(packed) for _ in counts]
    dist.all_gather(gathered, packed)
    whole = torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])
    parts = torch.split(whole, widths, dim=1)
    values = [
        # clone: a view at this offset may be misaligned for its type, even for a single row
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


@dataclass(eq=False)
class Accumulator:
    """Running reduction of one rank in a phase.

    Args:
        kind: `sum` keeps one running sum; `stack` keeps every message.

    Attributes:
        metric_names: names of the metrics in the order of their means. A name with a slash is a wrapper's metric of
            messages; all others describe local training.
    """

    kind: Literal["sum", "stack"]
    metric_names: list[str] = field(default_factory=list, init=False)
    _sum: Tree = field(default=None, init=False)
    _stacked: list[Tree] = field(default_factory=list, init=False)
    # Σ weight, bits up, bits down, Σ weight of clients with steps, Σ metrics
    _totals: Tensor | None = field(default=None, init=False)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added, so that the structure of the messages is unknown."""
        return self._totals is None

    def add(
        self, message: Message, multiplicity: Tensor, metrics: Leaves, heard: Tensor | None = None,
        stepped: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Add the messages and metrics of C clients, leaves [C, ...]; multiplicity 0 adds only the structure.

        Args:
            message: their messages.
            multiplicity: how often each counts, [C] float64.
            metrics: their metrics.
            heard: clients that received the broadcast, [C] bool; None: those with multiplicity > 0.
            stepped: clients that took local steps, [C] bool; None: all. Means of local training omit the others.
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
        """Reduce over all ranks.

        Args:
            positions: position in the phase of each row, rank after rank in the order of addition, [C].
            counts: clients of each rank.

        Returns:
            The reduced messages; the bits sent up and down in this phase, [2] float64; the mean of each metric and its
            weight. The mean is 0 if the weight is 0.
        """
        assert self._totals is not None
        if self.kind == "stack":
            rows: Message = tree.map_leaves(lambda *parts: torch.cat(parts), *self._stacked)
            rows = gather_rows(rows, positions, counts)
            totals, reduced = all_reduce(self._totals), Reduced(rows.value, rows.weight)
        else:
            totals, sums = self._totals, self._sum
            if num_ranks() > 1:
                totals, sums = _over_ranks(totals, sums)
            divisor = totals[0].where(totals[0] != 0, 1.0)  # an empty sum stays 0
            reduced = Reduced(tree.map_leaves(lambda leaf: leaf / divisor, sums), totals[0])
        weight, _, _, trained, *metrics = totals.tolist()
        means = {}
        for name, total in zip(self.metric_names, metrics, strict=True):
            of_weight = weight if "/" in name else trained
            means[name] = total / (of_weight or 1.0), of_weight
        return reduced, totals[1:3], means


def _over_ranks(totals: Tensor, sums: Tree) -> tuple[Tensor, Tree]:
    """Sums over ranks, by one collective for all leaves."""
    leaves = tree.leaves(sums)
    flat = all_reduce(torch.cat([totals, *(leaf.flatten() for leaf in leaves)]))
    totals, *parts = torch.split(flat, [len(totals), *(leaf.numel() for leaf in leaves)])
    return totals, tree.rebuild(sums, [part.view(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def _add(total: Tensor, weight: Tensor, leaf: Tensor) -> None:
    """Add Σ_c w_c leaf_c in place, in pieces: a float64 copy of a large model would cost more than the sum."""
    flat, rows = total.view(-1), leaf.reshape(len(leaf), -1)
    on_cpu = flat.device.type == "cpu"
    at_once = PIECE if on_cpu else max(len(flat), 1)  # on a GPU each piece costs kernel launches
    alone = float(weight[0]) if on_cpu and len(rows) == 1 else None  # on a GPU `float` would synchronise
    for lo in range(0, len(flat), at_once):
        total_piece, piece = flat[lo : lo + at_once], rows[:, lo : lo + at_once].double()
        if alone is None:
            total_piece += weight @ piece
        else:
            total_piece.add_(piece[0], alpha=alone)


def _zeros(leaf: Tensor) -> Tensor:
    """Zeros for a sum over rows; contiguous for any layout of convolution weights."""
    return torch.zeros(leaf.shape[1:], dtype=torch.float64, device=leaf.device)


def stacked_average(rows: Tree, weight: Tensor) -> Tree:
    """The mean of stacked messages, leaves [C, ...], by their weights [C], in float64."""
    share = weight / weight.sum()
    return tree.map_leaves(lambda leaf: torch.tensordot(share, leaf.double(), dims=1), rows)


def server_average(ctx: Context, models: ModelState, reduced: Reduced) -> ModelState:
    """The average of the clients' models in the types of `models`."""
    return cast_like(exact_average(ctx, models, reduced), models)  # type: ignore[no-any-return]


def exact_average(ctx: Context, models: ModelState, reduced: Reduced) -> ModelState:
    """The average of the clients' models in float64, for servers that need small differences to their model.

    `renormalised` averages over the participating clients. `stale_fill` counts the others with the server's model
    (official FedEM code): Σ_S p_i θ_i + (1 − Σ_S p_i) θ. It is refused with sampling by size, whose mean is already
    unbiased and whose Σ_S p_i may exceed 1.
    """
    if ctx.aggregation == "renormalised":
        return reduced.value  # type: ignore[no-any-return]
    share = reduced.weight / ctx.total_weight

    def fill_in(new: Tensor, old: Tensor) -> Tensor:
        return share * new + (1 - share) * old.double()

    return tree.map_leaves(fill_in, reduced.value, models)  # type: ignore[no-any-return]


def cast_like(values: Tree, like: Tree) -> Tree:
    """Cast leaves to the types of another tree; values of integer leaves are rounded."""
    return tree.map_leaves(_cast, values, like)


def _cast(value: Tensor, old: Tensor) -> Tensor:
    rounds = value.is_floating_point() and not old.is_floating_point()
    return (value.round() if rounds else value).to(old.dtype)


def as_shared(new: Tree, old: Tree, algorithm: str) -> Tree:
    """Cast the result of a server step to the types of the shared state, which never change.

    Args:
        new: the result; sums and averages may be float64.
        old: the shared state before the step.
        algorithm: its name, for error messages.

    Raises:
        ConfigError: naming the algorithm, the leaf and both shapes, if leaves differ.
    """
    before, after = ({path: leaf.shape for path, leaf in tree.items(state)} for state in (old, new))
    if before != after:
        _refuse_form(before, after, algorithm)
    return cast_like(new, old)


def _refuse_form(before: dict[str, torch.Size], after: dict[str, torch.Size], algorithm: str) -> NoReturn:
    """Refuse a shared state whose leaves have other paths or shapes than before."""
    for path in before.keys() ^ after.keys():
        raise ConfigError(
            f"{algorithm}.server_step {'leaves out' if path in before else 'adds'} {path or 'a leaf'}; return the same "
            "fields and keys as shared_init"
        )
    path = next(path for path, shape in after.items() if shape != before[path])
    raise ConfigError(
        f"{algorithm}.server_step returns {path or 'a leaf'} of shape {list(after[path])} for one of shape "
        f"{list(before[path])}; shapes of the shared state never change, so return that of shared_init"
    )
