"""Serve clients: their states, predictions and scores, in plain PyTorch.

Example:
    FedEM on two clients whose labels contradict each other.

    >>> from lit_fed import Binary, FedEM, Linear, LocalSolver, Task, rounds, serving
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> train = Split.of([(x, (x[:, 0] > 0).long()), (x, (x[:, 0] < 0).long())])
    >>> task = Task.create(lambda: Linear((1,), 1), Binary())
    >>> federation = rounds.start(FedEM(num_components=2), task, train, solver=LocalSolver(lr=2.0))
    >>> losses = [federation.round(train).metrics["loss"] for _ in range(20)]
    >>> scores = serving.evaluate(federation, train)
    >>> scores.samples.tolist(), scores.hits.tolist()
    ([8.0, 8.0], [8.0, 8.0])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from lit_fed.clients.base import ClientTrainer, PredictJob, Trained, TrainJob, plainly
from lit_fed.core import tree
from lit_fed.core.blocks import serving_blocks
from lit_fed.core.conformal import nonconformity, threshold
from lit_fed.core.context import Context
from lit_fed.core.mixtures.e_step import expectation, num_factors
from lit_fed.core.reduce import all_reduce
from lit_fed.core.seeds import generator
from lit_fed.core.served_models import served_models
from lit_fed.core.targets import Target
from lit_fed.core.task import Task
from lit_fed.core.types import (
    ClientBlock,
    ClientData,
    Leaves,
    LocalWork,
    Phase,
    PhaseTraffic,
    ServingBlock,
    Split,
    Tree,
)
from lit_fed.errors import ConfigError
from lit_fed.logged import logged_by_step, step_of
from lit_fed.metrics.chosen import Add, ChosenMetrics
from lit_fed.metrics.pooled import Pool
from lit_fed.metrics.scores import ClientScores
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.base import innermost

__all__ = [
    "BlockPredictions", "MeasuresElsewhere", "client_scores", "evaluate", "logged_names", "measure", "pieces",
    "predict_block", "predict_job", "prediction_by_state", "prediction_of", "selected", "serve",
]  # fmt: skip

SERVED_BYTES = 2**28
"""Memory limit of the client models adapted at once."""

FEW = 8
"""Samples on which a module's steps are tried."""

REPORT_BITS = 64
"""Bits of a reported loss."""


def serve(federation: FederatedRounds, client_ids: Tensor, train: Split, *, seen: bool) -> Tree:
    """States [C, ...] to serve clients with: stored or fresh, adapted if the algorithm does so, then fine-tuned.

    Args:
        federation: the algorithm with its server and its clients.
        client_ids: the clients, [C].
        train: samples to adapt on.
        seen: whether they took part in training, so that the store has their states.
    """
    algorithm, shared, ctx = federation.algorithm, federation.shared, federation.context("adapt")
    if seen or not len(client_ids):  # a rank without clients needs only the shapes
        states = federation.store.gather(client_ids)["state"]
    else:
        fresh = [algorithm.state_init(ctx, shared, train.client(one)) for one in client_ids.tolist()]
        states = tree.map_leaves(lambda leaf: leaf.to(federation.server.device), tree.stack(fresh))
    if not len(client_ids):
        return states
    train = train.select(client_ids)
    bare = train.sizes[train.positions(client_ids)] == 0
    if not seen and bare.any() and algorithm.mean_mixture and not algorithm.hides_cohort:  # the mean is no part of ε
        states = _with_mixture(states, bare.to(federation.server.device), federation.mean_mixture)
    for own, work in ((ctx, algorithm.adapt_work(ctx, seen)), (ctx._replace(tunes=True), algorithm.tune_work)):
        if work is not None:
            states = _adapted(federation, own, work, client_ids, train, states)
    return states


def _with_mixture(state: Tree, chosen: Tensor, mixture: Tensor | None) -> Tree:
    """States [C, ...] of an algorithm, perhaps inside those of wrappers, of which some have these mixture weights."""
    if mixture is None:
        return state
    if "mixture" in state._fields:
        return state._replace(mixture=torch.where(chosen[:, None], mixture, state.mixture))
    return state._replace(inner=_with_mixture(state.inner, chosen, mixture))


def _adapted(
    federation: FederatedRounds, ctx: Context, work: LocalWork, client_ids: Tensor, train: Split, states: Tree
) -> Tree:
    """States [C, ...] of clients after local work in the phase `adapt`."""
    order = torch.argsort(train.sizes[train.positions(client_ids)], descending=True, stable=True)
    multiplicity = torch.ones(len(order), dtype=torch.float64, device=federation.server.device)
    block = ClientBlock(Phase("adapt", client_ids[order], work), multiplicity, train)
    job = TrainJob(federation.algorithm, ctx, federation.shared, block, tree.index(states, order), None)
    adapted = [done.result.state for done in federation.client_trainer.train(job) if isinstance(done, Trained)]
    rows = tree.map_leaves(lambda *parts: torch.cat(parts), *adapted)
    return tree.index(rows, torch.argsort(order))


def predict_job(federation: FederatedRounds, client_ids: Tensor, data: Split, states: Tree) -> PredictJob:
    """The prediction of samples of clients [C] with these states [C, ...]."""
    ctx, data = federation.context("evaluate"), data.select(client_ids)
    return PredictJob(federation.algorithm, ctx, federation.shared, data, client_ids, states)


def evaluate(
    federation: FederatedRounds, data: Split, train: Split | None = None, *, seen: bool = True
) -> ClientScores:
    """Serve all clients of a split, score the predictions of their samples; without mixture and chosen metrics.

    Args:
        federation: the algorithm with its server and its clients.
        data: samples to predict.
        train: samples to adapt on; None: the same samples.
        seen: whether they took part in training.
    """
    device = federation.server.device
    data, train = data.to(device), (train or data).to(device)
    client_ids = data.client_ids.to(device)
    states = serve(federation, client_ids, train, seen=seen)
    return client_scores(federation.client_trainer, predict_job(federation, client_ids, data, states))


def client_scores(client_trainer: ClientTrainer, job: PredictJob, *watchers: Callable[..., None]) -> ClientScores:
    """Sums over each client's samples, [C]; without mixture and chosen metrics.

    Args:
        client_trainer: predicts the samples.
        job: the clients and their samples.
        watchers: get the fields of each `Served`, such as `ClientMeter.add`.
    """
    sums = torch.zeros(len(job.client_ids), 3, dtype=torch.float64, device=job.data.x.device)
    for served in client_trainer.predict(job):
        loss, hit = job.ctx.task.score(served.prediction, served.y)
        mask = job.ctx.task.target.counted(served.y, served.mask)
        parts = torch.stack([mask, loss * mask, hit * mask])
        sums[served.rows] += parts.sum(2, dtype=torch.float64).T
        for watch in watchers:
            watch(*served)
    return ClientScores.of_rows(sums)


@runtime_checkable
class MeasuresElsewhere(Protocol):
    """A client trainer that serves clients where their samples are and receives only sums."""

    def measure(
        self, block: ServingBlock, *, seen: bool, chosen: ChosenMetrics | None, sets: bool = False
    ) -> Iterator[tuple[Tensor, ClientScores]]:
        """See `lit_fed.serving.measure`; with `sets` coverage and mean size of sets in place of chosen metrics."""

    def keep(self) -> None:
        """Let the machines of the clients keep what serving these needs, when a fit is over."""


def measure(
    federation: FederatedRounds, block: ServingBlock, *, seen: bool, chosen: ChosenMetrics | None = None,
    pool: Pool | None = None, step: str | None = None,
) -> Iterator[tuple[Tensor, ClientScores]]:  # fmt: skip
    """Serve a block of clients, as many at a time as memory allows, and predict their samples.

    Args:
        federation: the algorithm with its server and its clients.
        block: the clients.
        seen: whether they took part in training.
        chosen: K additional metrics of the same predictions.
        pool: gets the predictions that these metrics see (not from `MeasuresElsewhere`); None: no collection.
        step: the step of a module of its own whose logged values are metrics, too; None: none.

    Yields:
        Positions of the clients among those evaluated [C], and their results, without mixture weights from
        `MeasuresElsewhere`.
    """
    trainer = federation.client_trainer
    if isinstance(trainer, MeasuresElsewhere):
        yield from trainer.measure(block, seen=seen, chosen=chosen)
        return
    for part in pieces(federation, block):
        states = serve(federation, part.client_ids, block.train, seen=seen)
        job = predict_job(federation, part.client_ids, block.data, states)
        add = None if pool is None else partial(_add_to, pool, part.rows.tolist())
        scores = _all_scores(federation, job, chosen, add)
        if chosen is not None and chosen.logged:
            scores = scores._replace(metrics=scores.metrics | _logged(job, step, chosen.logged))
        yield part.rows, scores


def pieces(federation: FederatedRounds, block: ServingBlock) -> Iterator[ServingBlock]:
    """Parts of a block with as many clients as memory allows to serve at once; one part without clients."""
    shared, template = federation.shared, federation.store.template["state"]
    each = (sum(map(tree.bits, tree.models(shared))) + tree.bits(template)) // 8  # an adapted state may be whole models
    at_once = max(1, SERVED_BYTES // max(each, 1))
    for lo in range(0, max(len(block.client_ids), 1), at_once):
        some = slice(lo, lo + at_once)
        yield block._replace(client_ids=block.client_ids[some], rows=block.rows[some])


def logged_names(federation: FederatedRounds, train: Split) -> tuple[str, ...]:
    """Names of what the steps of a module of its own log for a client, from a few samples; () without such steps."""
    own = federation.terms.task.own
    steps = [step for split in ("val", "test") if (step := step_of(own, split)) is not None]
    if not steps or not train.num_samples:
        return ()
    one = int(train.sizes.argmax())
    own_data = train.client(one)
    x, y = own_data.all_x[:FEW], own_data.all_y[:FEW]
    ids, few = torch.tensor([one]), Split(x, y, torch.tensor([0, len(y)]), one)
    with plainly():
        job = predict_job(federation, ids, few, serve(federation, ids, few, seen=False))
    return tuple(dict.fromkeys(name for step in steps for name in logged_by_step(job, step, 0)))


def _logged(job: PredictJob, step: str | None, names: Sequence[str]) -> Leaves:
    """What clients log by these names, [C] float64 each; NaN where they do not."""
    found = {} if step is None else logged_by_step(job, step, job.ctx.batch_size)
    unknown = torch.full((len(job.client_ids),), torch.nan, dtype=torch.float64)
    return {name: found.get(name, unknown).to(job.client_ids.device) for name in names}


def _add_to(pool: Pool, places: list[int], row: int, shown: Tensor, labels: Tensor) -> None:
    pool.add(places[row], shown, labels)


def _all_scores(
    federation: FederatedRounds, job: PredictJob, chosen: ChosenMetrics | None, add: Add | None = None,
    *watchers: Callable[..., None],
) -> ClientScores:  # fmt: skip
    """Scores with the served mixture weights and the chosen metrics, whose predictions `add` gets."""
    meter = chosen.meter(len(job.client_ids), add) if chosen else None
    scores = client_scores(federation.client_trainer, job, *([] if meter is None else [meter.add]), *watchers)
    mixture, metrics = getattr(job.states, "mixture", None), {} if meter is None else meter.values()
    scores = scores._replace(metrics={name: values.to(scores.loss) for name, values in metrics.items()})
    return scores if mixture is None else scores._replace(mixture=mixture.to(scores.loss))


class BlockPredictions(NamedTuple):
    """States and predictions of the clients of a block."""

    client_ids: Tensor  # [C] int64
    states: Tree  # leaves [C, ...], on the device
    scores: ClientScores  # on the CPU
    sizes: Tensor  # [C] int64, samples of each client
    labels: Tensor  # [n] or [n, L], client after client
    log_prob: Tensor  # float32 [n, C] or [n, L, C], or for regression the means [n, 1]
    posteriors: Tensor | None = None  # [n, M] responsibilities of the components; None: not asked
    thresholds: Tensor | None = None  # [C] float64 of prediction sets, infinite without enough samples; None: not asked
    owned: Tensor | None = None  # [C] bool, whether a threshold is by the client's own samples

    @property
    def thresholds_and_owned(self) -> list[tuple[float, bool]]:
        """The threshold of each client, and whether it is by the client's own samples; [] if not asked."""
        if self.thresholds is None or self.owned is None:
            return []
        return list(zip(self.thresholds.tolist(), self.owned.tolist(), strict=True))

    def conformal_scores(self, target: Target) -> Sequence[Tensor]:
        """The score of each sample, [n_c] float64 of each client; see `lit_fed.core.conformal`."""
        if not len(self.labels):
            return [torch.zeros(0, dtype=torch.float64)] * len(self.client_ids)
        found = nonconformity(target, self.log_prob, self.labels)
        return found.split(self.sizes.tolist())  # type: ignore[no-any-return] # as torch has it


def predict_block(
    federation: FederatedRounds, block: ServingBlock, *, seen: bool, chosen: ChosenMetrics | None = None,
    responsibilities: bool = False, coverage: float | None = None,
) -> BlockPredictions:  # fmt: skip
    """Serve at least one client and predict all samples; predictions are moved to the CPU as they arrive.

    With a coverage, each client's calibration samples give its threshold, see `lit_fed.core.conformal`.
    """
    states = serve(federation, block.client_ids, block.train, seen=seen)
    job = predict_job(federation, block.client_ids, block.data, states)
    found = _predicted(federation, job, chosen)
    if responsibilities:
        rows = [
            posteriors_of(federation, tree.index(job.states, row), job.data.client(one))
            for row, one in enumerate(job.client_ids.tolist())
        ]
        found = found._replace(posteriors=torch.cat(rows))
    if coverage is None:
        return found
    thresholds = torch.full((len(found.client_ids),), math.inf, dtype=torch.float64)
    if block.calibration is not None:
        held = _predicted(federation, predict_job(federation, block.client_ids, block.calibration, states))
        each = [threshold(one, coverage) for one in held.conformal_scores(federation.terms.task.target)]
        thresholds = torch.tensor(each, dtype=torch.float64)
    return found._replace(thresholds=thresholds, owned=~thresholds.isinf())


def _predicted(federation: FederatedRounds, job: PredictJob, chosen: ChosenMetrics | None = None) -> BlockPredictions:
    """The predictions of all samples of a job, on the CPU."""
    labels: list[list[Tensor]] = [[] for _ in range(len(job.client_ids))]
    log_prob: list[list[Tensor]] = [[] for _ in labels]

    def keep(rows: Tensor, prediction: Tensor, y: Tensor, mask: Tensor) -> None:
        y, prediction, mask = y.cpu(), prediction.float().cpu(), mask.cpu() > 0
        for position, client in enumerate(rows.tolist()):
            labels[client].append(y[position, mask[position]])
            log_prob[client].append(prediction[position, mask[position]])

    scores = tree.map_leaves(Tensor.cpu, _all_scores(federation, job, chosen, None, keep))
    sizes = torch.tensor([sum(map(len, parts)) for parts in labels])
    return BlockPredictions(
        job.client_ids.cpu(), job.states, scores, sizes,
        torch.cat([part for parts in labels for part in parts] or [job.data.y[:0].cpu()]),
        torch.cat([part for parts in log_prob for part in parts] or [torch.zeros(0)]),
    )  # fmt: skip


def posteriors_of(federation: FederatedRounds, state: Tree, data: ClientData) -> Tensor:
    """Responsibilities q(m | x, y) of the components that serve a client for its samples, [n, M], on the CPU.

    Raises:
        ConfigError: if the algorithm does not predict by a mixture of models.
    """
    predict, task = prediction_of(federation, state)
    x, y = data.x.cpu(), data.y.cpu()
    data = data._replace(all_x=x, all_y=y, index=None)
    served = served_models(predict, task, x[:1])
    if served is None or len(served.weights) == 1:
        raise ConfigError(
            f"--responsibilities are of the components of a mixture, and {federation.name} predicts by none; leave it "
            "out, or choose FedEM"
        )
    with torch.no_grad():
        losses = task.sample_losses(served.models, data)
    factors = num_factors(task, data, getattr(innermost(federation.algorithm), "position_loss", "mean"))
    return expectation(served.weights, losses, torch.ones(len(y)), factors)[1]


def prediction_of(federation: FederatedRounds, state: Tree) -> tuple[Callable[[Task, Tensor], Tensor], Task]:
    """`log_prob` of a client with this state, as a function of a task and inputs [N, ...], and the task; on the CPU."""
    predict, task = prediction_by_state(federation)
    state = _on_cpu(state)
    return lambda task, x: predict(task, state, x), task


def prediction_by_state(federation: FederatedRounds) -> tuple[Callable[[Task, Tree, Tensor], Tensor], Task]:
    """`log_prob` as a function of a task, a client's state and inputs [N, ...], and the task; on the CPU."""
    algorithm, ctx = federation.algorithm, federation.context("evaluate")
    shared, task = _on_cpu(federation.shared), replace(ctx.task, frozen=_on_cpu(ctx.task.frozen))
    ctx = ctx._replace(lr=ctx.lr.cpu())

    def predict(task: Task, state: Tree, x: Tensor) -> Tensor:
        own = ctx._replace(task=task)
        return algorithm.log_prob(own, shared, state, x, algorithm.shared_outputs(own, shared, x))

    return predict, task


def _on_cpu(values: Tree) -> Tree:
    return tree.map_leaves(lambda leaf: leaf.detach().cpu(), values)


# ---------------------------------------------------------------------- selection of a round's clients
def selected(federation: FederatedRounds, candidates: np.ndarray, train: Split, **division: int) -> np.ndarray:
    """The clients of the coming round, ascending [m]: those that the federation's `selection` chooses by their losses.

    The traffic of the reports counts as the first of the round.

    Args:
        federation: the algorithm with its server and its clients.
        candidates: ascending ids, each once [d]; without a selection all of them take part.
        train: training samples.
        division: as for `serving_blocks`: blocks and ranks.
    """
    selection, terms = federation.selection, federation.terms
    if selection is None:
        return candidates
    ctx, shared, algorithm = federation.context("adapt"), federation.shared, federation.algorithm
    losses = _reported(federation, candidates, train, **division)
    rng = generator(terms.seed, ctx.round_idx, 0, "selection")
    cohort = min(round(terms.sampling_probability * terms.num_clients), len(candidates))
    sizes = train.sizes[train.positions(torch.from_numpy(candidates))].numpy()
    down = sum(tree.bits(algorithm.sent(ctx, shared, one)) for one in candidates.tolist())
    payloads, up = algorithm.num_payloads(ctx, shared, len(candidates)), REPORT_BITS * len(candidates)
    federation.reports = PhaseTraffic(len(candidates), False, payloads, up, down)
    return np.sort(candidates[selection.choose(losses, sizes, cohort, rng)])


def _reported(federation: FederatedRounds, client_ids: np.ndarray, train: Split, **division: int) -> np.ndarray:
    """Mean loss of the training samples of clients as they are served, [d] by five digits; NaN without samples."""
    train = train.to(federation.server.device)
    sums = torch.zeros(len(client_ids), 2, dtype=torch.float64, device=federation.server.device)
    with torch.no_grad():
        for block in serving_blocks(train, train, train.positions(torch.from_numpy(client_ids)), **division):
            block = block._replace(client_ids=block.client_ids.to(sums.device))
            for rows, found in measure(federation, block, seen=True):
                sums[rows] += torch.stack([found.samples, found.loss], dim=1)
    number, loss = all_reduce(sums).cpu().unbind(1)
    return np.array([float(f"{one:.5g}") for one in (loss / number).tolist()])
