"""Rounds without Lightning, and the small clients that tests run them on."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_fed import rounds, serving
from lit_fed.clients import PredictJob, SequentialTrainer, TrainJob
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.plan import make_plan
from lit_fed.core.seeds import Secret
from lit_fed.core.targets import Binary, Multiclass, Regression, Sequences
from lit_fed.core.task import Task
from lit_fed.core.types import ClientBlock, LocalWork, Split, Tree
from lit_fed.data.facts import TrainingFacts
from lit_fed.models import MLP, Linear, Network
from lit_fed.serving import client_scores

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


class Plain(Network):
    """The arithmetic and names of Linear, without its closed form."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(input_shape), num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


class NormalisedLinear(Network):
    """A linear model of normalised features."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(*input_shape), nn.Linear(*input_shape, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


class Tagger(Network):
    """Sequence labels: outputs [B, L, K] of tokens [B, L]."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(x)))


def small_mlp(shape: tuple[int, ...], num_outputs: int) -> MLP:
    """One hidden layer of three."""
    return MLP(shape, num_outputs, (3,))


def make_clients(sizes, num_features=4, target=BINARY, seed=0, dtype=torch.float64, first_id=0) -> Split:
    """Clients with random samples, each with a model of its own behind the labels."""
    rng = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    x = torch.randn(sum(sizes), num_features, generator=rng, dtype=torch.float64).to(dtype)
    true = torch.randn(len(sizes), num_features, target.num_outputs, generator=rng, dtype=torch.float64)
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    scores = (x.double().unsqueeze(1) @ true[owner]).squeeze(1)
    scores = scores + 0.5 * torch.randn(scores.shape, generator=rng, dtype=torch.float64)
    if target.vectors:
        return Split(x, scores.to(dtype) if target.continuous else (scores > 0).long(), offsets, first_id)
    if target.kind == "regression":
        return Split(x, scores[:, 0].to(dtype), offsets, first_id)
    y = (scores[:, 0] > 0).long() if target.kind == "binary" else scores.argmax(1)
    return Split(x, y, offsets, first_id)


def reordered(split: Split, order: list[int] | Tensor) -> Split:
    """The same clients under other numbers: the new client k is the old client order[k]."""
    order = torch.as_tensor(order)
    clients = [split.client(one) for one in order.tolist()]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), split.sizes[order].cumsum(0)])
    return Split(torch.cat([one.x for one in clients]), torch.cat([one.y for one in clients]), offsets)


def make_parties(table: Split, num_parties: int | None = None) -> Split:
    """All samples of a split at each party, which sees the others' features as 0; as many parties as clients."""
    num_parties = num_parties or table.num_clients
    blocks = torch.arange(table.x.shape[1]).tensor_split(num_parties)
    x = [table.x * torch.zeros_like(table.x[0]).index_fill(0, block, 1) for block in blocks]
    return Split(torch.cat(x), torch.cat([table.y] * num_parties), torch.arange(num_parties + 1) * len(table.y))


def make_task(target=BINARY, num_features=4, network=Linear, dtype=torch.float64, **fields) -> Task:
    """A task on the samples of `make_clients`."""
    return Task.create(lambda: network((num_features,), target.num_outputs), target, dtype=dtype, **fields)


def make_context(task=None, solver=None, phase="train", **fields) -> Context:
    """A context of ten clients with 100 samples in all."""
    solver = solver or LocalSolver()
    defaults = {"lr": solver.lr_in(phase, 0, 1), "round_idx": 0, "num_clients": 10, "total_samples": 100, "seed": 0}
    defaults |= {"num_rounds": 1, "most_samples": 0, "groups": None, "weighting": "samples", "batch_size": 0}
    defaults |= {"secret": Secret.of_seed(0)}
    return Context(task=task or make_task(), solver=solver, phase=phase, **(defaults | fields))


def facts(target=BINARY, input_shape=(4,), *, num_clients=3, total_samples=9, input_type=torch.float32, label_shape=()):
    """What a module is built from."""
    return TrainingFacts(
        input_shape=input_shape, input_type=str(input_type).removeprefix("torch."), label_shape=label_shape,
        target=target, num_clients=num_clients, total_samples=total_samples, most_samples=total_samples, seed=0,
        batch_size=128, clients_per_block=1024, normalisation=None, num_rounds=1, groups=None, weighting="samples",
    )  # fmt: skip


def quadratics(curvatures, centres) -> Split:
    """Clients with one sample and the losses ½a(w − c)² for a network `Scale`."""
    roots = torch.tensor(curvatures, dtype=torch.float64).sqrt()
    y = roots * torch.tensor(centres, dtype=torch.float64)
    return Split(roots[:, None], y, torch.arange(len(roots) + 1))


def two_quadratics(**fields: Any) -> dict[str, Any]:
    """½w² and ½·3(w − 4)², from 0: the fields `train` and `task` of a federation, and others."""
    task = make_task(REGRESSION, num_features=1, network=Scale)
    return {"train": quadratics([1.0, 3.0], [0.0, 4.0]), "task": task} | fields


def perturbed(value: Tree, scale=0.1, seed=0) -> Tree:
    """The tree with noise on its floating-point leaves."""
    rng = torch.Generator().manual_seed(seed)
    noise = lambda leaf: scale * torch.randn(leaf.shape, generator=rng, dtype=torch.float64).to(leaf.dtype)  # noqa: E731
    return tree.map_leaves(lambda leaf: leaf + noise(leaf) if leaf.is_floating_point() else leaf, value)


class Federation(rounds.FederatedRounds):
    """A federation in memory, with what tests look at; `round` advances it by one round.

    Args:
        algorithm: the algorithm.
        train: training samples of all clients.
        trainer: a client trainer; None: the sequential one.
        clients_per_block: None: all in one block.
        shared: the shared state to go on from; None: the initial one.
        terms: other fields of the context.
    """

    def __init__(
        self, algorithm, train, task=None, solver=None, trainer=None, clients_per_block=None, shared=None, **terms: Any
    ) -> None:
        round_idx = terms.pop("round_idx", 0)
        started = rounds.start(
            algorithm,
            task or make_task(),
            train,
            solver=solver or LocalSolver(),
            **{"batch_size": 4} | {name: value for name, value in terms.items() if value is not None},
        )
        super().__init__(algorithm, started.terms, started.server, lambda device: self.trainer)
        self.store, self.train = started.store, train
        self.trainer, self.clients_per_block = trainer or SequentialTrainer(), clients_per_block or train.num_clients
        self.server.rounds_done = round_idx
        self.server.shared = self.server.shared if shared is None else shared
        self.metrics: dict[str, float] = {}  # the latest of each name
        self.bits: Tensor | None = None  # up and down in the last round, [2]

    client_trainer = property(lambda self: self.trainer)  # tests change it on the way
    task = property(lambda self: self.terms.task)
    seed = property(lambda self: self.terms.seed)
    batch_size = property(lambda self: self.terms.batch_size)
    weighting = property(lambda self: self.terms.weighting)

    @property
    def shared(self) -> Tree:
        return super().shared

    @shared.setter
    def shared(self, value: Tree) -> None:
        self.server.shared = value

    @property
    def round_idx(self) -> int:
        return self.server.rounds_done

    @round_idx.setter
    def round_idx(self, value: int) -> None:
        self.server.rounds_done = value

    @property
    def solver(self) -> LocalSolver:
        return self.terms.solver

    @solver.setter
    def solver(self, value: LocalSolver) -> None:
        self.terms = self.terms._replace(solver=value)

    @property
    def num_rounds(self) -> int:
        return self.terms.num_rounds

    @num_rounds.setter
    def num_rounds(self, value: int) -> None:
        self.terms = self.terms._replace(num_rounds=value)

    @property
    def states(self) -> Tree:
        """A copy of what all clients keep, leaves [T, ...]."""
        return tree.map_leaves(torch.clone, self.store.table["state"])

    @states.setter
    def states(self, value: Tree) -> None:
        ids = torch.arange(self.terms.num_clients, device=self.server.device)
        self.store.stage(ids, self.store.table | {"state": value})
        self.store.commit()

    @property
    def optimizers(self) -> Tree:
        """A copy of the optimizers' states, leaves [T, ...]; None unless the solver persists them."""
        return tree.map_leaves(torch.clone, self.store.table.get("optimizer"))

    def round(self, client_ids=None) -> None:
        """One round with these clients (default: all); an id that stands twice counts twice."""
        record = super().round(self.train, client_ids, self.clients_per_block)
        self.metrics = self.metrics | record.metrics
        self.bits = torch.tensor([record.bits_up, record.bits_down], dtype=torch.float64)

    def job(self, ctx: Context, block: ClientBlock) -> TrainJob:
        """The job of a block of seen clients."""
        kept = self.store.gather(block.phase.client_ids)
        return TrainJob(self.algorithm, ctx, self.shared, block, kept["state"], kept.get("optimizer"))

    def serve(self, train: Split | None = None, *, seen: bool = True) -> Tree:
        """States [C, ...] that all clients of a split are served with, adapted if the algorithm asks for it."""
        train = train or self.train
        return serving.serve(self, self._ids(train), train, seen=seen)

    def _ids(self, data: Split) -> Tensor:
        return (torch.arange(data.num_clients) + data.first_id).to(self.server.device)

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
        return serving.predict_job(self, self._ids(data), data, states)

    def evaluate(self, data: Split | None = None, **options: Any) -> Tensor:
        """Number, loss and hits of each client, [C, 3]."""
        return client_scores(self.trainer, self.predict_job(data, **options)).rows()

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


def least_squares(train: Split, weights: Iterable[float]) -> np.ndarray:
    """argmin_θ Σ_i weights_i·f_i(θ) of regressions with bias."""
    H, g = 0, 0
    for (x, y), weight in zip(as_arrays(train), weights, strict=True):
        features = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        H, g = H + weight * features.T @ features / len(y), g + weight * features.T @ y / len(y)
    return np.linalg.solve(H, g)


def batch_orders(
    federation: Federation, phase: str = "train", work: LocalWork | None = None, train=None, stage=""
) -> list[list]:  # fmt: skip
    """The batches of every client in the coming round: arrays [B], with several streams [K, B]."""
    train, work = train or federation.train, work or federation.solver.work
    plan = make_plan(
        train.sizes.tolist(), [one + train.first_id for one in range(train.num_clients)], work,
        batch_size=federation.batch_size, seed=federation.terms.seed_of_batches(work),
        round_idx=federation.round_idx, phase=phase, stage=stage,
    )  # fmt: skip
    index, counts = plan.index.numpy(), plan.counts.numpy()
    streams = slice(None) if work.batches_per_step > 1 else 0
    return [
        [steps[step, streams, :count] for step, count in enumerate(own) if count]
        for steps, own in zip(index, counts, strict=True)
    ]
