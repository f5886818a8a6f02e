"""Sampled clients, their ranks and their blocks: pure functions with the same result on every rank."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.plan import steps_of
from lit_fed.core.seeds import generator
from lit_fed.core.types import ClientBlock, Phase, ServingBlock, Split
from lit_fed.errors import ConfigError
from lit_fed.system.machine import require_memory

__all__ = [
    "DrawCandidates", "cohort_size", "cut_blocks", "draw_cohort", "over_selected", "round_blocks",
    "sampling_probability", "serving_blocks", "split_by_work", "whole_part",
]  # fmt: skip


DrawCandidates: TypeAlias = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
"""Training samples of clients [A], number of clients of a round, stream -> positions of candidates [d]."""

BYTES_OF_DRAW = 32
"""Bytes per client sampled with replacement: a number, an id, and both sorted."""


def whole_part(fraction: float, total: int) -> int:
    """The floor of fraction · total, robust to rounding of a decimal fraction.

    Example:
        >>> int(0.29 * 100), whole_part(0.29, 100)
        (28, 29)
    """
    return math.floor(fraction * total + 1e-9)


def cohort_size(
    num_clients: int,
    fraction: float = 1.0,
    number: int | None = None,
    sampling: Literal["uniform", "size", "poisson"] = "uniform",
) -> int:
    """Number of sampled clients: `number`, or else the whole part of `fraction` of all, at least one.

    Raises:
        ConfigError: if there are fewer clients, or memory is too small for the draws by size.
    """
    if number is None and not 0 < fraction <= 1:
        raise ConfigError(f"fraction of clients per round = {fraction}; choose a number above 0 and up to 1")
    drawn = max(1, whole_part(fraction, num_clients)) if number is None else number
    if drawn < 1:
        raise ConfigError(f"clients per round = {drawn}; draw at least 1 client")
    if sampling == "size":
        require_memory(BYTES_OF_DRAW * drawn, f"clients per round = {drawn}", "draw fewer")
    elif drawn > num_clients:
        raise ConfigError(
            f"clients per round = {drawn}, but there are only {num_clients} clients; draw fewer, or sample by size"
        )
    return drawn


def sampling_probability(
    num_clients: int,
    fraction: float = 1.0,
    number: int | None = None,
    sampling: Literal["uniform", "size", "poisson"] = "uniform",
) -> float:
    """Probability that a client is sampled in a round; with sampling by size, draws per client.

    Raises:
        ConfigError: as `cohort_size`.

    Example:
        >>> sampling_probability(8, 0.3), sampling_probability(8, 0.3, sampling="poisson")
        (0.25, 0.3)
    """
    drawn = cohort_size(num_clients, fraction, number, sampling)
    return fraction if sampling == "poisson" and number is None else drawn / num_clients


def draw_cohort(
    num_clients: int, sizes: np.ndarray, *, fraction: float = 1.0, number: int | None = None,
    sampling: Literal["uniform", "size", "poisson"] = "uniform", seed: int, round_idx: int,
    available: np.ndarray | None = None, over_selection: float = 0.0, candidates: DrawCandidates | None = None,
) -> np.ndarray:  # fmt: skip
    """Sample the clients of a round; every rank samples the same ones.

    Args:
        num_clients: number of clients T.
        sizes: training samples of each client [T].
        fraction: fraction of the clients to sample if `number` is None.
        number: number of clients to sample; with "poisson" the expected number.
        sampling: "uniform": without replacement; "size": with replacement, in proportion to `sizes`; "poisson": each
            client independently with the same probability.
        seed: training seed.
        round_idx: round, from 0.
        available: mask of reachable clients, [T] bool; if there are too few, all of these are sampled; None: all
            clients.
        over_selection: o; "uniform" samples ⌈(1 + o)·m⌉ clients for m messages.
        candidates: sample candidates instead, from which m clients are selected later; with "uniform" only.

    Returns:
        Client ids in ascending order [m] int64; with "size" ids may repeat, with "poisson" there may be none.
    """
    if sampling not in ("uniform", "size", "poisson"):
        raise ConfigError(f"sampling = {sampling!r}; choose 'uniform', 'size' or 'poisson'")
    there = np.ones(num_clients, dtype=bool) if available is None else available
    if sampling == "poisson":
        coins = generator(seed, round_idx, 0, "cohort/poisson").random(num_clients)
        return np.flatnonzero((coins < sampling_probability(num_clients, fraction, number, sampling)) & there)
    num_drawn, rng = cohort_size(num_clients, fraction, number, sampling), generator(seed, round_idx, 0, "cohort")
    ids = np.flatnonzero(there)
    if sampling == "size":
        weights = np.asarray(sizes, dtype=np.float64)[ids]
        return np.sort(rng.choice(ids, num_drawn, p=weights / weights.sum())) if weights.sum() else ids[:0]
    num_drawn = min(over_selected(num_drawn, over_selection) if over_selection else num_drawn, len(ids))
    if candidates is not None:
        return np.sort(ids[candidates(np.asarray(sizes)[ids], num_drawn, rng)])
    return np.sort(rng.choice(ids, num_drawn, replace=False))


def over_selected(num_wanted: int, over_selection: float) -> int:
    """⌈(1 + o)·m⌉, the clients to sample for m messages, robust to rounding of a decimal fraction.

    Example:
        >>> over_selected(10, 0.3), over_selected(10, 0.0), over_selected(7, 0.3)
        (13, 10, 10)
    """
    return math.ceil((1 + over_selection) * num_wanted - 1e-9)


def split_by_work(client_ids: np.ndarray, work: np.ndarray, world_size: int) -> list[np.ndarray]:
    """Assign every client to one rank: largest work first, each to the rank with the least work so far.

    Args:
        client_ids: clients of the phase [m], duplicates allowed.
        work: cost of every client of the population [T], looked up by id.
        world_size: number of ranks.

    Returns:
        Clients of each rank in ascending order, each id once; a rank may get none.
    """
    unique_ids, costs = np.unique(client_ids), np.asarray(work)
    shares: list[list[int]] = [[] for _ in range(world_size)]
    loads = [(0.0, rank) for rank in range(world_size)]
    for client_id in unique_ids[np.lexsort((unique_ids, -costs[unique_ids]))]:
        load, rank = loads[0]
        shares[rank].append(int(client_id))
        heapq.heapreplace(loads, (load + float(costs[client_id]), rank))
    return [np.array(sorted(share), dtype=np.int64) for share in shares]


def cut_blocks(
    client_ids: np.ndarray, sizes: np.ndarray, clients_per_block: int, samples_per_block: int | None = None
) -> list[np.ndarray]:
    """Cut clients into blocks in the order given.

    Args:
        client_ids: clients [m].
        sizes: samples of each client [m].
        clients_per_block: maximum number of clients in a block.
        samples_per_block: maximum number of samples in a block of several clients; None: any number.

    Example:
        >>> [block.tolist() for block in cut_blocks(np.arange(5), np.array([9, 1, 2, 3, 1]), 3, 5)]
        [[0], [1, 2], [3, 4]]
    """
    if clients_per_block < 1:
        raise ConfigError(f"clients_per_block = {clients_per_block}; choose a whole number of at least 1")
    ends, blocks, start = np.cumsum(sizes), [], 0
    while start < len(client_ids):
        end = start + clients_per_block
        if samples_per_block is not None:
            before = ends[start] - sizes[start]
            end = min(end, max(start + 1, int(np.searchsorted(ends, before + samples_per_block, side="right"))))
        blocks.append(client_ids[start:end])
        start = end
    return blocks


def round_blocks(
    phases: Sequence[Phase], data: Split, *, batch_size: int, clients_per_block: int, rank: int = 0, num_ranks: int = 1
) -> list[ClientBlock]:
    """One rank's blocks of a round, largest client first, ties by id; every rank has as many.

    A rank short of clients gets a placeholder.

    In a phase without clients every rank gets client 0 as placeholder: it gives the server the structure of the
    messages, and wrappers may add to their sum.

    Args:
        phases: phases of the round; an id may occur several times in a phase.
        data: training split.
        batch_size: default batch size, to estimate the work of clients.
        clients_per_block: maximum number of clients in a block.
        rank: this rank.
        num_ranks: number of ranks.
    """
    blocks: list[ClientBlock] = []
    sizes = data.sizes.numpy()
    for phase in phases:
        ids, counts = np.unique(phase.client_ids.numpy(), return_counts=True)
        times, factors, shares = np.zeros(len(sizes)), getattr(phase.absences, "factors", None), [ids]
        times[ids] = counts if factors is None else counts * factors.numpy()[ids]
        if num_ranks > 1:
            work = np.zeros(len(sizes))
            work[ids] = np.maximum(1, steps_of(sizes[ids], phase.work, batch_size))
            shares = split_by_work(ids, work, num_ranks)
        shares = [share[np.lexsort((share, -sizes[share]))] for share in shares]  # clients of similar length together
        cuts = [cut_blocks(share, sizes[share], clients_per_block, data.samples_per_block) for share in shares]
        slices = tuple(map(torch.from_numpy, shares))
        placeholder = ids[:1] if len(ids) else np.zeros(1, dtype=np.int64)
        for position in range(max(1, *map(len, cuts))):
            present = position < len(cuts[rank])
            chosen = cuts[rank][position] if present else placeholder
            part, multiplicity = phase._replace(client_ids=torch.from_numpy(chosen)), times[chosen] * present
            blocks.append(ClientBlock(part, torch.from_numpy(multiplicity), data, slices, False, False))
        blocks[-1] = blocks[-1]._replace(ends_phase=True)
    blocks[-1] = blocks[-1]._replace(ends_round=True)
    return blocks


def serving_blocks(
    data: Split, train: Split, measured: Tensor | None = None, *, clients_per_block: int, rank: int = 0,
    num_ranks: int = 1,
) -> list[ServingBlock]:  # fmt: skip
    """One rank's blocks of served clients, the same number on every rank; a block may be empty.

    Args:
        data: samples to evaluate on.
        train: samples to adapt on.
        measured: positions [E] of the evaluated clients; None: all.
        clients_per_block: maximum number of clients in a block.
        rank: this rank.
        num_ranks: number of ranks.
    """
    measured = torch.arange(data.num_clients) if measured is None else measured
    sizes = data.sizes[measured].numpy()
    shares = split_by_work(np.arange(len(measured)), sizes + 1, num_ranks)
    held, most_held = sizes + train.sizes[measured].numpy(), data.samples_per_block or train.samples_per_block
    cuts = [cut_blocks(share, held[share], clients_per_block, most_held) for share in shares]
    empty = [measured[:0].numpy()] * (max(map(len, cuts)) - len(cuts[rank]))
    rows = map(torch.from_numpy, [*cuts[rank], *empty])
    return [ServingBlock(data.client_ids[measured[some]], some, data, train) for some in rows]
