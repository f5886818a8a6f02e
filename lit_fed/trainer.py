"""A Lightning trainer whose epochs are federated rounds: epoch = round, batch = block of clients, global step = rounds.

Lightning has no public way to change its loops; the private names used here are listed, and tested, in
`tests/training/test_lightning_contract.py`.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.optimization.manual import _ManualOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch import nn

from lit_fed.callbacks.checkpoint import keep_apart, last_checkpoint
from lit_fed.callbacks.defaults import callbacks_of
from lit_fed.data.data_sets.base import names_of
from lit_fed.data.module import FederatedDataModule, Predicted, SplitName
from lit_fed.errors import ConfigError, notice
from lit_fed.system.files import owner_only
from lit_fed.system.packages import DataFrame
from lit_fed.training.checkpoint import load_checkpoint, with_atomic_checkpoints
from lit_fed.training.hooks import federated
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import check_table_file, prediction_table, source_columns, write_predictions
from lit_fed.training.profiler import RoundProfiler
from lit_fed.training.refusals import refuse_arguments, refuse_callbacks, refuse_remote, rounds_of
from lit_fed.training.round_logger import KEYWORDS, RoundLogger, writing
from lit_fed.training.stopping import StopRequests, Terminated, end_with_parent
from lit_fed.training.strategy import SECONDS_OF_A_COLLECTIVE, FederatedStrategy
from lit_fed.training.thresholds import said_of

__all__ = ["FederatedStrategy", "FederatedTrainer"]

NOW_FUNCTIONS = {"client_table", "export", "personal_model", "personalize", "plot_mixtures", "plot_rounds"}
"""Former methods of the trainer, which are functions of `lit_fed` that take it first."""


def is_several(given: Any) -> bool:
    """Whether a number or a list of devices or machines is of more than one; `auto` is left to Lightning."""
    if isinstance(given, str) and "," in given:
        given = [one for one in given.split(",") if one]
    if isinstance(given, list | tuple):
        return len(given) > 1
    return given not in (None, 0, 1, "0", "1", "auto")


class FederatedTrainer(Trainer):
    """Lightning's trainer with federated loops: `max_epochs` counts rounds, `global_step` is the rounds done.

    The arguments are those of `lightning.pytorch.Trainer`; those that cut batches or touch gradients are refused. The
    callbacks of a federated run (server, evaluation, report, progress, `last.ckpt`) are added to the given ones.
    Without a logger the run is stored in `runs/<algorithm>/version_<n>/`.

    Args:
        timeout: seconds that a rank waits for the others in a collective of `fed_ddp`; then the run ends on every rank.

    Attributes:
        given: the other arguments, by name, as they were given.
    """

    callbacks: list[Callback]  # Lightning sets it

    def __init__(self, *args: Any, timeout: float = SECONDS_OF_A_COLLECTIVE, **kwargs: Any) -> None:
        refuse_arguments(kwargs)
        self.given = dict(kwargs)
        kwargs["max_epochs"] = rounds_of(kwargs)
        # every rank takes its slice of the cohort itself, and each round has its own data loader
        kwargs["use_distributed_sampler"] = False
        kwargs["reload_dataloaders_every_n_epochs"] = 1
        kwargs["inference_mode"] = False  # adaptation trains inside validation
        several = any(is_several(kwargs.get(name)) for name in ("devices", "num_nodes"))
        if several and kwargs.get("strategy") in (None, "auto") and not _IS_INTERACTIVE:  # notebooks fork their ranks
            kwargs["strategy"] = "fed_ddp"  # Lightning's choice, ddp, names no lost rank
        kwargs["num_sanity_val_steps"] = 0
        if kwargs.get("log_every_n_steps") is None:
            kwargs["log_every_n_steps"] = 1
        kwargs["plugins"] = with_atomic_checkpoints(kwargs.get("plugins"))
        kwargs["callbacks"] = callbacks_of(kwargs)
        kwargs["enable_model_summary"] = False  # Lightning's; see `callbacks_of`
        kwargs["default_root_dir"] = kwargs.get("default_root_dir") or "runs"
        if kwargs.get("logger") in (None, True):
            kwargs["logger"] = RoundLogger(str(kwargs["default_root_dir"]))
        if kwargs.get("profiler") == "simple":
            kwargs["profiler"] = RoundProfiler()
        try:
            super().__init__(*args, **kwargs)
        except (TypeError, ValueError, ModuleNotFoundError) as error:
            raise ConfigError(f"Lightning's trainer refuses its arguments: {error}") from error
        refuse_callbacks(self.callbacks)
        self._signal_connector: Any = StopRequests(self)
        self.fit_loop = FederatedLoop(self, self.fit_loop, self._signal_connector)
        if isinstance(self.strategy, FederatedStrategy):
            self.strategy.timeout = timeout
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:
            end_with_parent()

    def fit(
        self,
        model: LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: _PATH | None = None,
        weights_only: bool | None = None,
        *,
        resume_with_changes: bool = False,
        init_from: str | None = None,
    ) -> None:
        """Run federated rounds, `max_epochs` of them.

        Args:
            model: a `FederatedModule`.
            train_dataloaders: the data module, where it is not given by name.
            val_dataloaders: nothing.
            datamodule: the data module.
            ckpt_path: checkpoint of the run to resume, or `last` of the newest run of its name, which goes on in its
                folder; null starts a new run.
            weights_only: refuse checkpoints with anything but tensors and plain types.
            resume_with_changes: resume with another learning rate, schedule or `clip_norm` than the checkpoint's;
                config.yaml and summary.json list the changes.
            init_from: checkpoint of another run; a new run with its own settings starts from its shared models. Null:
                fresh models.

        Raises:
            ConfigError: if an argument is invalid, before anything is computed.
            KeyboardInterrupt: after Ctrl-C.
            Terminated: after a SIGTERM to any rank, at the end of the round.
            LostRanksError: if another rank ended, or exceeded the timeout.
        """
        module = federated(model)
        self._refuse(train_dataloaders, val_dataloaders)
        if ckpt_path is None and self.global_step and module is not self.lightning_module:
            raise ConfigError(
                f"this trainer has done {self.global_step} rounds of another module, and counts on from them; make a "
                "new FederatedTrainer for each run"
            )
        ckpt_path = self._found(ckpt_path, module, goes_on=True)
        note = module.history.begin(
            ckpt_path, init_from, resume_with_changes=resume_with_changes, num_models=module.algorithm.num_models,
            is_built=module.is_built,
        )  # fmt: skip
        if note and self.is_global_zero:
            sys.stderr.write(note)
        with (
            owner_only(module.settings.is_private),
            writing(self.loggers, module.algorithm_name),
            self._interrupts_passed_on(),
        ):
            own, path = self._round_logger, None if ckpt_path is None else Path(ckpt_path)
            if path is not None and (own is None or own.holds(path)):
                self._continue_wandb(path)
            elif own is not None:
                own.refuse_other_run()
            if not self.loggers:
                keep_apart(self, path)
            super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only)
        self._signal_connector.end()

    def _run(self, model: Any, ckpt_path: _PATH | None = None, *args: Any, **kwargs: Any) -> Any:
        """Set `ckpt_path` ahead of the set-up, which reads the data in the terms of the checkpoint."""
        self._checkpoint_connector._ckpt_path = ckpt_path
        return super()._run(model, ckpt_path, *args, **kwargs)

    @property
    def _round_logger(self) -> RoundLogger | None:
        """The logger of the run's folder; None without one."""
        return next((one for one in self.loggers if isinstance(one, RoundLogger)), None)

    def _refuse(self, *loaders: Any) -> None:
        """Refuse callbacks that were added later, as by a `Tuner`, and data loaders: rounds are made of clients.

        Raises:
            ConfigError: naming what to give instead.
        """
        refuse_callbacks(self.callbacks)
        for one in loaders:
            if one is not None and not isinstance(one, LightningDataModule):
                raise ConfigError(
                    f"dataloaders are a {type(one).__name__}, and clients come from a data module; pass "
                    "datamodule=FederatedDataModule(...)"
                )

    def _continue_wandb(self, checkpoint: Path) -> None:
        """Continue the W&B run of a checkpoint."""
        for logger in (one for one in self.loggers if isinstance(one, WandbLogger)):
            from lit_fed.callbacks.wandb import continue_run

            continue_run(logger, checkpoint)

    def _found(self, ckpt_path: _PATH | None, module: FederatedModule, goes_on: bool = False) -> _PATH | None:
        """The path of a checkpoint, which `last` and `previous` name by the run's folder.

        Raises:
            ConfigError: if there is none.
        """
        logger, named = self._round_logger, isinstance(ckpt_path, str) and ckpt_path in KEYWORDS
        if named and logger is None:
            raise ConfigError(
                f"ckpt_path is {ckpt_path}, which is looked for in the folder of a RoundLogger; give a path"
            )
        if ckpt_path is None or logger is None:
            return ckpt_path
        path = logger.find(str(ckpt_path), module.algorithm_name) if named else Path(ckpt_path)
        if goes_on and (named or logger.holds(path)):
            folder = path.parent.parent if named else Path(logger.log_dir)
            logger.go_on(folder, load_checkpoint(path, resumable=True, values=False)["global_step"])
        return path

    def validate(self, *args: Any, verbose: bool = False, **kwargs: Any) -> Any:
        """Measure the clients on the validation split, or without one on the test split; the report prints a table."""
        kwargs |= self._evaluated("validate", args, kwargs)
        with self._with_mode(args, kwargs), writing(self.loggers), self._interrupts_passed_on():
            return super().validate(*args, verbose=verbose, **kwargs)  # type: ignore[misc]

    def test(self, *args: Any, verbose: bool = False, **kwargs: Any) -> Any:
        """Measure the clients on the test split; the report prints a table and completes the run's folder."""
        kwargs |= self._evaluated("test", args, kwargs)
        with self._with_mode(args, kwargs), writing(self.loggers), self._interrupts_passed_on():
            return super().test(*args, verbose=verbose, **kwargs)  # type: ignore[misc]

    def _evaluated(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The argument `ckpt_path` of a test or a validation, if it is a word; says if nothing was trained."""
        given = dict(zip(("model", "dataloaders", "ckpt_path"), args, strict=False)) | kwargs
        self._refuse(given.get("dataloaders"))
        path, model = given.get("ckpt_path"), given.get("model") or self.lightning_module
        self._say_untrained(name, model, path)
        return {"ckpt_path": self._found(path, federated(model))} if kwargs.get("ckpt_path") in KEYWORDS else {}

    def _say_untrained(self, name: str, model: LightningModule | None, ckpt_path: Any) -> None:
        """Say that a command measures models which nothing has trained."""
        module = federated(model)
        done = isinstance(module.settings.network, nn.Module) or (module.is_built and module.num_rounds_done)
        if ckpt_path is None and not done and self.is_global_zero:
            notice(f"{name} without --ckpt_path: of models not yet trained")

    def _with_mode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[None]:
        """The context in which files of a private run are for their owner."""
        model = args[0] if args else kwargs.get("model") or self.lightning_module
        return owner_only(isinstance(model, FederatedModule) and model.settings.is_private)

    @contextmanager
    def _interrupts_passed_on(self) -> Iterator[None]:
        """Raise KeyboardInterrupt where Lightning exits with status 1, and name the rank behind a failed collective."""
        try:
            yield
        except Terminated:
            raise
        except RuntimeError as error:
            lost = self.strategy.lost_ranks(error) if isinstance(self.strategy, FederatedStrategy) else None
            if lost is None:
                raise
            raise lost from error
        except SystemExit:
            if self.interrupted:
                last = last_checkpoint(self) if self.state.fn == "fit" else None
                given = "last" if self._round_logger else last
                said = f"{last} has the last finished round; fit(..., ckpt_path='{given}') goes on" if last else ""
                raise KeyboardInterrupt(said) from None
            raise

    def predict(  # type: ignore[override]
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        datamodule: LightningDataModule | None = None,
        return_predictions: bool | None = None,
        ckpt_path: _PATH | None = None,
        weights_only: bool | None = None,
        *,
        population: Literal["seen", "unseen"] = "seen",
        split: SplitName = "test",
        output: str | None = None,
        keep: str | list[str] | None = None,
        responsibilities: bool = False,
    ) -> DataFrame | None:
        """Serve the clients of a run, as in its test, and predict each of their samples.

        Args:
            model: a `FederatedModule`.
            dataloaders: the data module, where it is not given by name.
            datamodule: the data module.
            return_predictions: return the table.
            ckpt_path: checkpoint of the run, or `last`; null takes the model as it is.
            weights_only: refuse checkpoints with anything but tensors and plain types.
            population: clients in training (`seen`) or held out of it (`unseen`), if the test measures them.
            split: predicted samples.
            output: `.csv` or `.parquet` file for the table: a row for each sample, by client and in the order of the
                client's split, with the probability of every class, or for regression the predicted value; masks are
                written as PNG files beside it. Null writes
                none in Python, and on the command line `predictions.csv` in the run's folder.
            keep: columns of the table that are copied into the predictions.
            responsibilities: of a mixture, write the posterior probability of each component for each sample, given
                its label.

        Returns:
            The table, see `prediction_table`, on rank zero; None elsewhere.

        Raises:
            ConfigError: if the file cannot be written, or there are no such clients, samples, columns or components.
        """
        from lit_fed.callbacks.served_clients import ServedClients

        path = None if output is None else check_table_file(output)
        data = datamodule if dataloaders is None else dataloaders
        if not isinstance(data, FederatedDataModule):
            raise ConfigError("predict has no data; pass datamodule=FederatedDataModule(...)")
        refuse_remote(data, "predict")
        cells = data.kept(names_of(keep or ()))
        data.predicted = Predicted(population, split, responsibilities=responsibilities)
        served = ServedClients()
        self.serve(model, data, ckpt_path, weights_only, into=served)
        if not self.is_global_zero:
            return None
        module = federated(self.lightning_module)
        clients: Any = data.seen if population == "seen" else data.unseen
        source = source_columns(served.client_ids, clients, split, cells)
        names = dict(zip(clients.train.client_ids.tolist(), clients.names, strict=False))
        sys.stdout.write(said_of(module.settings.conformal, [served]))
        table = prediction_table(served, names, module.facts, source)
        if path is not None:
            with owner_only(module.settings.is_private):
                write_predictions(table, path)
            sys.stdout.write(f"predictions: {path}\n")
        return None if return_predictions is False else table

    def serve(
        self, model: LightningModule | None, data: LightningDataModule, ckpt_path: _PATH | None = None,
        weights_only: bool | None = None, *, into: Callback | None = None,
    ) -> list[Any]:  # fmt: skip
        """Serve the clients of a data module by Lightning's loop of predictions, without a table.

        Args:
            model: a `FederatedModule`.
            data: the data module, or unseen clients.
            ckpt_path: checkpoint of the run; None takes the model as it is.
            weights_only: refuse checkpoints with anything but tensors and plain types.
            into: callback that collects the blocks of served clients; None: they are returned.
        """
        also = [] if into is None else [into]
        callbacks: list[Callback] = self.callbacks
        callbacks += also
        try:
            module = federated(model or self.lightning_module)
            with owner_only(module.settings.is_private), self._interrupts_passed_on():
                self._refuse()
                path = self._found(ckpt_path, module)
                self._say_untrained("predict", module, path)
                return super().predict(model, None, data, into is None, path, weights_only) or []
        finally:
            for one in also:
                callbacks.remove(one)

    def __getattr__(self, name: str) -> Any:
        """Say where a method is that this trainer had.

        Raises:
            AttributeError: always.
        """
        if name in NOW_FUNCTIONS:
            raise AttributeError(f"trainer.{name} is now a function: lit_fed.{name}(trainer, ...)")
        return super().__getattribute__(name)  # with the error of Python, or of a property

    def save_checkpoint(self, filepath: _PATH, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint, and delete client files that only its predecessor needed."""
        module: Any = self.lightning_module  # without one, Lightning says what is missing
        if getattr(module, "is_built", False):
            module.calibrate()
        store: Any = getattr(module, "store", None)
        in_memory = getattr(store, "files", None) is None
        with nullcontext() if in_memory else store.saving(Path(filepath), self.is_global_zero):
            super().save_checkpoint(filepath, *args, **kwargs)

    @property
    def log_dir(self) -> str | None:
        own = [logger.log_dir for logger in self.loggers if isinstance(logger, RoundLogger)]
        return own[0] if own else super().log_dir if self.loggers else None


class ClientLoop(_ManualOptimization):
    """One block of clients; the last of a phase is followed by the server's step, the last of a round by the commit."""

    def advance(self, kwargs: OrderedDict[str, Any]) -> None:
        """Train the block and take the server's step, where Lightning counts optimizer steps."""
        super().advance(kwargs)
        module: Any = self.trainer.lightning_module
        block = kwargs["batch"]
        if block.ends_phase:
            module.tell("on_phase_reduce")
        if block.ends_round:
            module.record = module.federation.commit()
            module.show_lr()


class RoundLoop(_TrainingEpochLoop):
    """One round."""

    def __init__(self, trainer: Trainer, min_steps: int | None = None, max_steps: int = -1) -> None:
        super().__init__(trainer, min_steps, max_steps)
        self.manual_optimization = ClientLoop(trainer)

    @property
    def done(self) -> bool:
        """Whether the round is complete; a request to stop waits for it."""
        return self._is_training_done and self._is_validation_done

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        return self._num_ready_batches_reached() and super()._should_check_val_fx(data_fetcher)

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: the ranks compare their requests once per round, see `StopRequests`."""

    def _should_accumulate(self) -> bool:
        """Whether the logged step stays: it advances once per round."""
        return not self._num_ready_batches_reached()

    def reset(self) -> None:
        """Replay a round from its start if the checkpoint was written inside it: none of it is committed."""
        super().reset()
        if self.restarting and 0 < self.batch_progress.current.ready < self.trainer.num_training_batches:
            self.batch_progress.reset_on_run()


class FederatedLoop(_FitLoop):
    """All rounds."""

    def __init__(self, trainer: Trainer, stock: _FitLoop, stop_requests: StopRequests) -> None:
        super().__init__(trainer, min_epochs=stock.min_epochs, max_epochs=stock.max_epochs)
        self._stop_requests = stop_requests
        self.epoch_loop = RoundLoop(trainer, stock.epoch_loop.min_steps, stock.epoch_loop.max_steps)

    def on_advance_end(self) -> None:
        """End the round, and the run if requested: the checkpoint is written by now."""
        super().on_advance_end()
        self._stop_requests.agree()

    @property
    def done(self) -> bool:
        """Whether all rounds are done, or an early end was agreed."""
        return self._stop_requests.agreed or super().done
