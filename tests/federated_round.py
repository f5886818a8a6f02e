"""Rounds of an algorithm without Lightning, and the small clients that tests run them on.

`run_rounds` follows the contract of the real loop (start, phases, client trainer, reduction, server step) in plain
code, so that a test of numbers depends on nothing else.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.algorithms import Algorithm
from lit_fed.clients import ClientTrainer, PredictJob, SequentialTrainer, TrainJob, evaluate
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.plan import make_plan
from lit_fed.core.reduce import Accumulator
from lit_fed.core.targets import Binary, Multiclass, Regression, Sequences
from lit_fed.core.task import Task
from lit_fed.core.types import ClientBlock, LocalWork, Phase, Split, Tree
from lit_fed.models import Linear, Network

BINARY = Binary()
MULTICLASS = Multiclass(3)
REGRESSION = Regression()
POSITIONS = Sequences(3)


class Scale(Network):
    """One parameter without bias, from 0: a sample (√a, √a·c) has the loss ½a(w − c)²."""

    def __init__(self, input_shape: tuple[int, ...] = (1,), num_outputs: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Tagger(Network):
    """Sequence labels: outputs [B, L, K] of tokens [B, L]."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(x)))


def make_clients(sizes, num_features=4, target=BINARY, seed=0, dtype=torch.float64, first_id=0) -> Split:
    """Clients with random samples, each with a model of its own behind the labels."""
    rng = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    x = torch.randn(sum(sizes), num_features, generator=rng, dtype=torch.float64).to(dtype)
    true = torch.randn(len(sizes), num_features, target.num_outputs, generator=rng, dtype=torch.float64)
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    scores = (x.double().unsqueeze(1) @ true[owner]).squeeze(1)
    scores = scores + 0.5 * torch.randn(scores.shape, generator=rng, dtype=torch.float64)
    if target.kind == "regression":
        return Split(x, scores[:, 0].to(dtype), offsets, first_id)
    y = (scores[:, 0] > 0).long() if target.kind == "binary" else scores.argmax(1)
    return Split(x, y, offsets, first_id)


def make_parties(table: Split, num_parties: int | None = None) -> Split:
    """All samples of a split at each party, which sees the others' features as 0; as many parties as clients."""
    num_parties = num_parties or table.num_clients
    blocks = torch.arange(table.x.shape[1]).tensor_split(num_parties)
    x = [table.x * torch.zeros_like(table.x[0]).index_fill(0, block, 1) for block in blocks]
    return Split(torch.cat(x), table.y.repeat(num_parties), torch.arange(num_parties + 1) * len(table.y))


def make_task(target=BINARY, num_features=4, network=Linear, dtype=torch.float64, **fields) -> Task:
    """A task on the samples of `make_clients`."""
    return Task.create(lambda: network((num_features,), target.num_outputs), target, dtype=dtype, **fields)


def make_context(task=None, solver=None, phase="train", **fields) -> Context:
    """A context of ten clients with 100 samples in all."""
    solver = solver or LocalSolver()
    defaults = {"lr": solver.lr_in(phase, 0, 1), "round_idx": 0, "num_clients": 10, "total_samples": 100, "seed": 0}
    return Context(task or make_task(), solver, phase=phase, **(defaults | fields))


def quadratics(curvatures, centres) -> Split:
    """Clients with one sample and the losses ½a(w − c)² for a network `Scale`."""
    roots = torch.tensor(curvatures, dtype=torch.float64).sqrt()
    y = roots * torch.tensor(centres, dtype=torch.float64)
    return Split(roots[:, None], y, torch.arange(len(roots) + 1))


def perturbed(value: Tree, scale=0.1, seed=0) -> Tree:
    """The tree with noise on its floating-point leaves."""
    rng = torch.Generator().manual_seed(seed)
    noise = lambda leaf: scale * torch.randn(leaf.shape, generator=rng, dtype=torch.float64).to(leaf.dtype)  # noqa: E731
    return tree.map_leaves(lambda leaf: leaf + noise(leaf) if leaf.is_floating_point() else leaf, value)


@dataclass
class Federation:
    """Server and clients of a run, on the device of the samples; `round` advances them by one round."""

    algorithm: Algorithm
    train: Split
    task: Task = field(default_factory=make_task)
    solver: LocalSolver = field(default_factory=LocalSolver)
    trainer: ClientTrainer = field(default_factory=SequentialTrainer)
    batch_size: int = 4
    num_rounds: int = 1
    seed: int = 0
    clients_per_block: int | None = None  # None: all in one block
    aggregation: str = "renormalised"
    weighting: str | None = None  # None: the algorithm's
    groups: Tensor | None = None
    round_idx: int = 0
    shared: Tree = None
    states: Tree = None  # leaves [T, ...]
    optimizers: Tree = None  # leaves [T, ...]; None unless the solver persists them
    metrics: dict[str, float] = field(default_factory=dict)  # of the last phase that had them
    bits: Tensor | None = None  # up and down in the last round, [2]

    def __post_init__(self) -> None:
        self.weighting = self.weighting or self.algorithm.default_weighting
        self.task = replace(self.task, frozen=self.on_device(self.task.frozen))
        ctx = self.context("init")
        if self.shared is None:
            self.shared = self.on_device(self.algorithm.shared_init(ctx))
        clients = [self.train.client(one) for one in range(self.train.num_clients)]
        each = [self.algorithm.state_init(ctx, self.shared, client) for client in clients]
        self.states = self.on_device(tree.stack(each))
        if self.solver.persist_optimizer:
            losses = SequentialTrainer().losses(ctx, self.shared, self.algorithm, clients[0])
            work = self.algorithm.client_init(ctx, self.shared, tree.index(self.states, 0), clients[0], losses)
            self.optimizers = tree.stack([work.optimizer] * len(each))

    def on_device(self, value: Tree) -> Tree:
        """The tree where the samples are."""
        return tree.map_leaves(lambda leaf: leaf.to(self.train.x.device), value)

    def context(self, phase: str, present: Tensor | None = None) -> Context:
        """What every client of a phase knows."""
        lr = self.on_device(self.solver.lr_in(phase, self.round_idx, self.num_rounds))
        return Context(
            self.task, self.solver, lr, self.round_idx, phase, self.train.num_clients, len(self.train.y), self.seed,
            self.groups, self.aggregation, self.weighting, self.num_rounds, int(self.train.sizes.max()), present,
            batch_size=self.batch_size,
        )  # fmt: skip

    def round(self, client_ids=None) -> None:
        """One round with these clients (default: all); an id that stands twice counts twice."""
        ids = torch.arange(self.train.num_clients) if client_ids is None else torch.as_tensor(client_ids)
        self.bits = torch.zeros(2, dtype=torch.float64)
        for phase in self.algorithm.phases(self.context("plan"), ids):
            self._phase(phase)
        self.round_idx += 1

    def _phase(self, phase: Phase) -> None:
        ids, counts = phase.client_ids.unique(return_counts=True)
        order = torch.argsort(self.train.sizes[ids], descending=True, stable=True)
        accumulator = Accumulator(self.algorithm.reduce)
        present = torch.zeros(self.train.num_clients, dtype=torch.bool).index_fill_(0, ids, True)
        ctx, states, optimizers = self.context(phase.name, self.on_device(present)), self.states, self.optimizers
        for rows in order.split(self.clients_per_block or len(ids)):
            chosen, multiplicity = self.on_device((ids[rows], counts[rows].double()))
            block = ClientBlock(phase._replace(client_ids=chosen), multiplicity, self.train)
            for trained in self.trainer.train(self.job(ctx, block)):
                accumulator.add(trained.result.message, block.multiplicity[trained.rows], trained.result.metrics)
                where = block.phase.client_ids[trained.rows]
                states = put(states, where, trained.result.state)
                optimizers = put(optimizers, where, trained.optimizers)
        reduced, bits, means = accumulator.reduce(order, [len(order)])
        self.metrics = self.metrics | dict(zip(trained.result.metrics, means.tolist(), strict=True))
        self.bits = self.bits + bits
        self.shared = self.algorithm.server_step(ctx, self.shared, reduced, ids)
        self.states, self.optimizers = states, optimizers

    def job(self, ctx: Context, block: ClientBlock) -> TrainJob:
        """The job of a block of seen clients."""
        ids = block.phase.client_ids
        states, optimizers = tree.index(self.states, ids), tree.index(self.optimizers, ids)
        return TrainJob(self.algorithm, ctx, self.shared, block, states, optimizers, self.batch_size)

    def serve(self, train: Split | None = None, *, seen: bool = True) -> Tree:
        """States [C, ...] that all clients of a split are served with, adapted if the algorithm asks for it."""
        train, ctx = train or self.train, self.context("adapt")
        ids = torch.arange(train.num_clients) + train.first_id
        fresh = (self.algorithm.state_init(ctx, self.shared, train.client(one)) for one in ids.tolist())
        states = self.states if seen else self.on_device(tree.stack(list(fresh)))
        work = self.algorithm.adapt_work(ctx, seen)
        if work is None:
            return states
        order = torch.argsort(train.sizes, descending=True, stable=True)
        chosen, multiplicity = self.on_device((ids[order], torch.ones(len(ids), dtype=torch.float64)))
        block = ClientBlock(Phase("adapt", chosen, work), multiplicity, train)
        job = TrainJob(self.algorithm, ctx, self.shared, block, tree.index(states, order), None, self.batch_size)
        adapted = [trained.result.state for trained in self.trainer.train(job)]
        return tree.index(tree.map_leaves(lambda *parts: torch.cat(parts), *adapted), torch.argsort(order))

    def predictions(self, data: Split | None = None, states: Tree = None, *, seen: bool = True) -> list[Tensor]:
        """`log_prob` of every sample, client by client: [N, C]."""
        job = self.predict_job(data, states, seen=seen)
        found: dict[int, list[Tensor]] = {row: [] for row in range(len(job.client_ids))}
        for served in self.trainer.predict(job):
            for row, one, mask in zip(served.rows.tolist(), served.prediction, served.mask, strict=True):
                found[row].append(one[mask > 0])
        return [torch.cat(parts) if parts else torch.empty(0) for parts in found.values()]

    def predict_job(self, data: Split | None = None, states: Tree = None, *, seen: bool = True) -> PredictJob:
        """Serving all clients of a split."""
        data = data or self.train
        states = self.serve(None if seen else data, seen=seen) if states is None else states
        ids = self.on_device(torch.arange(data.num_clients) + data.first_id)
        return PredictJob(self.algorithm, self.context("evaluate"), self.shared, data, ids, states)

    def evaluate(self, data: Split | None = None, **options: Any) -> Tensor:
        """Number, loss and hits of each client, [C, 3]."""
        return evaluate(self.trainer, self.predict_job(data, **options))

    @property
    def weights(self) -> Tensor:
        """The shared models' parameters as rows [M, d]."""
        return flat(self.shared.models.parameters)


def run_rounds(algorithm, trainer=None, train=None, *, rounds=3, cohorts=None, **fields) -> Federation:
    """Several rounds, each with all clients or with those of `cohorts`; `fields` as of `Federation`.

    Args:
        algorithm: the algorithm.
        trainer: a client trainer; None: the sequential one.
        train: training samples of all clients.
        rounds: number of rounds.
        cohorts: ids of the clients of each round; None: all in each.
        fields: of `Federation`.
    """
    fields = {"trainer": trainer or SequentialTrainer(), "num_rounds": max(rounds, 1)} | fields
    federation = Federation(algorithm, train, **fields)
    for round_idx in range(rounds):
        federation.round(None if cohorts is None else cohorts[round_idx])
    return federation


def put(table: Tree, rows: Tensor, values: Tree) -> Tree:
    """A copy of the table with new rows."""
    if table is None:
        return None
    return tree.map_leaves(lambda leaf, new: leaf.index_copy(0, rows, new), table, values)


def flat(leaves: Tree) -> Tensor:
    """All leaves as rows: [C, total]."""
    parts = [leaf.reshape(len(leaf), -1) for leaf in tree.leaves(leaves)]
    return torch.cat(parts, dim=1) if parts else torch.zeros(0, 0)


def distance(a: Tree, b: Tree) -> float:
    """Largest difference between two trees; infinite where one has a NaN."""
    pairs = list(zip(tree.leaves(a), tree.leaves(b), strict=True))
    assert all(x.shape == y.shape for x, y in pairs), [(x.shape, y.shape) for x, y in pairs]
    gaps = [float((x.double() - y.double()).abs().max()) for x, y in pairs if x.numel()]
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=0.0)


def same_bits(a: Tree, b: Tree) -> bool:
    """Whether two trees agree bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def as_arrays(split: Split) -> list[tuple]:
    """(x, y) of every client as NumPy arrays, for the references."""
    clients = (split.client(one + split.first_id) for one in range(split.num_clients))
    return [(client.x.numpy(), client.y.double().numpy()) for client in clients]


def batch_orders(federation: Federation, phase: str = "train", work: LocalWork | None = None, train=None) -> list[list]:
    """The batches of every client in the coming round: arrays [B], with several streams [K, B]."""
    train, work = train or federation.train, work or federation.solver.work
    plan = make_plan(
        train.sizes.tolist(), [one + train.first_id for one in range(train.num_clients)], work,
        batch_size=federation.batch_size, seed=federation.seed, round_idx=federation.round_idx, phase=phase,
    )  # fmt: skip
    index, counts = plan.index.numpy(), plan.counts.numpy()
    streams = slice(None) if work.batches_per_step > 1 else 0
    return [
        [steps[step, streams, :count] for step, count in enumerate(own) if count]
        for steps, own in zip(index, counts, strict=True)
    ]
