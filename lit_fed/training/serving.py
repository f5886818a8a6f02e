"""Serving clients: with which states, and what comes of it; what a checkpoint tells about it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lit_fed.callbacks.base import FederatedCallback
from lit_fed.clients import ClientTrainer, PredictJob, TrainJob, add_scores, evaluate
from lit_fed.core import tree
from lit_fed.core.errors import ConfigError
from lit_fed.core.targets import Target
from lit_fed.core.types import ClientBlock, Phase, ServingBlock, Split, Tree
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.metrics import ClientTable
from lit_fed.training.checkpoint import (
    CHECKPOINT_KEY,
    compare_arguments,
    compare_identities,
    refuse_differences,
    schedule_rounds,
)

__all__ = ["BlockPredictions", "ClientServing", "ServingFacts", "predict_block", "restore_for_newcomers"]


class ServingFacts(NamedTuple):
    """What serving newcomers takes to know of the training, beside the shared state."""

    input_shape: tuple[int, ...]  # of one sample
    input_type: str  # torch's name of the inputs' type, `float32` or `int64`
    label_shape: tuple[int, ...]  # of one sample: () or (L,)
    target: Target
    num_clients: int
    total_samples: int  # training samples of all clients
    most_samples: int  # training samples of the largest of them
    groups: Tensor | None  # [T] true group of each client, where known
    batch_size: int
    clients_per_block: int
    weighting: Literal["samples", "uniform"]
    seed: int
    num_rounds: int
    normalisation: Normalisation | None  # of inputs in 0..1; None: inputs are taken as they are

    def plain(self) -> dict[str, Any]:
        """The same as plain types, which a checkpoint may hold."""
        target, constants = self.target, self.normalisation
        return self._asdict() | {
            "target": (target.kind, target.num_classes, target.positions),
            "normalisation": None if constants is None else (constants.mean, constants.std),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ServingFacts:
        """The inverse of `plain`."""
        constants = plain["normalisation"]
        return cls(
            **plain
            | {
                "target": Target.from_plain(*plain["target"]),
                "normalisation": None if constants is None else Normalisation(*constants),
            }
        )


SERVED_BYTES = 2**28
"""Memory that the models of clients may take that are adapted before they are served."""


class BlockPredictions(NamedTuple):
    """What some clients of a prediction run were served with, and what was predicted for them."""

    client_ids: Tensor  # [C] int64
    states: Tree  # leaves [C, ...], on the device
    rows: Tensor  # [C, 3 + M] float64: samples, sums of losses and hits, mixture weights where the algorithm has some
    sizes: Tensor  # [C] int64, samples of each client
    labels: Tensor  # [n] or [n, L], client after client
    log_prob: Tensor  # float32 [n, C] or [n, L, C], or for regression the means [n, 1]


class ClientServing(LightningModule):
    """The part of a federated module that serves clients, in validation, test and prediction."""

    algorithm: Any
    shared: Tree
    store: Any
    batch_size: int
    num_clients: int
    client_trainer: ClientTrainer
    context: Any

    def serve(self, client_ids: Tensor, train: Split, *, seen: bool) -> Tree:
        """States [C, ...] that clients are served with: kept or fresh, adapted if the algorithm asks for it."""
        ctx = self.context("adapt")
        if seen or not len(client_ids):  # a rank without clients needs no states but their shapes
            states = self.store.gather(client_ids)["state"]
        else:
            fresh = [self.algorithm.state_init(ctx, self.shared, train.client(one)) for one in client_ids.tolist()]
            states = tree.map_leaves(lambda leaf: leaf.to(self.device), tree.stack(fresh))
        work = self.algorithm.adapt_work(ctx, seen)
        if work is None or not len(client_ids):
            return states
        train = train.select(client_ids)
        sizes = train.sizes[train.positions(client_ids)]
        order = torch.argsort(sizes, descending=True, stable=True)
        block = ClientBlock(
            Phase("adapt", client_ids[order], work),
            torch.ones(len(order), dtype=torch.float64, device=self.device),
            train,
        )
        job = TrainJob(self.algorithm, ctx, self.shared, block, tree.index(states, order), None, self.batch_size)
        adapted = [trained.result.state for trained in self.client_trainer.train(job)]
        rows = tree.map_leaves(lambda *parts: torch.cat(parts), *adapted)
        return tree.index(rows, torch.argsort(order))

    def _served(self, block: ServingBlock, *, seen: bool) -> PredictJob:
        """The work that is left when some clients have their states: predicting their samples."""
        states = self.serve(block.client_ids, block.train, seen=seen)
        data = block.data.select(block.client_ids)
        return PredictJob(self.algorithm, self.context("evaluate"), self.shared, data, block.client_ids, states)

    def measure(
        self, block: ServingBlock, population: Literal["seen", "unseen"], table: ClientTable | None = None
    ) -> None:
        """Serve some clients, predict their samples and add the results to a table, None: that of their population."""
        results: Any = self.tables[population] if table is None else table  # type: ignore[index]
        # an adapted state may be whole models: as many clients at a time as there is room for
        each = (sum(map(tree.bits, tree.models(self.shared))) + tree.bits(self.store.template["state"])) // 8
        at_once = max(1, SERVED_BYTES // max(each, 1))
        for lo in range(0, max(len(block.client_ids), 1), at_once):
            some = slice(lo, lo + at_once)
            piece = block._replace(client_ids=block.client_ids[some], rows=block.rows[some])
            job = self._served(piece, seen=population == "seen")
            rows = evaluate(self.client_trainer, job)
            if results.rows.shape[1] > rows.shape[1]:
                rows = torch.cat([rows, job.states.mixture.to(rows)], dim=1)
            results.update(piece.rows, rows)
            self._report_progress("on_clients_served", len(piece.client_ids))

    def _report_progress(self, hook: str, num_clients: int) -> None:
        for callback in self._trainer.callbacks if self._trainer is not None else ():  # type: ignore[attr-defined]
            if isinstance(callback, FederatedCallback):
                getattr(callback, hook)(self.trainer, self, num_clients)

    def validation_step(self, batch: ServingBlock, batch_idx: int) -> None:
        """Measure a block of seen clients."""
        self.measure(batch, "seen")

    def test_step(self, batch: ServingBlock, batch_idx: int) -> None:
        """Measure a block of seen clients."""
        self.measure(batch, "seen")

    def predict_step(self, batch: ServingBlock, batch_idx: int) -> BlockPredictions | tuple[()]:
        """Serve a block of clients, all seen or all unseen; () for a block without clients."""
        if not len(batch.client_ids):
            return ()
        served = self._served(batch, seen=int(batch.client_ids[0]) < self.num_clients)
        predictions = predict_block(self.client_trainer, served)
        self._report_progress("on_clients_served", len(batch.client_ids))
        return predictions


def predict_block(client_trainer: ClientTrainer, job: PredictJob) -> BlockPredictions:
    """Predict all samples of some clients, at least one; predictions are kept on the CPU, as they come."""
    labels: list[list[Tensor]] = [[] for _ in range(len(job.client_ids))]
    log_prob: list[list[Tensor]] = [[] for _ in labels]
    rows = job.data.x.new_zeros(len(job.client_ids), 3, dtype=torch.float64)
    for served in client_trainer.predict(job):
        add_scores(rows, served, job.ctx.task)
        y, prediction, mask = served.y.cpu(), served.prediction.float().cpu(), served.mask.cpu() > 0
        for place, client in enumerate(served.rows.tolist()):
            labels[client].append(y[place, mask[place]])
            log_prob[client].append(prediction[place, mask[place]])
    sizes = torch.tensor([sum(map(len, parts)) for parts in labels])
    mixture = getattr(job.states, "mixture", None)
    if mixture is not None:
        rows = torch.cat([rows, mixture.to(rows)], dim=1)
    return BlockPredictions(
        job.client_ids.cpu(), job.states, rows.cpu(), sizes,
        torch.cat([part for parts in labels for part in parts] or [job.data.y[:0].cpu()]),
        torch.cat([part for parts in log_prob for part in parts] or [torch.zeros(0)]),
    )  # fmt: skip


def restore_for_newcomers(module: Any, checkpoint: dict[str, Any], place: str) -> ServingFacts:
    """Give a fresh module what serving newcomers takes: the shared state of a checkpoint, without any seen client.

    Args:
        module: a `FederatedModule` that has not been built yet.
        checkpoint: content of one of its checkpoints.
        place: where the checkpoint was found, for error messages.

    Returns:
        What the checkpoint says of the training.

    Raises:
        ConfigError: if the checkpoint is of another run, or the module has a state already.
    """
    if module.task is not None:
        raise ConfigError("personalize builds the module from the checkpoint; pass a FederatedModule without a state")
    stored = checkpoint.get(CHECKPOINT_KEY)
    if stored is None or "serving" not in stored:
        raise ConfigError(f"--ckpt_path {place} says nothing of how clients are served; give a checkpoint of a fit")
    settings = {"algorithm": module.algorithm, "solver": module.solver}
    own = {name: repr(one) for name, one in settings.items()}
    kept = {name: stored["identity"][name] for name in own}
    refuse_differences(
        compare_arguments(stored["arguments"], module.arguments) or compare_identities(kept, own, settings)
    )
    facts = ServingFacts.from_plain(stored["serving"])
    module.seed, module.num_rounds, module.weighting = facts.seed, facts.num_rounds, facts.weighting
    module.schedule_rounds = schedule_rounds(stored)
    module.build_shared(
        facts.target, facts.input_shape, num_clients=facts.num_clients, total_samples=facts.total_samples,
        most_samples=facts.most_samples,
        groups=facts.groups, batch_size=facts.batch_size, input_type=getattr(torch, facts.input_type),
        label_shape=facts.label_shape,
    )  # fmt: skip
    state = {name: leaf for name, leaf in checkpoint["state_dict"].items() if not name.startswith("store.")}
    module.load_state_dict(state)
    return facts
