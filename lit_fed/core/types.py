"""Data structures passed between data, clients, algorithms and server.

Shapes use C clients in a block, N samples of one client (padded where `mask` is 0), B samples of a batch, M models
trained together, T clients in total. Leaves of a `ModelState` always have the leading axis M; a single model is M = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.system.machine import aligned

__all__ = [
    "SPLITS", "Absences", "Batch", "Chosen", "ClientBlock", "ClientData", "ClientResult", "Leaves", "LocalWork",
    "Message", "ModelState", "Phase", "PhaseTraffic", "Population", "Reduced", "RoundFaults", "RoundRecord",
    "ServingBlock", "Split", "Stage", "Tree",
]  # fmt: skip

Leaves = dict[str, Tensor]
"""Tensors by name, such as the parameters of a network."""

Tree = Any
"""Nested named tuples, tuples, lists or dicts of tensors."""


class ModelState(NamedTuple):
    """M models stacked leaf by leaf."""

    parameters: Leaves  # trained, leaves [M, ...]; frozen ones are in the task
    buffers: Leaves  # running statistics, leaves [M, ...]; {} without


class ClientData(NamedTuple):
    """The local samples of one client: rows `index` of the arrays, or all of them.

    Rows are gathered when `x` or `y` is read, so an algorithm that only needs losses makes no copy.
    """

    all_x: Tensor  # [n, ...]
    all_y: Tensor  # [n] or [n, L]
    index: Tensor | None  # type: ignore[assignment] # [N] rows of this client; None: every row, N = n
    mask: Tensor  # [N], 1 for a sample that counts; 0 for padding, and for a sample without any label
    client_id: Tensor  # [] int64

    @property
    def x(self) -> Tensor:
        """Inputs [N, ...]."""
        return self.all_x if self.index is None else self.all_x[self.index]

    @property
    def y(self) -> Tensor:
        """Labels [N] or [N, L]."""
        return self.all_y if self.index is None else self.all_y[self.index]

    @property
    def batch(self) -> Batch:
        """All samples as one batch."""
        index = torch.arange(len(self.mask), device=self.mask.device)
        return Batch(self.x, self.y, index, self.mask)

    @property
    def num_samples(self) -> Tensor:
        """Number of samples that count, [] float64: a whole number, so that weighted sums stay exact."""
        return self.mask.sum(dtype=torch.float64)


class Batch(NamedTuple):
    """One mini-batch, or K of them on a leading axis if `LocalWork.batches_per_step` is K > 1."""

    x: Tensor  # [B, ...] or [K, B, ...]
    y: Tensor  # [B] or [B, L], or with a leading K; classes may be probabilities, with a trailing C (binary: none)
    index: Tensor  # type: ignore[assignment] # [B] or [K, B]: position within the client's samples
    mask: Tensor  # [B] or [K, B], 1 for a sample that counts, as in `ClientData`


class Stage(NamedTuple):
    """A part of a client's local work; `ctx.stage` is its name in `client_step`."""

    name: str
    epochs: int | None = None
    steps: int | None = None
    is_whole: bool = False  # as in `LocalWork`


class LocalWork(NamedTuple):
    """Local work: the number of calls of `client_step`, by epochs or steps, at least one of them given.

    Stages run one after the other within the phase and share its message. Each has its own epochs or steps, starts a
    new shuffle, and takes the learning rate of the phase. A straggler takes at least one step of every stage, and about
    the same share of each. Batch sizes and sampling rates are the same for all stages.
    """

    epochs: int | None = None  # None with stages
    steps: int | None = None  # None with stages
    batch_size: int | None = None  # None: the data module's; 0: the whole local set
    batches_per_step: int = 1  # K > 1: each step gets K batches, each from its own shuffle
    straggler_fraction: float = 0.0  # share of the clients that take only a random part of their steps
    sample_rate: float = 0.0  # b > 0: Poisson batches of rate b; 0: shuffled passes
    stages: tuple[Stage, ...] = ()  # (): a single one without a name
    is_whole: bool = False  # whether every client takes all steps, since they measure something: no straggler, no share

    @property
    def trains(self) -> bool:
        """Whether there are local steps."""
        return any(work.epochs or work.steps for _, work in self.by_stage)

    @property
    def is_training(self) -> bool:
        """Whether local training is configured, possibly with no steps."""
        return any(work.epochs is not None or work.steps is not None for _, work in self.by_stage)

    @property
    def with_one_step(self) -> LocalWork:
        """The same work with one step in place of its epochs or steps; without steps it is the same."""
        if not self.trains:
            return self
        if self.stages:
            return self._replace(stages=tuple(one._replace(epochs=None, steps=1) for one in self.stages))
        return self._replace(epochs=None, steps=1, straggler_fraction=0.0)

    @property
    def by_stage(self) -> tuple[tuple[str, LocalWork], ...]:
        """The local work of each stage by its name; without stages this work under the name ""."""
        if not self.stages:
            return (("", self),)
        alone = self._replace(stages=())
        return tuple(
            (one.name, alone._replace(epochs=one.epochs, steps=one.steps, is_whole=one.is_whole)) for one in self.stages
        )


class Absences(NamedTuple):
    """Dropouts and lost messages of a phase, known before it begins."""

    drawn: Tensor  # [D] int64 sampled clients, repeated if drawn twice
    lost: Tensor  # [L] int64 clients whose message is lost after their work
    keeps_states: bool  # whether these keep their new state
    num_dropped: int  # clients that drop out, before or after their work
    num_late: int  # clients that are too late
    wait: float | None = None  # seconds that the server waits for work; None: until the slowest client is done
    factors: Tensor | None = None  # [T] float64 integer factors of weights; None: 1
    shares: Tensor | None = None  # [T] float64 factors on the weight of clients in `drawn`; None: unused
    forgives: bool = False  # whether the phase continues without a client that fails
    deadline: float | None = None  # seconds a node may take to answer; None: no limit for this phase

    def drawn_weight(self, sizes: Tensor, weighting: str) -> float | None:
        """Total weight of the sampled clients, including those that dropped out; None if unused.

        Args:
            sizes: training samples of every client, [T].
            weighting: weight of a client's message, its `samples`, or `uniform`.
        """
        if self.shares is None:
            return None
        shares = self.shares[self.drawn]
        return float((shares * sizes[self.drawn]).sum() if weighting == "samples" else shares.sum())


class Phase(NamedTuple):
    """One exchange with a set of clients; its results are visible after its end."""

    name: str
    client_ids: Tensor  # [C] int64; an id drawn twice trains once and counts twice
    work: LocalWork
    draws: Tensor | None = None  # [T] draws of each client, if messages count them and ids are unique
    absences: Absences | None = None  # None: none
    waits_for_all: bool = False  # whether the server needs all of these messages


class PhaseTraffic(NamedTuple):
    """Traffic and clients of one phase."""

    num_clients: int  # m, clients that took part
    trains: bool  # whether they did local work
    num_payloads: int  # different messages of the server; 0 without a server
    bits_up: float  # bits sent by all of these clients
    bits_down: float  # bits received by all of them
    wait: float | None = None  # seconds that the server waited for work; None: until the slowest client was done


class RoundFaults(NamedTuple):
    """Dropouts and failures of a round."""

    num_dropped: int  # dropped out
    num_late: int  # were too late
    non_finite: tuple[int, ...]  # clients excluded for NaN or infinity
    errors: tuple[int, ...]  # clients excluded for an error
    is_empty: bool  # whether the total weight is 0
    reasons: tuple[str, ...]  # errors of failures on this rank


class RoundRecord(NamedTuple):
    """Result of a round."""

    round_idx: int  # from 0
    lr: float  # local learning rate
    client_ids: Tensor  # clients that took part, ascending, without duplicates
    metrics: dict[str, float]  # weighted means over clients and phases, such as `loss`
    bits_up: float  # bits sent by all clients
    bits_down: float  # bits received by all of them
    phases: tuple[PhaseTraffic, ...]
    seconds: float
    faults: RoundFaults | None = None  # None: faults are off


class Message(NamedTuple):
    """Message of a client."""

    value: Tree
    weight: Tensor  # [] float64, a whole number wherever possible
    bits_up: Tensor | None = None  # [] float64; None: the size of `value`
    bits_down: Tensor | None = None  # [] float64; None: the size of what `Algorithm.sent` returns


class Chosen(NamedTuple):
    """Message value of a client whose M models have separate shares, or that sends only some of them."""

    models: ModelState  # times `taken`, leaves [M, ...]
    taken: Tensor  # [M] float64 in [0, 1], the share of the client's weight; 0 for a model that it does not send


class Reduced(NamedTuple):
    """Reduced messages: for "sum" Σ w·m / Σ w and Σ w, for "stack" all messages [C, ...] and weights [C]."""

    value: Tree
    weight: Tensor


class ClientResult(NamedTuple):
    """Result of a client in a phase; client trainers add a leading axis C."""

    message: Message
    state: Tree
    metrics: Leaves


class Split:
    """All samples of one split, client by client and contiguous; copied to a device once.

    Args:
        x: inputs [n, ...].
        y: labels [n] or [n, L].
        offsets: [T + 1] int64 on the CPU; client t owns rows offsets[t] to offsets[t + 1].
        first_id: identity of the first client; unseen clients are numbered after the others.
        ids: identities of the clients, ascending [T] int64 on the CPU; None: first_id, first_id + 1, ….

    Attributes:
        samples_per_block: most samples of a block that is loaded into memory; None: all samples are in memory.
    """

    samples_per_block: int | None = None

    def __init__(self, x: Tensor, y: Tensor, offsets: Tensor, first_id: int = 0, ids: Tensor | None = None) -> None:
        self.x, self.y, self.offsets, self.first_id, self.ids = x, y, offsets, first_id, ids
        self._resident: dict[torch.device, Split] = {}

    @classmethod
    def of(cls, clients: Sequence[tuple[Tensor, Tensor]]) -> Split:
        """The samples of some clients: inputs [n_t, ...] and labels [n_t] or [n_t, L] of each."""
        offsets = torch.tensor([0, *(len(y) for _, y in clients)]).cumsum(0)
        return cls(torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients]), offsets)

    @property
    def num_clients(self) -> int:
        """Number of clients T."""
        return len(self.offsets) - 1

    @property
    def num_samples(self) -> int:
        """Number of samples n of all clients."""
        return int(self.offsets[-1] - self.offsets[0])

    @cached_property
    def sizes(self) -> Tensor:
        """Samples per client, [T] int64; cached, so not to be modified."""
        return self.offsets.diff()

    @property
    def client_ids(self) -> Tensor:
        """Identities of the clients, ascending [T] int64 on the CPU."""
        return torch.arange(self.num_clients) + self.first_id if self.ids is None else self.ids

    def positions(self, client_ids: Tensor) -> Tensor:
        """Positions of clients [C] in this split, [C] int64 on the CPU.

        Raises:
            KeyError: if the split has ids and one is not among them.
        """
        client_ids = client_ids.cpu()
        if self.ids is None:
            return client_ids - self.first_id
        found = torch.searchsorted(self.ids, client_ids).clamp(max=len(self.ids) - 1)
        if not torch.equal(self.ids[found], client_ids):
            raise KeyError(f"clients {client_ids.tolist()} are wanted, the split holds {self.ids.tolist()}")
        return found

    def client(self, client_id: int) -> ClientData:
        """Views of one client's rows; unaligned inputs are copied."""
        position = int(self.positions(torch.tensor([client_id])))
        lo, hi = int(self.offsets[position]), int(self.offsets[position + 1])
        mask = torch.ones(hi - lo, device=self.x.device)
        x = aligned(self.x[lo:hi])
        own_id = torch.full((), client_id, device=self.x.device)  # a copy to a device would synchronise
        return ClientData(x, self.y[lo:hi], None, mask, own_id)

    def select(self, client_ids: Tensor) -> Split:
        """A split that contains at least the samples of these clients [C]; here the split itself."""
        return self

    def flattened(self) -> Split:
        """The same samples with labels [n, H, W] as [n, H·W]."""
        return Split(self.x, self.y.flatten(1), self.offsets, self.first_id, self.ids)

    def every_other(self, first: int) -> Split:
        """Every second sample of each client, beginning with its sample 0 or 1."""
        places = torch.arange(self.num_samples) - self.offsets[:-1].repeat_interleave(self.sizes)
        rows = (places % 2 == first).nonzero()[:, 0].to(self.x.device)
        sizes = (self.sizes + 1 - first) // 2
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return Split(self.x[rows], self.y[rows], offsets, self.first_id, self.ids)

    def subset(self, positions: Tensor) -> Split:
        """The clients at ascending positions [C], renumbered from 0; only positions with gaps need a copy."""
        sizes = self.sizes[positions]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        first, last = int(positions[0]), int(positions[-1])
        if last - first + 1 == len(positions):
            rows = slice(int(self.offsets[first]), int(self.offsets[last + 1]))
            return Split(self.x[rows], self.y[rows], offsets)
        ranges = [slice(*self.offsets[one : one + 2].tolist()) for one in positions.tolist()]
        x, y = (torch.cat([all_rows[rows] for rows in ranges]) for all_rows in (self.x, self.y))
        return Split(x, y, offsets)

    def to(self, device: torch.device | str, **_: Any) -> Split:
        """The same split on another device, copied at most once."""
        device = torch.device(device)
        if device == self.x.device:
            return self
        if device not in self._resident:
            self._resident[device] = self._copy(device)
        return self._resident[device]

    def _copy(self, device: torch.device) -> Split:
        return Split(self.x.to(device), self.y.to(device), self.offsets, self.first_id, self.ids)


SPLITS = ("train", "val", "test", "calibration")
"""Names of the splits in the order of `Population.splits`."""


class Population(NamedTuple):
    """A set of clients with their splits, which list the same clients in the same order."""

    train: Split
    val: Split
    test: Split
    names: Sequence[str]  # [T] names of the clients in the data set
    groups: Tensor | None = None  # [T] int64 true group, where known
    measured: Tensor | None = None  # ascending positions [E] int64 of the clients that evaluation measures; None: all
    class_names: tuple[str, ...] | None = None  # names of the classes 0 … C − 1; None: their numbers
    normalisation: Any = None  # a `Normalisation` by constants learnt from the training samples
    columns: Any = None  # the `TableColumns` that inputs were made from
    attackers: Tensor | None = None  # [A] int64 ascending, attackers; None: no attack is configured
    learned: tuple[str, ...] = ()  # description of the constants learnt from the training samples
    stored_type: str = ""  # in which inputs were stored, see `Samples`: uint8 is scaled; "": not known
    label_scale: tuple[float, float] | None = None  # mean and deviation that standardise labels; None: not standardised
    inputs: Any = None  # the `NamedInputs` that each sample concatenates; None: a single input
    rows: tuple[Tensor, ...] | None = None  # [n] of each split, position of each sample in the table or in `files`
    files: Any = None  # [N] array of texts, paths of all samples of the data set; None: no files
    calibration: Split | None = None  # for thresholds of prediction sets; None: no samples were set apart

    @property
    def splits(self) -> tuple[Split, ...]:
        """Training, validation and test split, and that of the calibration, if any."""
        return self.train, self.val, self.test, *(() if self.calibration is None else (self.calibration,))

    def with_splits(self, change: Callable[[Split], Split]) -> Population:
        """The clients with each split changed."""
        changed: dict[str, Any] = dict(zip(SPLITS, map(change, self.splits), strict=False))
        return self._replace(**changed)

    def rows_of(self, split: int, positions: Tensor) -> Tensor:
        """`rows` of the clients at these positions [C] in one split."""
        assert self.rows is not None
        offsets, rows = self.splits[split].offsets, self.rows[split]
        return torch.cat([rows[offsets[one] : offsets[one + 1]] for one in positions.tolist()])

    @property
    def num_measured(self) -> int:
        """Number of clients that evaluation measures."""
        return self.train.num_clients if self.measured is None else len(self.measured)

    @property
    def positions(self) -> Tensor:
        """Positions of the clients that evaluation measures, [E] int64."""
        return torch.arange(self.train.num_clients) if self.measured is None else self.measured

    @property
    def honest(self) -> Tensor | None:
        """Mask of evaluated clients that do not attack, [E] bool; None: no attack is configured."""
        if self.attackers is None:
            return None
        every = torch.ones(self.train.num_clients, dtype=torch.bool).index_fill(0, self.attackers, False)
        return every if self.measured is None else every[self.measured]


class ServingBlock(NamedTuple):
    """A block of clients to serve and measure."""

    client_ids: Tensor  # [C] int64
    rows: Tensor  # [C] int64, their positions among the measured clients
    data: Split  # samples to measure on
    train: Split  # samples to adapt on
    calibration: Split | None = None  # samples for thresholds of prediction sets


class ClientBlock(NamedTuple):
    """The unit of work of a client trainer: some clients of one phase on one rank, longest first."""

    phase: Phase  # with `client_ids` of this block only, [C]
    multiplicity: Tensor  # [C] float64, draws of each client; 0 for a placeholder, which only gives shapes
    data: Split
    slices: tuple[Tensor, ...] = ()  # ids of each rank in this phase, in the order of its blocks
    ends_phase: bool = True  # the last block of its phase on this rank
    ends_round: bool = True  # the last block of the round

    @property
    def is_placeholder(self) -> bool:
        """Whether its only client is a placeholder, of which only the shapes of the message are used."""
        return not bool(self.multiplicity.any())

    def to(self, device: torch.device) -> ClientBlock:
        """The block with its tensors on another device."""
        phase = self.phase._replace(client_ids=self.phase.client_ids.to(device))
        return self._replace(phase=phase, multiplicity=self.multiplicity.to(device), data=self.data.to(device))
