"""The LightningModule: shared state, client states, and the steps of a round."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lit_fed.algorithms.base import Algorithm
from lit_fed.algorithms.fedem import FedEM
from lit_fed.callbacks.aggregation import ServerAggregation
from lit_fed.clients import ClientTrainer, MemoryFormat, SequentialTrainer, TrainJob, choose_trainer
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.errors import ConfigError
from lit_fed.core.local_norm import LocalNorm
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.reduce import Accumulator, RunningMeans
from lit_fed.core.targets import Target
from lit_fed.core.task import Task
from lit_fed.core.types import ClientBlock, Phase, Population, Reduced, Split, Tree
from lit_fed.metrics import ClientTable
from lit_fed.metrics.round_time import PhaseTraffic
from lit_fed.models import Linear, Network
from lit_fed.models.base import build_network, check_outputs
from lit_fed.training.checkpoint import CHECKPOINT_KEY, refuse_other_run, schedule_rounds
from lit_fed.training.client_store import ClientStore
from lit_fed.training.demands import check_aggregation, check_cohort, check_division, check_init_seeds, check_sampling
from lit_fed.training.resume import changes_on_resume, note_after_schedule
from lit_fed.training.server_step import Assign, register_leaves
from lit_fed.training.serving import ClientServing, ServingFacts

__all__ = ["FederatedModule"]


class FederatedModule(ClientServing):
    """A federated algorithm with its state: what the server knows and what each client keeps.

    Args:
        algorithm: the algorithm, with its hyper-parameters.
        solver: how clients train.
        network: makes the network from the shape of a sample and the number of outputs.
        client_trainer: how clients are run: `sequential` one after another, `vectorized` at once, `debug` slowly and
            with every result checked; `auto` chooses by device and network.
        aggregation: what clients that were not sampled count for in an average of models: nothing (`renormalised`), or
            the model that they were last sent (`stale_fill`, as the official FedEM code does).
        weighting: weight of a client's message: its `samples`, or `uniform`; null takes the algorithm's (mostly
            `samples`), and `uniform` where clients are sampled in proportion to their samples.
        init_seeds: seeds of the initial models, one each, for `torch.manual_seed`; null derives them from the training
            seed.
        client_memory_gb: memory in GB (10⁹ bytes) that the states of all clients may take together; beyond it, their
            largest parts lie in files beside the run's checkpoints.
        memory_format: layout of images and of the weights of 2-D convolutions; `auto` puts the channels last wherever
            clients are run one after another, which pays on every device that was measured.
        batch_norm: parameters and running statistics of BatchNorm layers: treated like all weights (`average`), or kept
            by each client (`local`, FedBN).
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
        client_memory_gb: float = 4.0,
        memory_format: MemoryFormat = "auto",
        batch_norm: Literal["average", "local"] = "average",
    ) -> None:
        super().__init__()
        if not client_memory_gb >= 0:
            raise ConfigError(f"--model.client_memory_gb is {client_memory_gb}; give a number >= 0")
        check_aggregation(algorithm, aggregation)
        self.automatic_optimization = False
        self.algorithm: Any = LocalNorm(algorithm) if batch_norm == "local" else algorithm
        self.algorithm_name = type(algorithm).__name__
        self.solver, self.network = solver, network
        self.client_trainer_name, self.aggregation, self.weighting = client_trainer, aggregation, weighting
        self.init_seeds = None if init_seeds is None else tuple(init_seeds)
        self.client_memory_gb, self.memory_format = client_memory_gb, memory_format
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))
        self.task: Task | None = None
        self.seed = 0
        self.num_rounds = 1
        self.schedule_rounds: int | None = None  # as a checkpoint says; None: the number of rounds
        self.resume_with_changes = False  # whether a fit may go on with some other settings
        self.changes: list[dict[str, Any]] = []  # those that were made so far
        self.arguments: dict[str, Any] = {}
        self.fingerprint = ""
        self.results: dict[str, float] = {}
        self.client_rows: dict[str, Tensor] = {}
        self.round_results: dict[str, float] = {}
        self.traffic: list[PhaseTraffic] = []  # of the phases of the last committed round
        self._traffic: list[PhaseTraffic] = []  # of those of the coming round so far
        self._means = RunningMeans()  # over the phases of a round
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
                    "a fit without a server; take lit_fed.FederatedTrainer, which brings one, instead of Lightning's"
                )
            self.num_rounds = self.trainer.max_epochs if self.trainer.max_epochs not in (None, -1) else 1
            if self.trainer.max_steps != -1:
                self.num_rounds = min(self.num_rounds, self.trainer.max_steps)
            self.num_rounds, self.schedule_rounds = max(self.num_rounds, 1), None
            check_sampling(self.algorithm, self.algorithm_name, data.client_sampling, self.aggregation, self.weighting)
        if self.task is None:
            self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
            check_division(self.algorithm, self.algorithm_name, data.dataset)
            if self.weighting is None:
                self.weighting = "uniform" if data.client_sampling == "size" else self.algorithm.default_weighting
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
        train = seen.train
        ctx = self.build_shared(
            target, input_shape, num_clients=train.num_clients, total_samples=train.num_samples,
            most_samples=int(train.sizes.max()), groups=seen.groups,
            batch_size=batch_size, input_type=train.x.dtype, label_shape=tuple(train.y.shape[1:]),
        )  # fmt: skip
        initial = partial(self._kept_init, ctx, train)
        self.store = ClientStore(initial, self.num_clients, self.client_memory_gb * 1e9)
        components = self.algorithm.num_models if "mixture_weights" in dict(self.store.named_buffers()) else 0
        self.tables = nn.ModuleDict({"seen": ClientTable(seen.num_measured, components)})
        if unseen is not None:
            self.tables["unseen"] = ClientTable(unseen.num_measured, components)

    def build_shared(
        self,
        target: Target,
        input_shape: tuple[int, ...],
        *,
        num_clients: int,
        total_samples: int,
        most_samples: int = 0,
        groups: Tensor | None = None,
        batch_size: int = 128,
        input_type: torch.dtype = torch.float32,
        label_shape: tuple[int, ...] = (),
    ) -> Context:
        """Make task and initial shared state from sizes alone, which is enough to serve newcomers.

        Args:
            target: what is predicted.
            input_shape: shape of one sample.
            num_clients: clients of the training.
            total_samples: their training samples.
            most_samples: those of the largest of them.
            groups: true group of each of them [T], where known.
            batch_size: samples in a local batch.
            input_type: type of the samples.
            label_shape: shape of one label, () or (L,).

        Returns:
            The context of initial states.
        """
        self.weighting = self.weighting or self.algorithm.default_weighting
        self.batch_size = batch_size
        self.target, self.input_shape = target, input_shape
        self.task = Task.create(
            lambda: build_network(self.network, input_shape, input_type, target.num_outputs), target, self.seed,
            init_seeds=self.init_seeds,
        )  # fmt: skip
        # buffers of the module, so that a checkpoint restores them and no build has to repeat the same numbers
        self._frozen_names = register_leaves(self, {"frozen": self.task.frozen})
        check_outputs(self.task.network, input_shape, input_type, (*label_shape, target.num_outputs))
        if isinstance(self.algorithm, LocalNorm) and not self.task.norm_names:
            raise ConfigError(
                f"--model.batch_norm is local, and {type(self.task.network).__name__} has no BatchNorm; leave it out"
            )
        if self.client_trainer_name != "auto":
            self._client_trainer = self._choose_trainer()
        self.num_clients, self.groups = num_clients, groups
        self.total_samples, self.most_samples = total_samples, most_samples
        if self.init_seeds is not None:
            check_init_seeds(self.init_seeds, self.algorithm.num_models, num_clients)
        ctx = self.context("init")
        self.shared_template = self.algorithm.shared_init(ctx)
        self._leaf_names = register_leaves(self, self.shared_template)
        return ctx

    def _kept_init(self, ctx: Context, data: Split, client_id: int) -> Tree:
        """What a client keeps before its first round: its state, and its optimizer's if that persists."""
        client = data.client(client_id)
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
            self._client_trainer = self._choose_trainer()
        return self._client_trainer

    def _choose_trainer(self) -> ClientTrainer:
        assert self.task is not None
        return choose_trainer(self.client_trainer_name, self.task.network, self.device, self.memory_format)

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

    def context(self, phase: str, present: Tensor | None = None) -> Context:
        """What every client of a phase knows; `present` says which clients [T] take part in it."""
        round_idx = self.num_rounds_done
        lr = self.solver.lr_in(phase, round_idx, self.schedule_rounds or self.num_rounds)
        return Context(
            self._task_here(), self.solver, lr.to(self.device), round_idx, phase, self.num_clients, self.total_samples,
            self.seed, self.groups, self.aggregation, self.weighting or "samples", self.num_rounds, self.most_samples,
            present, batch_size=self.batch_size,
        )  # fmt: skip

    def _task_here(self) -> Task:
        """The task with what is frozen on the module's device, and as a checkpoint restored it."""
        assert self.task is not None
        if not self._frozen_names:
            return self.task
        frozen = dict(zip(self.task.frozen, (getattr(self, name) for name in self._frozen_names), strict=True))
        return replace(self.task, frozen=frozen)

    # ------------------------------------------------------------------ one round
    def phases(self, client_ids: np.ndarray) -> list[Phase]:
        """The phases of the coming round with these clients, [C], ids drawn twice standing twice."""
        check_cohort(self.algorithm, self.algorithm_name, client_ids, self.num_clients)
        return list(self.algorithm.phases(self.context("plan"), torch.from_numpy(client_ids)))

    def training_step(self, batch: ClientBlock, batch_idx: int) -> None:
        """Run a block of clients: gather their states, train, add up their messages, stage their new states."""
        if self._phase is None:
            self._accumulator = Accumulator(self.algorithm.reduce)
            self._staged_before = self.store.num_staged
        self._phase = batch  # which outlives the block's samples
        ids = batch.phase.client_ids
        block = batch._replace(data=batch.data.select(ids))
        kept = self.store.gather(ids)
        job = TrainJob(
            self.algorithm, self.context(block.phase.name, self._present()), self.shared, block, kept["state"],
            kept.get("optimizer"), self.batch_size,
        )  # fmt: skip
        for trained in self.client_trainer.train(job):
            multiplicity = block.multiplicity[trained.rows]
            self._accumulator.add(trained.result.message, multiplicity, trained.result.metrics)
            if bool((multiplicity > 0).all()):
                new = {"state": trained.result.state, "optimizer": trained.optimizers}
                self.store.stage(ids[trained.rows], {name: new[name] for name in self.store.template})
                self._report_progress("on_clients_end", len(multiplicity))
            self._metric_names = list(trained.result.metrics)

    def reduce_messages(self) -> Reduced:
        """Reduce the messages of the phase over ranks; the only communication that the algorithm knows of."""
        positions, counts = self._slices()
        reduced, bits, means = self._accumulator.reduce(positions, counts)
        bits_up, bits_down = bits.tolist()
        for name, value in (("comm/bytes_up", bits_up), ("comm/bytes_down", bits_down)):
            self.round_results[name] = self.round_results.get(name, 0.0) + value / 8
        self._traffic.append(self._phase_traffic(bits_up, bits_down))
        weight = float(reduced.weight.sum())
        for name, value in zip(self._metric_names, means.tolist(), strict=True):
            self.round_results[f"train/seen/{name}"] = self._means.add(name, value, weight)
        return reduced

    def _phase_traffic(self, bits_up: float, bits_down: float) -> PhaseTraffic:
        assert self._phase is not None
        phase, num_clients = self._phase.phase, len(self._phase_ids())
        payloads = self.algorithm.num_payloads(self.context(phase.name, self._present()), self.shared, num_clients)
        trains = bool(phase.work.epochs or phase.work.steps)
        return PhaseTraffic(num_clients, trains, payloads, bits_up, bits_down)

    def exchange_states(self) -> None:
        """Give every rank all new client states; bookkeeping, not traffic."""
        positions, counts = self._slices()
        self.store.exchange(positions, counts, self._phase_ids(), self._staged_before)

    def server_step(self, reduced: Reduced) -> None:
        """Take the algorithm's server step; its result is staged and seen by the next phase."""
        assert self._phase is not None
        ctx = self.context(self._phase.phase.name, self._present())
        self._staged_shared = self.algorithm.server_step(ctx, self.shared, reduced, self._phase_ids())
        self._phase = None

    def _phase_ids(self) -> Tensor:
        """All clients of the phase, ascending, each once."""
        assert self._phase is not None
        return torch.cat(self._phase.slices).sort().values.to(self.device)

    def _present(self) -> Tensor:
        present = torch.zeros(self.num_clients, dtype=torch.bool, device=self.device)
        return present.index_fill_(0, self._phase_ids(), True)

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
        self._staged_shared, self._means = None, RunningMeans()
        self.traffic, self._traffic = self._traffic, []
        self.store.commit()
        self.rounds += 1
        self._show_lr()

    def on_train_start(self) -> None:
        """Forget what an interrupted round left."""
        self._staged_shared, self._phase, self.round_results, self._means = None, None, {}, RunningMeans()
        self._traffic = []
        self.store.discard()
        self.store.open(self.trainer)
        self._show_lr()

    def on_fit_end(self) -> None:
        """Delete what was kept for checkpoints that are gone by now."""
        self.store.collect()

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
            "schedule_rounds": self.solver.schedule_rounds or self.schedule_rounds or self.num_rounds,
            "changes": self.changes,
            "results": dict(self.results),
            "client_files": self.store.location,
            "serving": self._serving_facts().plain(),
        }

    def _serving_facts(self) -> ServingFacts:
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        train = data.seen.train
        return ServingFacts(
            self.input_shape, str(train.x.dtype).removeprefix("torch."), tuple(train.y.shape[1:]), self.target,
            self.num_clients, self.total_samples, self.most_samples, self.groups, self.batch_size, data.block_size(),
            self.weighting or "samples", self.seed, self.num_rounds, data.dataset.normalisation,
        )  # fmt: skip

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another run, and go on from its results and with its schedule.

        Raises:
            ConfigError: naming what differs, or if the module has no data to build its state from.
        """
        if self.task is None:
            raise ConfigError(
                "a checkpoint holds states, not data: pass it to a trainer with the data module, as in "
                "trainer.test(module, datamodule=..., ckpt_path=...)"
            )
        stored = checkpoint.get(CHECKPOINT_KEY)
        goes_on = self._trainer is not None and bool(self.trainer.training)
        differences = refuse_other_run(
            stored, self.arguments, self.identity(), {"algorithm": self.algorithm, "solver": self.solver},
            goes_on=goes_on, with_changes=self.resume_with_changes,
        )  # fmt: skip
        assert stored is not None
        path = None if self._trainer is None else self.trainer.ckpt_path
        self.store.find(checkpoint["state_dict"], path, stored.get("client_files"))
        self.results = dict(stored["results"])  # what a finished run has to report without another round
        self.changes, self.schedule_rounds = list(stored.get("changes", [])), schedule_rounds(stored)
        if not goes_on:
            self.num_rounds = stored["num_rounds"]
            return
        rounds = checkpoint["global_step"], self.num_rounds
        if self.resume_with_changes:
            self.changes = changes_on_resume(stored, differences, *rounds)
        if self.trainer.is_global_zero:
            sys.stderr.write(note_after_schedule(self.solver, self.schedule_rounds, *rounds))

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with its checkpoint, where no command line says more."""
        return {
            "algorithm": repr(self.algorithm),
            "solver": repr(self.solver),
            "clients": self.num_clients,
            "client states in files": self.store.in_files,
            "data (fingerprint)": self.fingerprint,
            "seed": self.seed,
        }
