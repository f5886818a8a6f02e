"""The LightningModule: shared state, client states, and the steps of a round."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lit_fed.algorithms.base import Algorithm
from lit_fed.algorithms.fedem import FedEM
from lit_fed.callbacks.aggregation import ServerAggregation
from lit_fed.callbacks.base import FederatedCallback
from lit_fed.clients import (
    ClientTrainer,
    DebugTrainer,
    PredictJob,
    SequentialTrainer,
    TrainJob,
    VectorizedTrainer,
    evaluate,
)
from lit_fed.core import tree
from lit_fed.core.errors import ConfigError
from lit_fed.core.local import LocalSolver
from lit_fed.core.reduce import Accumulator
from lit_fed.core.task import ClosedForm, Target, Task
from lit_fed.core.types import ClientBlock, Context, Phase, Population, Reduced, ServingBlock, Split, Tree
from lit_fed.metrics import ClientTable
from lit_fed.models import Linear, Network
from lit_fed.training.checkpoint import CHECKPOINT_KEY, refuse_other_run
from lit_fed.training.client_store import ClientStore
from lit_fed.training.server_step import Assign, register_leaves

__all__ = ["FederatedModule"]

SMALL_MODEL = 20_000
"""Parameters up to which a dense network is bound by overhead on a CPU, so that clients are better run at once."""


class FederatedModule(LightningModule):
    """A federated algorithm with its state: what the server knows and what each client keeps.

    Args:
        algorithm: the algorithm, with its hyper-parameters.
        solver: how clients train.
        network: makes the network from the shape of a sample and the number of outputs.
        client_trainer: how clients are run: `sequential` one after another, `vectorized` at once, `debug` slowly and
            with every result checked; `auto` chooses by device and network.
        aggregation: what clients that were not sampled count for in an average of models: nothing (`renormalised`), or
            the model that they were last sent (`stale_fill`, as the official FedEM code does).
        weighting: weight of a client's message: its `samples`, or `uniform`; null takes `samples`, and `uniform` where
            clients are sampled in proportion to their samples.
        init_seeds: seeds of the initial models, one each, for `torch.manual_seed`; null derives them from the training
            seed.
    """

    def __init__(
        self,
        algorithm: Algorithm = FedEM(),  # noqa: B008 - frozen
        solver: LocalSolver = LocalSolver(),  # noqa: B008 - frozen
        network: Callable[[tuple[int, ...], int], Network] = Linear,
        client_trainer: Literal["auto", "sequential", "vectorized", "debug"] = "auto",
        aggregation: Literal["renormalised", "stale_fill"] = "renormalised",
        weighting: Literal["samples", "uniform"] | None = None,
        init_seeds: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.algorithm, self.solver, self.network = algorithm, solver, network
        self.client_trainer_name, self.aggregation, self.weighting = client_trainer, aggregation, weighting
        self.init_seeds = None if init_seeds is None else tuple(init_seeds)
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))
        self.task: Task | None = None
        self.seed = 0
        self.num_rounds = 1
        self.arguments: dict[str, Any] = {}
        self.fingerprint = ""
        self.results: dict[str, float] = {}
        self.client_rows: dict[str, Tensor] = {}
        self.round_results: dict[str, float] = {}
        self._client_trainer: ClientTrainer | None = None
        self._staged_shared: Tree = None
        self._phase: ClientBlock | None = None

    # ------------------------------------------------------------------ set-up
    def setup(self, stage: str) -> None:
        """Build the state from the sizes of the data; Lightning restores a checkpoint into it afterwards."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None or not hasattr(data, "seen"):
            raise ConfigError("FederatedModule has no data; pass datamodule=FederatedDataModule(...) to the trainer")
        if stage == "fit":
            if not any(isinstance(one, ServerAggregation) for one in self.trainer.callbacks):  # type: ignore[attr-defined]
                raise ConfigError(
                    "a fit without a server; add ServerAggregation() to the trainer's callbacks, or take "
                    "lit_fed.callbacks.with_defaults([])"
                )
            self.num_rounds = self.trainer.max_epochs if self.trainer.max_epochs not in (None, -1) else 1
            if self.trainer.max_steps != -1:
                self.num_rounds = min(self.num_rounds, self.trainer.max_steps)
            self.num_rounds = max(self.num_rounds, 1)
        if self.task is None:
            self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
            if self.weighting is None:
                self.weighting = "uniform" if data.client_sampling == "size" else "samples"
            self.fingerprint = data.fingerprint
            self.build(data.target, data.input_shape, data.seen, data.unseen, batch_size=data.batch_size)

    def build(
        self,
        target: Target,
        input_shape: tuple[int, ...],
        seen: Population,
        unseen: Population | None = None,
        *,
        batch_size: int = 128,
    ) -> None:
        """Make task, initial shared state, client table and metrics.

        Args:
            target: what is predicted.
            input_shape: shape of one sample.
            seen: clients of the training.
            unseen: clients that take no part in it.
            batch_size: samples in a local batch.
        """
        self.weighting = self.weighting or "samples"
        self.batch_size = batch_size
        self.target, self.input_shape = target, input_shape
        self.task = Task.create(
            lambda: self.network(input_shape, target.num_outputs), target, init_seeds=self.init_seeds
        )
        if self.client_trainer_name != "auto":
            self._client_trainer = self._checked_trainer(self.client_trainer_name)
        self.num_clients, self.total_samples = seen.train.num_clients, len(seen.train.y)
        self.groups = seen.groups
        self.shared_template = self.algorithm.shared_init(self.context("init"))
        self._leaf_names = register_leaves(self, self.shared_template)
        self.store = ClientStore([self._kept_init(seen.train, client_id) for client_id in range(self.num_clients)])
        components = self.algorithm.num_models if "mixture_weights" in dict(self.store.named_buffers()) else 0
        self.tables = nn.ModuleDict({"seen": ClientTable(self.num_clients, components)})
        if unseen is not None:
            self.tables["unseen"] = ClientTable(unseen.train.num_clients, components)

    def _kept_init(self, data: Split, client_id: int) -> Tree:
        """What a client keeps before its first round: its state, and its optimizer's if that persists."""
        ctx, client = self.context("init"), data.client(client_id)
        state = self.algorithm.state_init(ctx, self.shared_template, client)
        if not self.solver.persist_optimizer:
            return {"state": state}
        # The shape of the optimizer's state is the algorithm's affair; a fresh one is zeros in every method.
        if client_id == 0:
            losses = SequentialTrainer().losses(ctx, self.shared_template, self.algorithm, client)
            work = self.algorithm.client_init(ctx, self.shared_template, state, client, losses)
            self._fresh_optimizer = work.optimizer
        return {"state": state, "optimizer": self._fresh_optimizer}

    @property
    def client_trainer(self) -> ClientTrainer:
        """The client trainer, chosen when first needed, since `auto` looks at the device."""
        if self._client_trainer is None:
            auto = self.client_trainer_name == "auto"
            self._client_trainer = self._checked_trainer(self._auto_trainer() if auto else self.client_trainer_name)
        return self._client_trainer

    def _checked_trainer(self, name: str) -> ClientTrainer:
        assert self.task is not None
        trainers = {one.name: one for one in (SequentialTrainer, VectorizedTrainer, DebugTrainer)}
        chosen = trainers[name]()
        chosen.check(self.task.network)
        return chosen

    def _auto_trainer(self) -> str:
        """On a CPU clients run at once only where overhead outweighs arithmetic; on a GPU wherever possible."""
        assert self.task is not None
        network = self.task.network
        try:
            VectorizedTrainer().check(network)
        except ConfigError:
            return "sequential"
        dense = not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in network.modules())
        small = dense and sum(leaf.numel() for leaf in network.parameters()) <= SMALL_MODEL
        return "vectorized" if self.device.type == "cuda" or isinstance(network, ClosedForm) or small else "sequential"

    # ------------------------------------------------------------------ state
    @property
    def shared(self) -> Tree:
        """What the server knows: staged within a round, committed otherwise; never tracked by autograd."""
        if self._staged_shared is not None:
            return self._staged_shared
        return tree.rebuild(self.shared_template, [getattr(self, name).detach() for name in self._leaf_names])

    @property
    def mixture_weights(self) -> Tensor:
        """Mixture weights of all clients, [T, M].

        Raises:
            AttributeError: if the algorithm has none.
        """
        return self.store.mixture_weights  # type: ignore[return-value]

    @property
    def num_rounds_done(self) -> int:
        """Completed rounds."""
        return int(self.rounds)

    def context(self, phase: str) -> Context:
        """What every client of a phase knows."""
        round_idx = self.num_rounds_done
        lr = self.solver.lr_at(min(round_idx, self.num_rounds - 1), self.num_rounds)
        assert self.task is not None
        return Context(
            self.task, self.solver, lr.to(self.device), round_idx, phase, self.num_clients, self.total_samples,
            self.seed, self.groups, self.aggregation, self.weighting or "samples", self.num_rounds,
        )  # fmt: skip

    # ------------------------------------------------------------------ one round
    def phases(self, client_ids: np.ndarray) -> list[Phase]:
        """The phases of the coming round with these clients, [C], ids drawn twice standing twice."""
        return list(self.algorithm.phases(self.context("plan"), torch.from_numpy(client_ids)))

    def training_step(self, batch: ClientBlock, batch_idx: int) -> None:
        """Run a block of clients: gather their states, train, add up their messages, stage their new states."""
        block = batch
        if self._phase is None:
            self._accumulator = Accumulator(self.algorithm.reduce)
            self._staged_before = self.store.num_staged
        self._phase = block
        ids = block.phase.client_ids
        kept = self.store.gather(ids)
        job = TrainJob(
            self.algorithm, self.context(block.phase.name), self.shared, block, kept["state"], kept.get("optimizer"),
            self.batch_size,
        )  # fmt: skip
        for trained in self.client_trainer.train(job):
            multiplicity = block.multiplicity[trained.rows]
            self._accumulator.add(trained.result.message, multiplicity, trained.result.metrics)
            if bool((multiplicity > 0).all()):
                new = {"state": trained.result.state, "optimizer": trained.optimizers}
                self.store.stage(ids[trained.rows], {name: new[name] for name in self.store.template})
                self._report_progress(len(multiplicity))
            self._metric_names = list(trained.result.metrics)

    def _report_progress(self, num_clients: int) -> None:
        for callback in self._trainer.callbacks if self._trainer is not None else ():  # type: ignore[attr-defined]
            if isinstance(callback, FederatedCallback):
                callback.on_clients_end(self.trainer, self, num_clients)

    def reduce_messages(self) -> Reduced:
        """Reduce the messages of the phase over ranks; the only communication that the algorithm knows of."""
        positions, counts = self._slices()
        reduced, bits, means = self._accumulator.reduce(positions, counts)
        for name, value in (("comm/bytes_up", bits[0]), ("comm/bytes_down", bits[1])):
            self.round_results[name] = self.round_results.get(name, 0.0) + float(value) / 8
        for name, value in zip(self._metric_names, means.tolist(), strict=True):
            self.round_results[f"train/seen/{name}"] = value
        return reduced

    def exchange_states(self) -> None:
        """Give every rank all new client states; bookkeeping, not traffic."""
        positions, counts = self._slices()
        self.store.exchange(positions, counts, self._phase_ids(), self._staged_before)

    def server_step(self, reduced: Reduced) -> None:
        """Take the algorithm's server step; its result is staged and seen by the next phase."""
        assert self._phase is not None
        ctx = self.context(self._phase.phase.name)
        self._staged_shared = self.algorithm.server_step(ctx, self.shared, reduced, self._phase_ids())
        self._phase = None

    def _phase_ids(self) -> Tensor:
        """All clients of the phase, ascending, each once."""
        assert self._phase is not None
        return torch.cat(self._phase.slices).sort().values.to(self.device)

    def _slices(self) -> tuple[Tensor, list[int]]:
        assert self._phase is not None
        slices = self._phase.slices
        positions = torch.searchsorted(self._phase_ids(), torch.cat(slices).to(self.device))
        return positions, [len(one) for one in slices]

    def commit_round(self) -> None:
        """Write the staged shared and client states; from here on the round has happened."""
        assert self._staged_shared is not None, "ServerAggregation takes a server step in every phase"
        optimizer: Any = self.optimizers()
        optimizer.optimizer.staged = tree.leaves(self._staged_shared)
        optimizer.step()
        self._staged_shared = None
        self.store.commit()
        self.rounds += 1
        self._show_lr()

    def on_train_start(self) -> None:
        """Forget what an interrupted round left."""
        self._staged_shared, self._phase, self.round_results = None, None, {}
        self.store.discard()
        self._show_lr()

    def _show_lr(self) -> None:
        """Let Lightning's learning-rate monitor see the coming round's local learning rate."""
        optimizer: Any = self.optimizers()
        optimizer.optimizer.param_groups[0]["lr"] = float(self.context("plan").lr)

    def configure_optimizers(self) -> Assign:
        """The optimizer that writes the server's new state."""
        return Assign([getattr(self, name) for name in self._leaf_names])

    # ------------------------------------------------------------------ checkpoints
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what tells this run from another, and what serving it takes, as plain types."""
        checkpoint[CHECKPOINT_KEY] = {
            "identity": self.identity(),
            "arguments": self.arguments,
            "num_rounds": self.num_rounds,
            "results": dict(self.results),
            "input_shape": list(self.input_shape),
            "target": [self.target.kind, self.target.num_classes, self.target.positions],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another run, and go on from its results.

        Raises:
            ConfigError: naming what differs, or if the module has no data to build its state from.
        """
        if self.task is None:
            raise ConfigError(
                "a checkpoint holds states, not data: pass it to a trainer with the data module, as in "
                "trainer.test(module, datamodule=..., ckpt_path=...)"
            )
        stored = checkpoint.get(CHECKPOINT_KEY)
        refuse_other_run(stored, self.arguments, self.identity())
        assert stored is not None
        self.results = dict(stored["results"])  # what a finished run has to report without another round
        if self._trainer is None or not self.trainer.training:
            self.num_rounds = stored["num_rounds"]

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with its checkpoint, where no command line says more."""
        return {
            "algorithm": repr(self.algorithm),
            "solver": repr(self.solver),
            "clients": self.num_clients,
            "data (fingerprint)": self.fingerprint,
            "seed": self.seed,
        }

    # ------------------------------------------------------------------ serving clients
    def serve(self, client_ids: Tensor, train: Split, *, seen: bool) -> Tree:
        """States [C, ...] that clients are served with: kept or fresh, adapted if the algorithm asks for it."""
        ctx = self.context("adapt")
        if seen:
            states = self.store.gather(client_ids)["state"]
        else:
            fresh = [self.algorithm.state_init(ctx, self.shared, train.client(one)) for one in client_ids.tolist()]
            states = tree.map_leaves(lambda leaf: leaf.to(self.device), tree.stack(fresh))
        work = self.algorithm.adapt_work(ctx, seen)
        if work is None or not len(client_ids):
            return states
        sizes = train.sizes[client_ids.cpu() - train.first_id]
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

    def measure(self, block: ServingBlock, population: Literal["seen", "unseen"]) -> None:
        """Serve some clients, predict their samples and add the results to the table of their population."""
        states = self.serve(block.client_ids, block.train, seen=population == "seen")
        ctx = self.context("evaluate")
        job = PredictJob(self.algorithm, ctx, self.shared, block.data, block.client_ids, states)
        rows = evaluate(self.client_trainer, job)
        table: Any = self.tables[population]
        if table.rows.shape[1] > rows.shape[1]:
            rows = torch.cat([rows, states.mixture.to(rows)], dim=1)
        table.update(block.client_ids - block.data.first_id, rows)

    def validation_step(self, batch: ServingBlock, batch_idx: int) -> None:
        """Measure a block of seen clients."""
        self.measure(batch, "seen")

    def test_step(self, batch: ServingBlock, batch_idx: int) -> None:
        """Measure a block of seen clients."""
        self.measure(batch, "seen")
