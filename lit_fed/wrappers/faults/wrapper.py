"""Failing clients: they drop out, are late or unreachable; around any algorithm that tolerates missing clients.

Symbols:
    p_i   -> Faults.chances         probability that the message of a sampled client arrives
    T_i   -> work_times             T_min plus an exponential variable with mean μ_i (`compute_min`, `compute_mean`)
    o, m  -> over_selection, num_wanted
    a, b  -> comes_back, goes_away  of the Markov chain of each client
Deviations:
    Dropouts are drawn once per round: a client that drops out of one phase is missing in all later ones.
    Weights w_i/p_i are rounded to multiples of a power of two, as fine as whole numbers in float64 allow.
"""

from __future__ import annotations

import csv
import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.seeds import generator, generators
from lit_fed.core.types import Absences, LocalWork, Phase, Reduced, Tree
from lit_fed.errors import Check, ConfigError, check_settings
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.deltas import reference_of

__all__ = [
    "Faults", "MarkovChain", "Unreliable", "digest_of_numbers", "drops_out", "markov_chain", "per_client",
    "read_numbers", "work_times",
]  # fmt: skip


def drops_out(seed: int, round_idx: int, client_ids: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Mask of the clients [C] that drop out of a round, [C] bool; independent, and the same for all its phases.

    Args:
        seed: training seed.
        round_idx: round, from 0.
        client_ids: the clients, [C].
        probabilities: dropout probability of every client of the population, [T], looked up by id.

    Example:
        >>> ids = np.arange(10)
        >>> ids[drops_out(0, 0, ids, np.full(10, 0.3))].tolist()
        [0, 1, 2, 3, 7]
    """
    chances = probabilities[client_ids]
    drawn = [
        bool(chance > 0) and generator(seed, round_idx, client_id, "drop").random() < chance
        for client_id, chance in zip(client_ids.tolist(), chances.tolist(), strict=True)
    ]
    return np.array(drawn, dtype=bool)


def work_times(
    seed: int, round_idx: int, client_ids: np.ndarray, least: float, means: np.ndarray, purpose: str = "work time"
) -> np.ndarray:
    """Computing time of each client [C], [C] float64: T_min plus an exponential variable with the client's mean.

    Args:
        seed: training seed.
        round_idx: round, from 0.
        client_ids: the clients, [C].
        least: T_min.
        means: mean of the random part for every client of the population, [T], looked up by id.
        purpose: names the stream of random numbers.
    """
    drawn = [one.exponential() for one in generators(seed, round_idx, client_ids.tolist(), purpose)]
    times: np.ndarray = least + means[client_ids] * np.array(drawn, dtype=np.float64)
    return times


class MarkovChain:
    """Availability of clients: independent two-state Markov chains that start from the stationary distribution.

    A round costs one draw per client if rounds are requested in order; for an earlier round the chain restarts.

    Args:
        num_clients: T.
        comes: probability that an unavailable client is available in the next round, a.
        goes: probability that an available client is unavailable in the next round, b.
        seed: training seed.
    """

    def __init__(self, num_clients: int, comes: float, goes: float, seed: int) -> None:
        self.num_clients, self.comes, self.goes, self.seed = num_clients, comes, goes, seed
        self._round_idx, self._there = -1, np.zeros(0, dtype=bool)

    @property
    def share(self) -> float:
        """Share of rounds in which a client is available, a/(a + b)."""
        return self.comes / (self.comes + self.goes)

    def at(self, round_idx: int) -> np.ndarray:
        """Mask of available clients in a round, [T] bool."""
        if round_idx < self._round_idx:
            self._round_idx = -1
        while self._round_idx < round_idx:
            self._round_idx += 1
            drawn = generator(self.seed, self._round_idx, 0, "available").random(self.num_clients)
            if self._round_idx == 0:
                self._there = drawn < self.share
            else:
                self._there = np.where(self._there, drawn >= self.goes, drawn < self.comes)
        return self._there.copy()


@lru_cache(maxsize=4)
def markov_chain(num_clients: int, comes: float, goes: float, seed: int) -> MarkovChain:
    """The chain with these settings, which caches the last requested round."""
    return MarkovChain(num_clients, comes, goes, seed)


def read_numbers(path: str, place: str) -> np.ndarray:
    """The numbers of a .npy file, or of a .csv file without a header; not to be written to.

    Args:
        path: the file, which is read again after a change.
        place: the option that names it, for error messages.

    Raises:
        ConfigError: naming option and file, if it cannot be read.
    """
    try:
        about = Path(path).stat()
    except (OSError, ValueError):
        return _numbers_of(path, place, 0, 0)  # its message says what is wrong
    return _numbers_of(path, place, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _numbers_of(path: str, place: str, changed: int, size: int) -> np.ndarray:
    try:
        if path.endswith(".npy"):
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if not path.endswith(".csv"):
            raise ConfigError(f"{place} is {path}; give a .npy file, or a .csv file without a header")
        with Path(path).open(newline="", encoding="utf-8") as lines:
            return np.array([[_number(cell) for cell in row] for row in csv.reader(lines) if row])
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{place} {path} cannot be read: {error}; give a .npy or .csv file of numbers") from error


def _number(cell: str) -> float:
    """A number, or True or False."""
    words = {"true": 1.0, "false": 0.0}
    return words[cell.strip().lower()] if cell.strip().lower() in words else float(cell)


def per_client(given: float | list[float] | str, num_clients: int, place: str) -> np.ndarray:
    """One number for each client, [T] float64.

    Args:
        given: one number for all, a list, or a file.
        num_clients: T.
        place: the option, for error messages.

    Raises:
        ConfigError: naming the option, if there are not as many numbers as clients.
    """
    if isinstance(given, str):
        given = read_numbers(given, place).ravel().tolist()
    numbers = np.atleast_1d(np.asarray(given, dtype=np.float64))
    if isinstance(given, list) and len(numbers) != num_clients:
        raise ConfigError(f"{place} has {len(numbers)} numbers, and there are {num_clients} clients; give one for each")
    return np.broadcast_to(numbers, num_clients)


def digest_of_numbers(path: str, place: str) -> str:
    """Digest of the numbers of a file, 32 hexadecimal digits; arguments as of `read_numbers`."""
    numbers = np.ascontiguousarray(read_numbers(path, place), dtype=np.float64)
    digest = hashlib.blake2b(str(numbers.shape).encode(), digest_size=16)
    digest.update(numbers.tobytes())
    return digest.hexdigest()


PLACE = "--model.faults"


# not derived from `WrapperSettings`: jsonargparse takes options of a plain dataclass without a class path
@dataclass(frozen=True)
class Faults:
    """Failures of clients, and treatment of the average without them.

    Args:
        dropout: probability that a client drops out of a round: one number, a list with one number per client, or a
            .npy or .csv file of them.
        when: clients drop out `before` their work, or `after` it, when their message is lost.
        commits: whether a client whose message was lost keeps its new state (`always`) or its old one, which matches
            the server's view (`on_send`).
        deadline: time that the server waits for work, in units of the time to send one model to a client; later clients
            count as dropped after their work; null: no limit.
        over_selection: o; ⌈(1 + o)·m⌉ clients are sampled if m are wanted, and the first m to finish count.
        compute_min: T_min, minimum time of local training.
        compute_mean: mean of the random time added to it: one number, a list, or a file, as for `dropout`.
        trace: .npy or .csv file of reachable clients: one row per round, repeated from the start after the last, one
            column per client.
        comes_back: probability that an unreachable client is reachable in the next round; with `goes_away`, instead of
            a trace.
        goes_away: probability that a reachable client is unreachable in the next round.
        average: over the clients whose messages arrive (`renormalised`); with weights divided by the probability of
            arrival (`importance`), which is unbiased; over all sampled clients, counting missing ones as unchanged
            (`fixed`); or likewise over the expected number of arrivals (`expected`).
        on_bad_client: treatment of a client whose computation fails or returns NaN or infinity: stop the run (`stop`),
            or continue without it in this round (`drop`).
    """

    dropout: float | list[float] | str = 0.0
    when: Literal["before", "after"] = "before"
    commits: Literal["on_send", "always"] = "on_send"
    deadline: float | None = None
    over_selection: float = 0.0
    compute_min: float = 0.0
    compute_mean: float | list[float] | str = 0.0
    trace: str | None = None
    comes_back: float | None = None
    goes_away: float | None = None
    average: Literal["renormalised", "importance", "fixed", "expected"] = "renormalised"
    on_bad_client: Literal["stop", "drop"] = "stop"

    def __post_init__(self) -> None:
        lists: dict[str, Check] = {
            "dropout": (_all(self.dropout, lambda one: 0 <= one < 1), "numbers in [0, 1)"),
            "compute_mean": (_all(self.compute_mean, lambda one: one >= 0), "numbers >= 0"),
        }
        chances = {"comes_back": "(0, 1]", "goes_away": "[0, 1]"}
        check_settings(self, lists | chances, PLACE, over_selection=">= 0", compute_min=">= 0")
        if self.deadline is not None and not self.deadline > 0:  # an infinite deadline is a deadline
            raise ConfigError(f"{PLACE}.deadline is {self.deadline}; give a number > 0")
        if (self.comes_back is None) != (self.goes_away is None):
            given, missing = ("comes_back", "goes_away") if self.goes_away is None else ("goes_away", "comes_back")
            raise ConfigError(f"{PLACE}.{given} is given without {missing}; give both, or none")
        if self.trace is not None and self.comes_back is not None:
            raise ConfigError(f"{PLACE}.trace says who can be reached, and so does comes_back; give one of them")
        if not self.takes_time and (self.compute_min or self.compute_mean):
            raise ConfigError(
                f"{PLACE}.compute_min and compute_mean matter to a deadline or to over_selection alone; give one of "
                "these, or add the callback SimulatedTime, which only reports times"
            )
        if self.average in ("importance", "expected") and not self.knows_chances:
            raise ConfigError(
                f"{PLACE}.average {self.average} needs every client's probability to take part; give dropout, or "
                "choose renormalised"
            )

    @property
    def takes_time(self) -> bool:
        """Whether clients may be late."""
        return self.deadline is not None or bool(self.over_selection)

    @property
    def knows_chances(self) -> bool:
        """Whether a sampled client's probability of arrival is known; that of being among the first is not."""
        return bool(self.dropout or self.deadline) and not self.over_selection

    @property
    def forgives(self) -> bool:
        """Whether the round continues without a client that fails."""
        return self.on_bad_client == "drop"

    @property
    def misses_clients(self) -> bool:
        """Whether some client may be missing in some round, as far as known beforehand."""
        comes_and_goes = self.trace is not None or bool(self.goes_away)
        return bool(self.dropout or self.over_selection or comes_and_goes) or math.isfinite(self.deadline or math.inf)

    @property
    def loses_messages(self) -> bool:
        """Whether clients may drop out after they have started."""
        return self.takes_time or bool(self.dropout and self.when == "after") or self.forgives

    # ------------------------------------------------------------------ refusals

    def check_clients(self, num_clients: int) -> None:
        """Refuse lists and files for another number of clients."""
        for name in ("dropout", "compute_mean"):
            numbers = per_client(getattr(self, name), num_clients, f"{PLACE}.{name}")
            most = 1 if name == "dropout" else math.inf
            if not ((numbers >= 0) & (numbers < most)).all():
                raise ConfigError(
                    f"{PLACE}.{name} holds {numbers.min()} to {numbers.max()}; give numbers in [0, {most})"
                )
        if self.average in ("importance", "expected") and not (self.chances(num_clients) > 0).all():
            raise ConfigError(
                f"{PLACE}.deadline is {self.deadline}, and some client never comes in time, for whom average "
                f"{self.average} cannot stand in; give a later one, or choose renormalised"
            )
        if self.trace is not None:
            rows = read_numbers(self.trace, f"{PLACE}.trace")
            if rows.ndim != 2 or not len(rows) or rows.shape[1] != num_clients:
                raise ConfigError(
                    f"{PLACE}.trace {self.trace} has the shape {list(rows.shape)}, and there are {num_clients} "
                    "clients; give a row for each round and a column for each client"
                )

    @property
    def files(self) -> dict[str, str]:
        """Digests of the given files by option: a resumed run needs the same numbers."""
        given = {name: getattr(self, name) for name in ("dropout", "compute_mean", "trace")}
        options = {f"{PLACE}.{name}": path for name, path in given.items() if isinstance(path, str)}
        return {option: digest_of_numbers(path, option) for option, path in options.items()}

    # ------------------------------------------------------------------ availability
    def available(self, seed: int, round_idx: int, num_clients: int) -> np.ndarray | None:
        """Mask of reachable clients in a round, [T] bool; None: all."""
        if self.trace is not None:
            rows = read_numbers(self.trace, f"{PLACE}.trace")
            return np.asarray(rows[round_idx % len(rows)], dtype=bool)
        if self.comes_back is None or self.goes_away is None:
            return None
        return markov_chain(num_clients, self.comes_back, self.goes_away, seed).at(round_idx)

    def chances(self, num_clients: int) -> np.ndarray:
        """p_i, probability that the message of a sampled client arrives, [T] float64.

        Example:
            >>> Faults(deadline=2.0, compute_mean=[1.0, 2.0, 4.0]).chances(3).round(4).tolist()
            [0.8647, 0.6321, 0.3935]
        """
        chances = 1 - per_client(self.dropout, num_clients, f"{PLACE}.dropout")
        if self.deadline is not None:
            left = max(self.deadline - self.compute_min, 0.0)
            means = per_client(self.compute_mean, num_clients, f"{PLACE}.compute_mean")
            in_time = np.full(num_clients, float(self.compute_min <= self.deadline))
            in_time[means > 0] = -np.expm1(-left / means[means > 0])
            chances = chances * in_time
        return chances

    def around(self, algorithm: Any) -> AlgorithmWrapper:
        return Unreliable(algorithm, self)


class _Missed(NamedTuple):
    """Ids of the missing clients of a phase, [.]."""

    dropped: np.ndarray
    late: np.ndarray
    wait: float | None


@dataclass(frozen=True)
class Unreliable(AlgorithmWrapper):
    """Some sampled clients drop out; the messages of others are lost."""

    faults: Faults

    @property
    def over_selection(self) -> float:
        """O."""
        return self.faults.over_selection

    def reachable(self, ctx: Context) -> np.ndarray | None:
        """As the trace or the chains say."""
        return self.faults.available(ctx.seed, ctx.round_idx, ctx.num_clients)

    @property
    def files(self) -> dict[str, str]:
        """Digests of files with numbers, by option."""
        return self.faults.files

    def phases(self, ctx: Context, client_ids: Tensor) -> list[Phase]:
        """The algorithm's phases, without dropouts, and with the ids of clients whose message is lost."""
        faults, gone = self.faults, np.zeros(ctx.num_clients, dtype=bool)
        there = self.reachable(ctx)
        if there is not None:
            gone |= ~there
        phases = []
        if faults.misses_clients:  # no client is certain to take part
            ctx = ctx._replace(sampling_probability=math.nextafter(ctx.sampling_probability, 0.0))
        for phase in self.inner.phases(ctx, client_ids) or [Phase("train", client_ids, LocalWork())]:
            if phase.waits_for_all:
                phases.append(phase._replace(absences=Absences(phase.client_ids, phase.client_ids[:0], False, 0, 0)))
                continue
            drawn = phase.client_ids.numpy()
            ids = drawn[~gone[drawn]]
            missed = self._missed(ctx, phase, np.unique(ids))
            lost = missed.late
            if faults.when == "after":
                lost = np.union1d(lost, missed.dropped)
            else:
                ids = ids[~np.isin(ids, missed.dropped)]
            gone[missed.dropped] = gone[missed.late] = True
            factors, shares = self._weights(ctx)
            absences = Absences(
                torch.from_numpy(drawn), torch.from_numpy(lost), faults.commits == "always", len(missed.dropped),
                len(missed.late), missed.wait, factors, shares, faults.forgives, faults.deadline,
            )  # fmt: skip
            phases.append(phase._replace(client_ids=torch.from_numpy(ids), absences=absences))
        return phases

    def _missed(self, ctx: Context, phase: Phase, ids: np.ndarray) -> _Missed:
        faults = self.faults
        chances = per_client(faults.dropout, ctx.num_clients, f"{PLACE}.dropout")
        dropped = ids[drops_out(ctx.seed, ctx.round_idx, ids, chances)]
        if not faults.takes_time or not phase.work.trains:
            return _Missed(dropped, ids[:0], None)
        left = ids[~np.isin(ids, dropped)]
        means = per_client(faults.compute_mean, ctx.num_clients, f"{PLACE}.compute_mean")
        times = work_times(ctx.seed, ctx.round_idx, left, faults.compute_min, means)
        wanted = len(ids)
        if faults.over_selection:
            wanted = min(wanted, round(ctx.sampling_probability * ctx.num_clients))
        order = np.lexsort((left, times))
        comes = np.zeros(len(left), dtype=bool)
        comes[order[:wanted]] = True
        if faults.deadline is not None:
            comes &= times <= faults.deadline
        wait = float(times[comes].max(initial=0.0))
        if faults.deadline is not None and comes.sum() < wanted and math.isfinite(faults.deadline):
            wait = faults.deadline  # some client is still waited for
        return _Missed(dropped, left[~comes], wait)

    def _weights(self, ctx: Context) -> tuple[Tensor | None, Tensor | None]:
        """Factors on the weights, and the share of its weight with which a sampled client counts, [T] each."""
        if self.faults.average == "renormalised":
            return None, None
        chances = torch.from_numpy(self.faults.chances(ctx.num_clients))
        if self.faults.average == "importance":
            return (self._scale(ctx) / chances).round(), torch.ones_like(chances)
        return None, chances if self.faults.average == "expected" else torch.ones_like(chances)

    def _scale(self, ctx: Context) -> float:
        """The largest 2^k for which sums of weights over all clients stay whole numbers in float64."""
        if self.faults.average != "importance":
            return 1.0
        smallest = float(self.faults.chances(ctx.num_clients).min())
        each = max(ctx.most_samples, 1) if ctx.weighting == "samples" else 1
        most = max(ctx.sampling_probability, 1.0) * ctx.num_clients * each / smallest
        return 2.0 ** (52 - math.ceil(math.log2(most)))

    def server_step(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> Tree:
        """The algorithm's step, on the average over sampled clients if this is configured."""
        if ctx.drawn_weight is not None and tree.leaves(reduced.value):
            share = reduced.weight / self._scale(ctx) / ctx.drawn_weight
            reference = reference_of(self.inner, shared, reduced.value)
            value = tree.map_leaves(lambda new, old: share * new + (1 - share) * old.double(), reduced.value, reference)
            reduced = Reduced(value, torch.full_like(reduced.weight, ctx.drawn_weight))
        return super().server_step(ctx, shared, reduced, client_ids)


def _all(given: float | list[float] | str, holds: Any) -> bool:
    """Check the range of numbers; those in files are checked when the clients are known."""
    return isinstance(given, str) or all(holds(one) and math.isfinite(one) for one in np.atleast_1d(given))
