"""The LightningModule: what Lightning needs to know of a federation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from lit_fed.algorithms.fedem import FedEM
from lit_fed.clients import MemoryFormat
from lit_fed.clients.session import ModelSettings
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Loss
from lit_fed.core.types import ClientBlock, Population, RoundRecord
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.populations.unseen_folder import UnseenFolder
from lit_fed.deployment.federation import RemoteClients, RemoteSplit
from lit_fed.deployment.remote import RemoteTrainer, VersionStore
from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.gathered import ClientTable
from lit_fed.metrics.selection import MetricsGiven, choose_metrics, with_classes
from lit_fed.models.base import Network
from lit_fed.models.linear import Linear
from lit_fed.training.building import build_federation, facts_of, remote_trainer, rounds_of_fit
from lit_fed.training.checkpoint import CHECKPOINT_KEY, WITHOUT_DATA, clients_folder, refuse_other_terms
from lit_fed.training.description import Described
from lit_fed.training.history import RunHistory
from lit_fed.training.module_server import Assign
from lit_fed.training.planner import FederationPlanner
from lit_fed.training.serving_steps import ServingSteps
from lit_fed.wrappers.compression.codecs import Codec
from lit_fed.wrappers.compression.codecs.base import Scope
from lit_fed.wrappers.compression.wrapper import Feedback
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.privacy.settings import Privacy
from lit_fed.wrappers.robust.attacks import Attack
from lit_fed.wrappers.robust.rules import Rule
from lit_fed.wrappers.secure.wrapper import SecureAggregation

__all__ = ["FederatedModule"]


class FederatedModule(Described, ServingSteps):
    """A federated algorithm with its state: what the server knows and what each client keeps.

    Args:
        algorithm: the algorithm, with its hyper-parameters.
        solver: how clients train.
        network: makes the network from the sizes of the data: a class, a function, or in Python an `nn.Module` whose
            weights all models start from; those of a mixture then have a fresh last layer each, to be different.
        client_trainer: how clients are run: `sequential` one after another, `vectorized` at once, `graphed` one after
            another with local steps replayed from CUDA graphs, `debug` slowly and with every result checked; `auto`
            chooses by device and network.
        aggregation: what clients that were not sampled count for in an average of models: nothing (`renormalised`), or
            the model that they were last sent (`stale_fill`, as the official FedEM code does).
        weighting: weight of a client's message: its `samples`, or `uniform`; null takes the algorithm's (mostly
            `samples`), and `uniform` where clients are sampled in proportion to their samples.
        init_seeds: seeds of the initial models, for `torch.manual_seed`; null derives them from the training seed.
        client_memory_gb: memory in GB (10⁹ bytes) that the states of all clients may take together; beyond it, their
            largest parts lie in files beside the run's checkpoints.
        memory_format: layout of images and of weights of 2-D convolutions; `auto` puts the channels last, which pays,
            wherever clients are run one after another.
        batch_norm: parameters and running statistics of BatchNorm layers: treated like all weights (`average`), or kept
            by each client (`local`, FedBN).
        trainable: patterns of names of parameters that are trained, such as `[layer4.*, fc]`, or `head` for the last
            layer; the others are frozen, and held once for all models and clients. Null trains what the network says.
        lora_rank: rank of adapters (LoRA, extra `lora`) on linear layers; `trainable` is then `head` by default.
        lora_targets: patterns of names of the layers that get one, such as `*query`; null: all that are frozen.
        lora_alpha: adapters are scaled by this divided by their rank; null: not at all.
        metrics: what clients are measured by beside accuracy and loss: names of torchmetrics classes, such as
            `[AUROC, F1Score]`; null measures nothing else.
        loss: what local steps minimise in place of the log-loss, which all else takes; null: the log-loss.
        privacy: differential privacy of what the server learns, a simulation of the mechanism; null: none.
        secure_aggregation: let the server see sums of masked messages alone, such as `SecureSum`, which simulates the
            arithmetic and keeps nothing secret from this process; null: it sees the messages.
        compression: codec of what clients send, which is encoded as the change of each leaf; null: none.
        compression_feedback: what becomes of what the codec loses: nothing (`none`), the client tells it later
            (`ef14`), or it tells how its change differs from what the server knows (`ef21`); null takes `ef14` for a
            codec that is biased, else `none`.
        compression_scope: what is encoded as one vector: each `leaf` of a model, or the `whole` model.
        downlink_compression: codec of what the server sends; null: none.
        robust_aggregation: rule by which the server makes one change of those that clients send, of which some may lie,
            such as `CenteredClipping`; null: their average.
        attack: what the clients of `--data.attackers` send in place of what they learnt; null: that.
        faults: how clients fail: drop out, come too late, cannot be reached, compute no numbers; null: not at all.

    Attributes:
        algorithm: the algorithm; the one that was given, inside the wrappers that the settings ask for.
        federation: the algorithm with its server and its clients, which runs the rounds; made by `setup`.
        facts: what the federation was built from.
        record: what the last committed round produced.
        history: what tells the run from others, and what was changed on resume.
        results: the latest metrics, by key.
    """

    record: RoundRecord

    def __init__(
        self,
        algorithm: Algorithm = FedEM(),  # noqa: B008 - frozen
        solver: LocalSolver = LocalSolver(),  # noqa: B008 - frozen
        network: Callable[[tuple[int, ...], int], Network] = Linear,
        client_trainer: Literal["auto", "sequential", "vectorized", "graphed", "debug"] = "auto",
        aggregation: Literal["renormalised", "stale_fill"] = "renormalised",
        weighting: Literal["samples", "uniform"] | None = None,
        init_seeds: list[int] | None = None,
        client_memory_gb: float = 4.0,
        memory_format: MemoryFormat = "auto",
        batch_norm: Literal["average", "local"] = "average",
        trainable: list[str] | str | None = None,
        lora_rank: int | None = None,
        lora_targets: list[str] | str | None = None,
        lora_alpha: float | None = None,
        metrics: MetricsGiven = None,
        loss: Loss | None = None,
        privacy: Privacy | None = None,
        secure_aggregation: SecureAggregation | None = None,
        compression: Codec | None = None,
        compression_feedback: Feedback | None = None,
        compression_scope: Scope = "leaf",
        downlink_compression: Codec | None = None,
        robust_aggregation: Rule | None = None,
        attack: Attack | None = None,
        faults: Faults | None = None,
    ) -> None:
        super().__init__()
        self.settings = ModelSettings(
            algorithm, solver, network, client_trainer, aggregation, weighting, init_seeds, client_memory_gb,
            memory_format, batch_norm, trainable, lora_rank, lora_targets, lora_alpha, with_classes(metrics), loss,
            privacy, secure_aggregation, compression, compression_feedback, compression_scope, downlink_compression,
            robust_aggregation, attack, faults,
        )  # fmt: skip
        self.settings.check()
        self.algorithm, self.algorithm_name = self.settings.wrapped, self.settings.name
        self.automatic_optimization = False
        self.history, self.outlier_noticed = RunHistory(), False
        self.results: dict[str, float] = {}
        self.client_rows, self.client_metrics = {}, {}

    # ------------------------------------------------------------------ set-up
    def setup(self, stage: str) -> None:
        """Build the state from the sizes of the data; Lightning restores a checkpoint into it afterwards."""
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, FederatedDataModule):
            if self.is_built and isinstance(data, UnseenFolder):  # they are served from a checkpoint alone
                self.federation.check_unseen(data.unseen)
                return
            raise ConfigError("FederatedModule has no data; pass datamodule=FederatedDataModule(...) to the trainer")
        num_rounds = rounds_of_fit(self.settings, self.trainer, data) if stage == "fit" else 1
        if not self.is_built:
            self.history.fingerprint = data.fingerprint
            self.build(facts_of(self.settings, data, num_rounds), *data.populations)
        elif stage == "fit":
            self._fit_again(data, num_rounds)
        self.store.start_from(partial(self.federation.initial_state, data.populations[0].train))
        if isinstance(data.dataset, RemoteClients) and "client_trainer" not in vars(self.federation):
            self.federation.client_trainer = remote_trainer(
                self.federation, self.settings, self.facts, self.history.arguments, data
            )
        data.plan_with(FederationPlanner(self.federation))
        self.federation.check_unseen(data.populations[1])
        said = self.federation.idle_clients(data.populations[0].train) if stage == "fit" else ""
        if said and self.trainer.is_global_zero:
            notice(said)

    def _fit_again(self, data: FederatedDataModule, num_rounds: int) -> None:
        """Lay out another fit: its rounds come after those that are done, unless a checkpoint says what is done."""
        if self.settings.privacy is not None:
            refuse_other_terms(self.federation.terms._asdict(), facts_of(self.settings, data, num_rounds))
        done = 0 if self.trainer.ckpt_path is not None else self.num_rounds_done - self.trainer.global_step
        self.federation.terms = self.federation.terms._replace(num_rounds=done + num_rounds)
        self.federation.schedule_rounds = num_rounds if done else None

    def build(self, facts: TrainingFacts, seen: Population, unseen: Population | None = None) -> None:
        """Make the federation for these clients, what the seen ones keep, and the tables of results."""
        self.build_shared(facts)
        memory_bytes = self.settings.client_memory_gb * 1e9
        self.store = self.federation.store = (
            VersionStore(facts.num_clients)
            if isinstance(seen.train, RemoteSplit)
            else self.federation.new_store(seen.train, memory_bytes)
        )
        each = self.algorithm.num_models if self.store.has_mixtures else 0, len(self.chosen_metrics)
        self.tables = nn.ModuleDict({"seen": ClientTable(seen.num_measured, *each)})
        if unseen is not None:
            self.tables["unseen"] = ClientTable(unseen.num_measured, *each)

    def build_shared(self, facts: TrainingFacts) -> None:
        """Make the federation without any seen client, which is enough to serve unseen ones."""
        self.facts, self.target = facts, facts.target
        self.chosen_metrics = choose_metrics(self.settings.metrics, facts.target)
        self.federation = build_federation(self, self.settings, facts, self.history.warm_start)

    def training_step(self, batch: ClientBlock, batch_idx: int) -> None:
        """Run a block of clients."""
        for num_clients in self.federation.train_block(batch):
            self._tell("on_clients_end", num_clients)

    def commit_round(self) -> None:
        """Write what the round staged; from here on it has happened."""
        self.record = self.federation.commit()
        self._show_lr()

    def hand_out_record(self) -> None:
        """Hand the record of the round to the callbacks, where `self.log` is available."""
        self._tell("on_round_end", self.record)

    def _tell(self, hook: str, about: Any) -> None:
        """Call a hook of `FederatedCallback`."""
        for callback in self._trainer.callbacks if self._trainer is not None else ():  # type: ignore[attr-defined]
            if hasattr(callback, hook):
                getattr(callback, hook)(self.trainer, self, about)

    def on_train_start(self) -> None:
        """Forget what an interrupted round left, and make the folder of client files ready."""
        self.federation.discard()
        trainer = self.trainer
        self.store.open(
            clients_folder(trainer.checkpoint_callbacks), Path(trainer.default_root_dir),
            is_global_zero=trainer.is_global_zero, broadcast=trainer.strategy.broadcast,
        )  # fmt: skip
        self._show_lr()

    def on_fit_end(self) -> None:
        """Delete what was kept for checkpoints that are gone; let nodes keep what serving their clients takes."""
        self.store.collect()
        if isinstance(self.federation.client_trainer, RemoteTrainer):
            self.federation.client_trainer.keep()

    def _show_lr(self) -> None:
        """Let Lightning's learning-rate monitor see the coming round's local learning rate."""
        optimizer: Any = self.optimizers()
        optimizer.optimizer.param_groups[0]["lr"] = float(self.federation.context("plan").lr)

    def configure_optimizers(self) -> Assign:
        """The optimizer that writes the server's new state."""
        return Assign(self.federation.server.leaves)  # type: ignore[attr-defined] # of a `ModuleServer`

    # ------------------------------------------------------------------ checkpoints
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what tells this run from another, and what serving it takes."""
        checkpoint[CHECKPOINT_KEY] = self.history.entry(self.federation, self.facts, self.results)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another run, and go on from its results and with its schedule.

        Raises:
            ConfigError: naming what differs, or if the module has no data to build its state from.
        """
        if not self.is_built:
            raise ConfigError(WITHOUT_DATA)
        self.results = self.history.restore(checkpoint, self.federation, self._trainer)
