"""The LightningModule around a federation."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lit_fed import serving
from lit_fed.algorithms.fedem import FedEM
from lit_fed.clients.store import BUFFER_NAMES, ClientStore, StoredStates
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.conformal import check_target
from lit_fed.core.local_solver import LocalSolver, is_searched
from lit_fed.core.types import ClientBlock, Population, RoundRecord, ServingBlock, Tree
from lit_fed.data.data_sets.base import names_of
from lit_fed.data.facts import TrainingFacts, name_digests
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError, notice
from lit_fed.logged import step_of
from lit_fed.metrics.gathered import ClientTable
from lit_fed.metrics.scores import ClientScores
from lit_fed.metrics.selection import choose_metrics
from lit_fed.models.base import Network
from lit_fed.models.linear import Linear
from lit_fed.rounds import FederatedRounds
from lit_fed.session import Session, solver_of
from lit_fed.settings import ModelSettings, model_settings
from lit_fed.system.discovery import named
from lit_fed.system.names import few, nearest
from lit_fed.system.options import takes
from lit_fed.system.readers import whole
from lit_fed.training.checkpoint import CHECKPOINT_KEY, FIX, clients_folder, load_checkpoint
from lit_fed.training.history import RunHistory, content_of, plain_settings, refuse_other_run
from lit_fed.training.module_server import Assign, ModuleServer, source_of
from lit_fed.training.thresholds import Thresholds, calibrated, check_calibration
from lit_fed.training.warm_start import OF_LIGHTNING, WarmStart
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.feature import features

__all__ = ["FederatedModule", "facts_of", "rounds_of_fit"]


class FederatedModule(LightningModule):
    """A federated algorithm with its state: the shared state of the server and the state of each client.

    In Python, too, a class or its name stands for an object with its defaults: `FederatedModule("FedAvg")`.

    Settings are the fields of `ModelSettings`, and those of the features in `lit_fed.wrappers`. The attribute
    `algorithm` is the given one inside the wrappers of the settings.

    Attributes:
        federation: runs the rounds: the algorithm with its server and clients; built by `setup`.
        facts: sizes and terms that the federation was built from.
        record: record of the last committed round.
        history: identity of the run, and its changes on resume.
        results: the latest metrics, by key.
        trials: the learning rates that `--model.solver.lr auto` tried, as in `learning_rates.csv`.
        store: the states of the seen clients.
        stored: the same in a checkpoint that was restored without data.
        tables: results of the measured clients, by population.
        chosen_metrics: metrics beside accuracy and loss.
        client_scores: the last results of the measured clients, by population.
        thresholds: of prediction sets; None: none were found yet, or asked for.
        is_built: whether the module has its federation.
    """

    record: RoundRecord
    is_built = False

    @takes(ModelSettings, *features())
    def __init__(
        self,
        algorithm: Algorithm = FedEM(),  # noqa: B008 - frozen
        solver: LocalSolver = LocalSolver(),  # noqa: B008 - frozen
        network: Callable[[tuple[int, ...], int], Network] = Linear,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.settings = model_settings(algorithm=algorithm, solver=solver, network=network, **settings)
        self.settings.check()
        self.algorithm, self.algorithm_name = self.settings.wrapped, type(self.settings.algorithm).__name__
        self.automatic_optimization = False
        self.history, self.outlier_noticed = RunHistory(), False
        self.searched = self.settings.solver.lr if is_searched(self.settings.solver.lr) else None
        self.trials: list[Any] = []  # of the search for a learning rate
        self.own_callbacks: list[Callback] = []
        self.results: dict[str, float] = {}
        self._entry: dict[str, Any] = {}  # what the checkpoints of a fit have in common; {}: there is no fit
        self.client_scores: dict[str, ClientScores] = {}
        self.thresholds: Thresholds | None = None
        self._loaded_from = "the checkpoint"

    # ------------------------------------------------------------------ set-up
    def setup(self, stage: str) -> None:
        """Build the state from the sizes of the data; Lightning restores a checkpoint into it afterwards."""
        data, self._entry = getattr(self.trainer, "datamodule", None), {}
        if not isinstance(data, FederatedDataModule):
            from lit_fed.data.new_clients import NewClients

            if self.is_built and isinstance(data, NewClients):  # they are served from a checkpoint alone
                self.federation.check_unseen(data.unseen, seen=data.unseen.train.ids is not None)
                return
            raise ConfigError("FederatedModule has no data; pass datamodule=FederatedDataModule(...) to the trainer")
        check_calibration(self.settings.conformal, data, fits=stage == "fit")
        num_rounds = rounds_of_fit(self.trainer) if stage == "fit" else 1
        if stage == "fit":
            self.settings.check_combination(sampling=data.client_sampling, probability=data.sampling_probability)
        if not self.is_built:
            facts = facts_of(self.settings, data, num_rounds)
            if self.searched:
                self._settle_rate(facts, data, stage)
            self.history.fingerprint = data.fingerprint
            self.build(facts, *data.populations, store=data.dataset.new_store(facts.num_clients))
        else:
            self._check_clients(data.populations[0].names)
            if stage == "fit":
                self._fit_again(data, num_rounds)
        self.federation.profile = self.trainer.profiler.profile  # type: ignore[attr-defined]
        self.store.start_from(partial(self.federation.initial_state, data.populations[0].train))
        if data.dataset.is_remote and "client_trainer" not in vars(self.federation):
            self.federation.client_trainer = data.dataset.client_trainer(self, data)
        self.federation.check_unseen(data.populations[1])
        if stage == "fit" and self.trainer.is_global_zero:
            self._say_ahead(data)

    def _say_ahead(self, data: FederatedDataModule) -> None:
        """Print a line on each fact of a fit that its results may be read with."""
        warm, excluded = self.history.warm_start, names_of(data.exclude_clients)
        learned = [] if warm is None else warm.learned_from(excluded)
        if learned:
            notice(
                f"the models of --init_from learned from {few(learned)}, which --data.exclude_clients leaves out: this "
                "run's models hold its influence; only a run from fresh models does not"
            )
        if said := self.federation.idle_clients(data.populations[0].train):
            notice(said)
        if not self.federation.algorithm.in_every_combination:
            self._say_untested(on_nodes=data.dataset.is_remote)
        own, hooks = type(self.settings.algorithm), [one for one in dir(Algorithm) if one[0] != "_"]
        for name in sorted(vars(own).keys() - {one for base in own.__bases__ for one in dir(base)}):
            if name[0] != "_" and (near := nearest(name, hooks, cutoff=0.8)):
                notice(f"nothing of lit_fed calls {own.__name__}.{name}; is it {near[0]}?")

    def _say_untested(self, on_nodes: bool) -> None:
        """Say with what around it the algorithm, whose class does not promise all combinations, is not tested."""
        algorithm, ranks = self.federation.algorithm, self.trainer.world_size
        around = {"wrappers": isinstance(algorithm, AlgorithmWrapper), f"{ranks} ranks": ranks > 1, "nodes": on_nodes}
        if found := [name for name, is_there in around.items() if is_there]:
            said = " and ".join(found)
            notice(f"{self.algorithm_name} is not tested with {said}; the paper index names algorithms that are")

    def _take_stored_rate(self, entry: dict[str, Any] | None) -> None:
        """Take the learning rate that a checkpoint's run has found, in place of `auto`."""
        if self.searched and entry is not None:
            self._take_rate(entry["identity"]["solver"]["lr"])
            if self._trainer is not None and self._trainer.state.fn == "fit":
                self._say_rate()

    def _settle_rate(self, facts: TrainingFacts, data: FederatedDataModule, stage: str) -> None:
        """Search the learning rate ahead of a new run; else a checkpoint that is loaded afterwards has it."""
        self.settings.check_combination(deployed=data.dataset.is_remote)
        if stage != "fit" or self.history.resumes:
            self._take_rate(0.0)
        else:
            from lit_fed.training.learning_rate import best_rate, search

            warm = self.history.warm_start
            open_rate = self.settings.with_lr(self.searched)
            self.trials = search(open_rate, facts, data, self.trainer, None if warm is None else warm.into)
            self._take_rate(best_rate(self.trials, self.algorithm_name))
            self._say_rate()

    def _take_rate(self, lr: float) -> None:
        self.settings = self.settings.with_lr(lr)
        if self.is_built:
            terms = self.federation.terms
            solver = solver_of(self.settings.solver, terms.task, self.facts)
            self.federation.terms = terms._replace(solver=solver)

    def _say_rate(self) -> None:
        """Print the learning rate that was found in place of `auto`."""
        if self.trainer.is_global_zero:
            notice(f"--model.solver.lr is {self.searched}, here {self.settings.solver.lr}")

    def _check_clients(self, names: Sequence[str]) -> None:
        """Refuse other clients than those whose states the module has, by their positions."""
        known, given = self.facts.named, name_digests(names)
        numbered = known is None and given is None and len(names) == self.facts.num_clients
        if not numbered and (known is None or given is None or not torch.equal(known, given)):
            there = self.facts.took_part(names)
            new = [name for name in names if name not in there] or names
            raise ConfigError(
                f"this FederatedModule has the states of {self.facts.num_clients} clients, and the data have "
                f"{len(names)}, such as {new[0]!r}; pass the data of its training, or a new module"
            )

    def _fit_again(self, data: FederatedDataModule, num_rounds: int) -> None:
        """Prepare another fit of a built module: its rounds follow those done, or those of a checkpoint."""
        if self.searched and not self.settings.solver.lr:  # it was built for a test that was refused
            self._settle_rate(facts_of(self.settings, data, num_rounds), data, "fit")
        for one in self.settings.features:
            one.check_terms(self.federation.terms._asdict(), facts_of(self.settings, data, num_rounds))
        done = 0 if self.history.resumes else self.num_rounds_done - self.trainer.global_step
        self.federation.terms = self.federation.terms._replace(num_rounds=done + num_rounds)
        self.federation.schedule_rounds = num_rounds if done else None

    def build(
        self, facts: TrainingFacts, seen: Population | None = None, unseen: Population | None = None,
        store: ClientStore | None = None,
    ) -> None:  # fmt: skip
        """Build the federation for these clients, the store of the seen ones, and the tables of results.

        Args:
            facts: sizes and terms of the training.
            seen: the clients that train; None: the federation alone, which is enough to serve unseen clients.
            unseen: those that are only served.
            store: the store of the seen clients; None: a new one with their states.
        """
        if self.settings.conformal is not None:
            check_target(facts.target, self.settings.conformal, facts.class_names)
        self.facts, self.target, self.is_built = facts, facts.target, True
        self.chosen_metrics = choose_metrics(self.settings.metrics, facts.target)
        warm = self.history.warm_start
        session = Session.of(self.settings, facts, self.device, None if warm is None else warm.into)
        task, network = session.terms.task, self.settings.network
        server = ModuleServer(self, task.frozen, session.shared, source_of(network, task.template_seed))
        self.federation = FederatedRounds(session.algorithm, session.terms, server, session.choose)
        for one in self.settings.features:
            one.start(self.federation)
        if seen is None:
            return
        own = self.federation.new_store(seen.train, self.settings.client_memory_gb * 1e9) if store is None else store
        self.store = self.federation.store = own
        self.chosen_metrics.logged = serving.logged_names(self.federation, seen.train)
        each = self.algorithm.num_models if self.store.has_mixtures else 0, self.chosen_metrics.names
        self.tables = nn.ModuleDict({"seen": ClientTable(seen.num_measured, *each)})
        if unseen is not None:
            self.tables["unseen"] = ClientTable(unseen.num_measured, *each)

    def restore_shared(
        self, path: str | Path, unknown_categories: Literal["error", "zeros"] | None = None
    ) -> TrainingFacts:
        """Take the shared state of a checkpoint, but no seen client's, to serve unseen clients; returns its facts.

        Args:
            path: a checkpoint of this module's run.
            unknown_categories: as of `Table`, for later tables; None: that of the training.

        Raises:
            ConfigError: if the checkpoint cannot be read or is of another run, or the module has a state already.
        """
        if self.is_built:
            raise ConfigError(
                "personalize builds the module from the checkpoint; pass a FederatedModule without a state"
            )
        checkpoint, history = load_checkpoint(Path(path)), self.history
        stored = checkpoint[CHECKPOINT_KEY]
        self._take_stored_rate(stored)
        solver = self.settings.solver
        if solver.lr is None and stored["identity"]["solver"]["lr"] is not None:
            solver = solver.given
        own = {"algorithm": plain_settings(self.algorithm), "solver": plain_settings(solver)}
        kept = stored | {"identity": {name: stored["identity"][name] for name in own}}
        refuse_other_run(kept, history.arguments, own, self.algorithm, place=f"--ckpt_path {path}")
        facts = self._facts_in(stored, f"--ckpt_path {path}")
        if unknown_categories is not None and facts.columns is not None:
            facts = facts._replace(columns=facts.columns._replace(unknown_categories=unknown_categories))
        history.warm_start = WarmStart.found_in(stored)
        self.build(facts)
        own["solver"] = plain_settings(self.federation.terms.solver.given)  # of a module with an optimizer of its own
        refuse_other_run(kept, {}, own, self.algorithm, place=f"--ckpt_path {path}")
        self.federation.schedule_rounds = int(stored["schedule_rounds"])
        self.federation.server.frozen_part.check(stored["frozen"])  # type: ignore[attr-defined] # of a `ModuleServer`
        self._loaded_from = f"--ckpt_path {path}"
        weights = checkpoint["state_dict"].get(f"store.{BUFFER_NAMES['mixture']}")
        self.federation.stored_mean = None if weights is None else weights.mean(0)
        self.load_state_dict(
            {name: leaf for name, leaf in checkpoint["state_dict"].items() if not name.startswith("store.")}
        )
        self._take_thresholds(stored)
        federation, algorithm = self.federation, self.federation.algorithm
        self.stored = StoredStates(
            checkpoint["state_dict"],
            lambda: algorithm.state_init(
                federation.context("init"), federation.server.initial_shared, facts.blank.client(0)
            ),
            alike=not algorithm.state_reads_data,
        )
        federation.store = self.stored  # type: ignore[assignment] # gives states, and takes none
        return facts

    def restore_client(self, path: str | Path, name: str) -> tuple[Tree, str]:
        """Take the shared state of a checkpoint; returns the state that serves a seen client, and its origin in words.

        The state is None if the client cannot be served without data, and the words are the reason.

        Args:
            path: a checkpoint of this module's run.
            name: name of the client.

        Raises:
            ConfigError: as `restore_shared`.
        """
        client_id, federation = self.restore_shared(path).number_of(name), self.federation
        algorithm, ctx, store = federation.algorithm, federation.context("adapt"), self.stored
        if client_id is None:
            return None, f"the checkpoint has no client {name!r} of the training"
        if algorithm.adapt_work(ctx, True) is not None or algorithm.tune_work is not None:
            return None, f"{self.algorithm_name} adapts to a client's samples whenever it serves it"
        if not store.holds(client_id):
            return None, f"the checkpoint does not hold the state of {name!r}, which has not trained or is in a file"
        if self.settings.conformal is not None and client_id not in calibrated(None, self, None).ids:
            return None, f"the checkpoint does not hold the threshold of {name!r} for --model.conformal"
        own = "the client's own" if store.has_trained(client_id) else "an initial one, since the client has not trained"
        return tree.index(store.gather(torch.tensor([client_id]))["state"], 0), f"the shared state and {own}"

    def thresholds_of(self, name: str) -> dict[str, tuple[float, bool]]:
        """The threshold that serves a seen client and whether it is its own, by its name; {} without any."""
        if self.thresholds is None:
            return {}
        client_id = torch.tensor([self.facts.number_of(name)])
        kept, own = self.thresholds.completed(client_id, torch.full((1,), torch.inf, dtype=torch.float64))
        return {name: (float(kept[0]), bool(own[0]))}

    def next_round(self, data: FederatedDataModule, federation: FederatedRounds | None = None) -> list[ClientBlock]:
        """This rank's blocks of the next round: a cohort of the data, of which the federation may select some.

        Args:
            data: the samples, and how many clients are sampled.
            federation: a federation between two rounds; None: that of the module.
        """
        federation = federation or self.federation
        algorithm, ctx, train = federation.algorithm, federation.context("plan"), data.populations[0].train
        secret = ctx.secret if algorithm.hides_cohort else None
        client_ids = data.cohort(
            seed=ctx.seed if secret is None else secret.seed("cohorts"), round_idx=ctx.round_idx,
            available=algorithm.reachable(ctx), over_selection=algorithm.over_selection,
            candidates=getattr(federation.selection, "draw", None),
        )  # fmt: skip
        trainer = self.trainer
        division = {
            "clients_per_block": data.block_size, "rank": trainer.global_rank, "num_ranks": trainer.world_size
        }  # fmt: skip
        if federation.selection is not None:
            with trainer.precision_plugin.val_step_context():
                client_ids = serving.selected(federation, client_ids, train, **division)
        return federation.blocks(client_ids, train, **division)

    def training_step(self, batch: ClientBlock, batch_idx: int) -> None:
        with self.federation.profile("[Federation]local_steps"):
            for num_clients in self.federation.train_block(batch):
                self.tell("on_clients_end", num_clients)

    def tell(self, hook: str, *about: Any) -> None:
        """Call a hook of `FederatedCallback` in all callbacks that have it."""
        for callback in self._trainer.callbacks if self._trainer is not None else ():  # type: ignore[attr-defined]
            if called := getattr(callback, hook, None):
                called(self.trainer, self, *about)

    def on_train_start(self) -> None:
        """Discard an interrupted round, open the folder of client files, and settle what all checkpoints hold."""
        self.federation.discard()
        trainer = self.trainer
        self.store.open(
            clients_folder(trainer.checkpoint_callbacks), Path(trainer.default_root_dir),
            is_global_zero=trainer.is_global_zero, broadcast=trainer.strategy.broadcast,
        )  # fmt: skip
        self._entry = self.history.entry(self.federation, self.facts)
        self.show_lr()

    def on_fit_end(self) -> None:
        """Delete client files of deleted checkpoints; let nodes store what serving their clients needs."""
        self.store.collect()
        if isinstance(self.federation.client_trainer, serving.MeasuresElsewhere):
            self.federation.client_trainer.keep()

    def show_lr(self) -> None:
        """Show the next round's local learning rate to Lightning's learning-rate monitor."""
        optimizer: Any = self.optimizers()
        optimizer.optimizer.param_groups[0]["lr"] = float(self.federation.context("plan").lr)

    def configure_callbacks(self) -> list[Callback]:
        """The callbacks of the features, the same ones for every trainer: some count over several fits."""
        if not self.own_callbacks:
            names = [name for one in self.settings.features for name in one.callbacks]
            names += [] if self.settings.conformal is None else ["PredictionSets"]
            self.own_callbacks = [named("lit_fed.callbacks", name)() for name in names]
        return self.own_callbacks

    def configure_optimizers(self) -> Assign:
        return Assign(self.federation.server.leaves)  # type: ignore[attr-defined] # of a `ModuleServer`

    # ------------------------------------------------------------------ serving
    def measure(
        self, block: ServingBlock, population: Literal["seen", "unseen"], table: ClientTable | None = None,
        split: Literal["train", "val", "test"] = "test",
    ) -> None:  # fmt: skip
        """Serve some clients, predict their samples of a split, add the results to a table (default: theirs)."""
        results: Any = self.tables[population] if table is None else table
        pool = results.pool if self.chosen_metrics.pooled else None
        measured = serving.measure(
            self.federation,
            block,
            seen=population == "seen",
            chosen=self.chosen_metrics,
            pool=pool,
            step=step_of(self.federation.terms.task.own, split),
        )
        with self.federation.profile("[Federation]evaluation"):
            for positions, scores in measured:
                results.update(positions, scores)
                self.tell("on_clients_served", len(positions))

    def on_validation_start(self) -> None:
        """Refuse to serve clients at a learning rate that neither a search nor a checkpoint has decided.

        Raises:
            ConfigError: if it is still open.
        """
        if self.searched and not self.settings.solver.lr:
            raise ConfigError(
                f"--model.solver.lr is {self.searched}, and nothing has decided it; give the --ckpt_path of a run, or "
                "a number"
            )

    def on_test_start(self) -> None:
        self.on_validation_start()
        self.calibrate()

    on_predict_start = on_test_start

    def calibrate(self) -> None:
        """Find the thresholds of prediction sets that the clients' present models need, unless they are known."""
        if self.settings.conformal is not None:
            self.thresholds = calibrated(self.trainer, self, self.trainer.datamodule)  # type: ignore[attr-defined]

    @property
    def calibration_fraction(self) -> float:
        """Share of new clients' samples that decide their thresholds, as in the training; 0 without prediction sets.

        Raises:
            ConfigError: if the training set none apart.
        """
        if self.settings.conformal is None:
            return 0.0
        if self.thresholds is None:
            raise ConfigError(
                f"--model.conformal is {self.settings.conformal:g}, and the training of the checkpoint set no samples "
                "apart; leave it out, or train with --data.calibration_fraction 0.2"
            )
        return self.thresholds.fraction

    def _take_thresholds(self, stored: dict[str, Any]) -> None:
        kept = stored["thresholds"]
        self.thresholds = None if kept is None else Thresholds(**kept)

    def validation_step(self, batch: ServingBlock, batch_idx: int) -> None:
        self.measure(batch, "seen", split=self.trainer.datamodule.evaluation_split)  # type: ignore[attr-defined]

    def test_step(self, batch: ServingBlock, batch_idx: int) -> None:
        self.measure(batch, "seen")

    def predict_step(self, batch: ServingBlock, batch_idx: int) -> serving.BlockPredictions | tuple[()]:
        """Serve a block of clients, all seen or all unseen; () for a block without clients."""
        if not len(batch.client_ids):
            return ()
        responsibilities = self.trainer.datamodule.predicted.responsibilities  # type: ignore[attr-defined]
        predictions = self.predicted(batch, chosen=self.chosen_metrics, responsibilities=responsibilities)
        self.tell("on_clients_served", len(batch.client_ids))
        return predictions

    def predicted(self, block: ServingBlock, **options: Any) -> serving.BlockPredictions:
        """Predictions of clients, all seen or all unseen; thresholds are their own, or else the shared one.

        Args:
            block: at least one client.
            options: further arguments of `serving.predict_block`.
        """
        client_ids, kept = block.client_ids.cpu(), self.thresholds
        if kept is not None and torch.isin(client_ids, kept.ids).all():
            block = block._replace(calibration=None)
        seen = int(client_ids[0]) < self.facts.num_clients
        found = serving.predict_block(self.federation, block, seen=seen, coverage=self.settings.conformal, **options)
        if found.thresholds is None or kept is None:
            return found
        thresholds, owned = kept.completed(client_ids, found.thresholds)
        return found._replace(thresholds=thresholds, owned=owned)

    # ------------------------------------------------------------------ checkpoints
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the entry of lit_fed: identity, history and the facts for serving, which a fit does not change."""
        entry = self._entry or self.history.entry(self.federation, self.facts)
        spent = self.history.spent(self.federation, self.settings.features)
        thresholds = None if self.thresholds is None else self.thresholds._asdict()
        checkpoint[CHECKPOINT_KEY] = entry | {
            "results": dict(self.results), "spent": spent, "thresholds": thresholds,
        }  # fmt: skip
        if (secret := self.federation.terms.secret) is not None:
            checkpoint[CHECKPOINT_KEY]["noise"] = secret.name_beside(*content_of(checkpoint))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another run; take over results and schedule of this one.

        Raises:
            ConfigError: naming what differs, or if the module has no data to build its state from.
        """
        if not self.is_built:
            raise ConfigError(
                "a checkpoint holds states, not data: pass it to a trainer with the data module, as in "
                "trainer.test(module, datamodule=..., ckpt_path=...)"
            )
        self._take_stored_rate(checkpoint.get(CHECKPOINT_KEY))
        self._loaded_from = "the checkpoint" if self._trainer is None else f"--ckpt_path {self._trainer.ckpt_path}"
        self.results = self.history.restore(checkpoint, self.federation, self.settings.features, self._trainer)
        self._take_thresholds(checkpoint[CHECKPOINT_KEY])

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take the states of a checkpoint.

        Raises:
            ConfigError: naming the first one that is missing, or of another shape or type.
        """
        for name, own in (*self.named_parameters(), *self.named_buffers()):
            given = state_dict.get(name, own)
            if (given.is_floating_point(), given.is_complex()) != (own.is_floating_point(), own.is_complex()):
                raise ConfigError(f"{self._loaded_from}: its state {name} is of {given.dtype}, not {own.dtype}; {FIX}")
        try:
            whole(0, 2**31)(int(state_dict.get("rounds", 0)), "the state rounds")
            return super().load_state_dict(state_dict, strict, assign)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[:2][-1].strip()  # the first line of PyTorch's list is a heading
            raise ConfigError(f"{self._loaded_from}: its states are not those of this run: {reason}; {FIX}") from error

    @property
    def earlier(self) -> tuple[TrainingFacts, str] | None:
        """Facts of the training whose models are taken, and their place in messages; None: models are fresh."""
        if self.is_built:
            return self.facts, "this FederatedModule"
        warm, path, option = self.history.warm_start, self.trainer.ckpt_path, "--ckpt_path"
        if path is None and warm is not None and warm.algorithm != OF_LIGHTNING:  # which says nothing of its data
            path, option = warm.path, "--init_from"
        if path is None:
            return None
        stored = load_checkpoint(Path(path), option=option, values=False)[CHECKPOINT_KEY]
        return self._facts_in(stored, f"{option} {path}"), f"{option} {path}"

    def _facts_in(self, stored: dict[str, Any], place: str) -> TrainingFacts:
        """Facts of the training of a checkpoint; `stored` is its entry under `CHECKPOINT_KEY`."""
        try:
            return TrainingFacts.from_plain(stored["serving"], self.settings.target)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error

    # ------------------------------------------------------------------ description
    @property
    def shared(self) -> Tree:
        """The shared state; within a round, that after the last phase."""
        return self.federation.shared

    @property
    def mixture_weights(self) -> Tensor:
        """Mixture weights of all clients, [T, M]; an `AttributeError` if the algorithm has none."""
        return self.store.mixture_weights  # type: ignore[return-value]

    @property
    def num_rounds_done(self) -> int:
        """Completed rounds."""
        return self.federation.server.rounds_done

    @property
    def num_rounds(self) -> int:
        """Rounds of the fit, those done before a resume included."""
        return self.federation.terms.num_rounds

    def __repr__(self) -> str:
        """Algorithm, solver and network with their settings; once it is built, parameters and clients."""
        said = {"algorithm": _with_settings(self.settings.algorithm, "all")}
        solver = self.federation.terms.solver.given if self.is_built else self.settings.solver
        said["solver"] = _with_settings(solver, "changed")
        said["network"] = _network(self) if self.is_built else _made_by(self.settings.network)
        said["clients"] = (
            _clients(self) if self.is_built else "not known yet: the trainer builds the states from the data"
        )
        lines = [_wrapped(f"  {name + ':':<11}{text}") for name, text in said.items()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


def rounds_of_fit(trainer: Trainer) -> int:
    """Rounds of a fit, from its limits in epochs and steps.

    Raises:
        ConfigError: if no callback is the server.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if not any(getattr(one, "is_server", False) for one in callbacks):
        raise ConfigError(
            "a fit without a server; take lit_fed.FederatedTrainer, which brings one, instead of Lightning's"
        )
    limits = [one for one in (trainer.max_epochs, trainer.max_steps) if one not in (None, -1)]
    return max(min(limits, default=1), 1)


def facts_of(settings: ModelSettings, data: FederatedDataModule, num_rounds: int) -> TrainingFacts:
    """The facts that a federation is built from for these data.

    Raises:
        ConfigError: if the settings do not suit the data.
    """
    settings.check_combination(dataset=(type(data.dataset).__name__, data.dataset.divided_by))
    usual, solver, names = settings.algorithm.participation.weighting, settings.solver, data.populations[0].names
    usual = "uniform" if data.client_sampling == "size" else usual
    for one in settings.features:
        usual = one.usual_weighting() or usual
    seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
    facts = data.facts(weighting=settings.weighting or usual, seed=seed, num_rounds=num_rounds)
    facts = facts._replace(of_clients=solver.of_clients(names, data.batch_size))
    if settings.loss is not None and settings.loss.counts_classes:
        learned = (*facts.learned, "the class frequencies of --model.loss")
        facts = facts._replace(class_counts=data.class_counts(), learned=learned)
    share = 1.0 if data.client_sampling == "poisson" else facts.sampling_probability
    for one in settings.features:
        one.check_clients(facts, round(share * facts.num_clients))
        facts = one.more_facts(facts, data)
        if one.weight_cap is not None:
            facts = facts._replace(capped_samples=data.capped_samples(one.weight_cap))
    return facts


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False)


def _with_settings(part: Any, shown: Literal["all", "changed"]) -> str:
    """A dataclass with all settings, or with its rate and those that differ from the defaults."""
    usual = vars(type(part)()) if shown == "changed" else {}
    settings = [
        f"{field.name}={getattr(part, field.name)!r}"
        for field in dataclasses.fields(part)
        if field.init and (field.name == "lr" or (field.name, getattr(part, field.name)) not in usual.items())
    ]
    return f"{type(part).__name__}({', '.join(settings)})"


def _made_by(factory: Any) -> str:
    if isinstance(factory, partial):
        settings = [*map(repr, factory.args), *(f"{name}={value!r}" for name, value in factory.keywords.items())]
        return f"{_made_by(factory.func)}({', '.join(settings)})"
    return getattr(factory, "__name__", type(factory).__name__)


def _network(module: FederatedModule) -> str:
    network = module.federation.terms.task.network
    sizes = dict.fromkeys((True, False), 0)
    for parameter in network.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    frozen = f", {sizes[False]:,} frozen" if sizes[False] else ""
    many = f", {module.algorithm.num_models} models" if module.algorithm.num_models > 1 else ""
    return f"{type(network).__name__}, {sizes[True]:,} parameters trained{frozen}{many}"


def _clients(module: FederatedModule) -> str:
    facts = module.facts
    mean = facts.total_samples / facts.num_clients
    samples = f"{facts.total_samples:,} samples, of a client {mean:,.0f} on average and {facts.most_samples:,} at most"
    return f"{facts.num_clients:,} in training with {samples}"
