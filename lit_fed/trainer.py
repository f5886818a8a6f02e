"""A Lightning trainer whose epochs are federated rounds: epoch = round, batch = block of clients, global step = rounds.

Lightning has no public way to change its loops; the private names used here are listed, and tested, in
`tests/training/test_lightning_contract.py`.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.optimization.manual import _ManualOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch import Tensor

from lit_fed.callbacks.defaults import callbacks_of
from lit_fed.callbacks.report import client_table, populations_of, print_table
from lit_fed.callbacks.served_clients import ServedClients, served_in_words, unseen_tables
from lit_fed.core import tree
from lit_fed.core.types import ClientBlock, Tree
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule, Predicted
from lit_fed.data.new_clients import NewClients
from lit_fed.errors import ConfigError, notice
from lit_fed.rounds import FederatedRounds
from lit_fed.system.packages import DataFrame
from lit_fed.training.checkpoint import load_checkpoint, with_atomic_checkpoints
from lit_fed.training.export import PersonalModel, check_program_file, personal_model
from lit_fed.training.hooks import data_of, federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import (
    check_new_folder,
    check_table_file,
    check_table_format,
    new_folder,
    prediction_table,
    write_table,
)
from lit_fed.training.peft_folder import save_client
from lit_fed.training.refusals import refuse_arguments, refuse_callbacks, refuse_remote, rounds_of
from lit_fed.training.round_logger import RoundLogger, writing
from lit_fed.training.stopping import StopRequests, Terminated, end_with_parent
from lit_fed.training.strategy import SECONDS_OF_A_COLLECTIVE, FederatedStrategy

__all__ = ["FederatedStrategy", "FederatedTrainer"]

Unknown = Literal["error", "zeros"] | None


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
    """

    def __init__(self, *args: Any, timeout: float = SECONDS_OF_A_COLLECTIVE, **kwargs: Any) -> None:
        refuse_arguments(kwargs)
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
        try:
            super().__init__(*args, **kwargs)
        except (TypeError, ValueError, ModuleNotFoundError) as error:
            raise ConfigError(f"Lightning's trainer refuses its arguments: {error}") from error
        refuse_callbacks(self.callbacks)  # type: ignore[attr-defined]
        self.fit_loop = FederatedLoop(self, self.fit_loop)
        self._signal_connector: Any = StopRequests(self)
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
            ckpt_path: checkpoint of the run to resume, or `last` on the command line; null starts a new run.
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
        note = module.history.begin(
            ckpt_path, init_from, resume_with_changes=resume_with_changes, num_models=module.algorithm.num_models,
            is_built=module.is_built,
        )  # fmt: skip
        if note and self.is_global_zero:
            sys.stderr.write(note)
        with writing(self.loggers, module.algorithm_name), self._interrupts_passed_on():
            super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only)
        self._signal_connector.end()

    def validate(self, *args: Any, verbose: bool = False, **kwargs: Any) -> Any:
        """Measure the clients on the validation split, or without one on the test split; the report prints a table."""
        with writing(self.loggers), self._interrupts_passed_on():
            return super().validate(*args, verbose=verbose, **kwargs)  # type: ignore[misc]

    def test(self, *args: Any, verbose: bool = False, **kwargs: Any) -> Any:
        """Measure the clients on the test split; the report prints a table and completes the run's folder."""
        with writing(self.loggers), self._interrupts_passed_on():
            return super().test(*args, verbose=verbose, **kwargs)  # type: ignore[misc]

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
                raise KeyboardInterrupt from None
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
        split: Literal["train", "val", "test"] = "test",
        output: str | None = None,
    ) -> DataFrame | None:
        """Serve the clients of a run, as in its test, and predict each of their samples.

        Args:
            model: a `FederatedModule`.
            dataloaders: the data module, where it is not given by name.
            datamodule: the data module.
            return_predictions: return the table.
            ckpt_path: checkpoint of the run, or `last` on the command line; null takes the model as it is.
            weights_only: refuse checkpoints with anything but tensors and plain types.
            population: clients in training (`seen`) or held out of it (`unseen`), if the test measures them.
            split: predicted samples.
            output: `.csv` or `.parquet` file for the table: a row for each sample, by client and in the order of the
                client's split, with the probability of every class, or for regression the predicted value. Null writes
                none in Python, and on the command line `predictions.csv` in the run's folder.

        Returns:
            The table, see `prediction_table`, on rank zero; None elsewhere.

        Raises:
            ConfigError: if the file cannot be written, or there are no such clients or samples.
        """
        path = None if output is None else check_table_file(output)
        data = datamodule if dataloaders is None else dataloaders
        if not isinstance(data, FederatedDataModule):
            raise ConfigError("predict has no data; pass datamodule=FederatedDataModule(...)")
        refuse_remote(data, "predict")
        data.predicted = Predicted(population, split)
        served = ServedClients()
        with self._also(served), self._interrupts_passed_on():
            super().predict(model, None, data, False, ckpt_path, weights_only)
        if not self.is_global_zero:
            return None
        module = federated(self.lightning_module)
        clients: Any = data.seen if population == "seen" else data.unseen
        table = prediction_table(served, clients.names, clients.train.first_id, module.target, module.facts.class_names)
        if path is not None:
            write_table(table, path)
            sys.stdout.write(f"predictions: {path}\n")
        return None if return_predictions is False else table

    def personalize(
        self,
        model: LightningModule,
        ckpt_path: str | None = None,
        clients: str = "",
        output: str = "",
        format: Literal["csv", "parquet"] = "csv",
        unknown_categories: Unknown = None,
    ) -> DataFrame | None:
        """Serve new clients from a checkpoint: write their adapted states, accuracies and predictions.

        Args:
            model: a `FederatedModule` with the checkpoint's settings, not yet trained or tested.
            ckpt_path: checkpoint of a run, or `last` on the command line.
            clients: folder with a file `<client>.npz` for each new client: x_train and y_train to adapt on, x_test to
                predict, y_test to measure; the last two are optional. Inputs are as in a folder of clients: uint8
                pixels or numbers in 0..1 if the training normalised its inputs. After training on a `Table` also a
                .csv, .csv.gz or .parquet file with its columns: rows without a label, or with `test` in a column
                `split`, are predicted; if every row has a label and there is no column `split`, a fifth of each
                client's rows is held out and measured. After training on pictures with named classes also a folder of
                pictures for each client; after training on masks its `images`, of which those with one in `masks` are
                adapted on. Several inputs are `<name>_train` and `<name>_test` in place of x_train and x_test.
            output: new or empty folder for clients.csv, predictions and `states/<client>.pt`.
            format: file format of the predictions.
            unknown_categories: a text that no training row of a table holds is an `error`, or `zeros` in all inputs of
                its column; null: as in the training.

        Returns:
            The table of clients on rank zero; None elsewhere.

        Raises:
            ConfigError: if the checkpoint, a client's file or the folder is invalid, before anything is computed.
        """
        if not output:
            raise ConfigError("--output is not set; give a new folder for the results")
        folder = check_new_folder(output)
        check_table_format(format)
        if ckpt_path is None:
            raise ConfigError("personalize serves clients from a checkpoint; give ckpt_path")
        module = federated(model)
        data = self._unseen_clients(module, ckpt_path, clients, unknown=unknown_categories)
        with new_folder(folder, owner=self.is_global_zero) as partial:
            served = ServedClients(partial / "states")
            with self._also(served), self._interrupts_passed_on():
                super().predict(module, datamodule=data, return_predictions=False)
            if not self.is_global_zero:
                return None
            table, predictions, results = unseen_tables(served, data, module)
            write_table(table, partial / "clients.csv", private=module.settings.privacy is not None)
            write_table(predictions, partial / f"predictions.{format}")
        if results:
            print_table(results, "unseen clients", module.target.metric, module.chosen_metrics.names)
        sys.stdout.write(f"{served_in_words(served, data)}results: {folder}\n")
        return table

    def personal_model(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        ckpt_path: _PATH | None = None,
        client: str = "",
        clients: str = "",
        weights_only: bool | None = None,
        unknown_categories: Unknown = None,
    ) -> PersonalModel | None:
        """Serve one client, as in the test of the run, and return its personal model as a plain module.

        Args:
            model: a `FederatedModule`; with `clients`, one that has not been trained or tested.
            datamodule: the data module; not needed with `clients`.
            ckpt_path: checkpoint of the run; None takes the model as it is.
            client: name of the client, seen or unseen, or else its number.
            clients: unseen clients as for `personalize`, of which `client` is one; they need a checkpoint.
            weights_only: refuse checkpoints with anything but tensors and plain types.
            unknown_categories: as for `personalize`.

        Returns:
            The module, on the CPU, on rank zero; None elsewhere.

        Raises:
            ConfigError: if there is no such client or its model cannot be traced.
        """
        served = self._serve_one(model, datamodule, ckpt_path, client, clients, weights_only, unknown_categories)
        return None if served is None else personal_model(*served)

    def _serve_one(
        self, model: LightningModule, data: Any, ckpt_path: _PATH | None, client: str, clients: str,
        weights_only: bool | None, unknown: Unknown,
    ) -> tuple[FederatedRounds, TrainingFacts, Tree, Tensor, str] | None:  # fmt: skip
        """Serve one client; the arguments of `personal_model` of `lit_fed.training.export`, on rank zero."""
        module = federated(model)
        if clients:
            if ckpt_path is None:
                raise ConfigError("unseen clients are served from a checkpoint; give ckpt_path")
            data = self._unseen_clients(module, str(ckpt_path), clients, client, unknown)
            ckpt_path = None  # it has been restored
        elif isinstance(data, FederatedDataModule):
            data.predicted = Predicted(client=client)
        else:
            raise ConfigError(
                "there are no clients; pass datamodule=FederatedDataModule(...) or a folder of unseen clients"
            )
        with self._interrupts_passed_on():
            blocks: Any = super().predict(module, None, data, True, ckpt_path, weights_only)
        served = next((block for block in blocks if block), None)
        if served is None:
            return None
        example = (data.seen or data.unseen).train.x[:1]
        return module.federation, module.facts, tree.index(served.states, 0), example, client

    def export(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        ckpt_path: _PATH | None = None,
        weights_only: bool | None = None,
        *,
        client: str = "",
        clients: str = "",
        format: Literal["pt", "onnx", "peft"] = "pt",
        output: str = "",
        unknown_categories: Unknown = None,
        raw_columns: bool = False,
    ) -> PersonalModel | None:
        """Write a client's personal model as a program that runs without lit_fed, or its adapters for peft.

        The program takes a batch of inputs, in 0..1 if the training normalised its inputs, and returns the probability
        of every class, or for regression the predicted value.

        Args:
            model: a `FederatedModule`; with `clients`, one that has not been trained or tested.
            datamodule: the data module; not needed with `clients`.
            ckpt_path: checkpoint of the run, or `last` on the command line; null takes the model as it is.
            weights_only: refuse checkpoints with anything but tensors and plain types.
            client: name of the client in `clients.csv`, seen or unseen, or else its number `client_id` in the table of
                `predict`.
            clients: unseen clients as for `personalize`, a folder or a table; `client` is one of them, without .npz.
            format: `pt` for `torch.export.load`, `onnx`, or `peft` for the adapters of `--model.lora_rank`.
            output: `.pt2` or `.onnx` file, or a new folder for `peft`.
            unknown_categories: as for `personalize`.
            raw_columns: after training on a table, take its columns: numbers, numbers of categories, NaN where a value
                is missing; the program encodes them. Else it takes the encoded inputs.

        Returns:
            The model as a module, on rank zero; None elsewhere, and for `peft`.

        Raises:
            ConfigError: if the file cannot be written, there is no such client or its model cannot be traced.
        """
        if not output:
            raise ConfigError("--output is not set; give a file that ends in .pt2, or with --format onnx in .onnx")
        path = check_program_file(output, format)
        if not clients:
            refuse_remote(datamodule, "export")
        served = self._serve_one(model, datamodule, ckpt_path, client, clients, weights_only, unknown_categories)
        if served is None:
            return None
        exported = save_client(path, format, *served, raw_columns=raw_columns)
        sys.stdout.write(f"model: {path}\n")
        return exported

    def _unseen_clients(
        self, module: FederatedModule, ckpt_path: str, clients: str, only: str | None = None, unknown: Unknown = None
    ) -> NewClients:
        """Restore a checkpoint to serve new clients; notes which of them took part in the training."""
        checkpoint = load_checkpoint(Path(ckpt_path))
        facts = module.restore_shared(checkpoint, unknown)
        data = NewClients(clients, facts, only)
        known = facts.took_part(data.unseen.names if only is None else [only])
        if known and self.is_global_zero:
            notice(
                f"{', '.join(known)} took part in the training; --clients serves new clients, so the stored state is "
                "not used. predict, and export without --clients, use it; in a federation `lit-fed client predict`"
            )
        return data

    def client_table(self) -> DataFrame:
        """One row per measured client with its last results, as in the run's clients.csv.

        Raises:
            ConfigError: if nothing was measured yet.
        """
        module: Any = self.lightning_module
        if not isinstance(module, FederatedModule) or not module.client_rows:
            raise ConfigError("no client was measured yet; call trainer.fit or trainer.test first")
        return client_table(populations_of(data_of(self)), module)

    def plot_mixtures(self) -> Any:
        """A figure of matplotlib: the mixture weights of each seen client, above its true group where known.

        Raises:
            ConfigError: if the algorithm has no mixture weights, or nothing was measured yet.
        """
        from lit_fed.pictures.run import mixtures_figure

        clients = self.client_table()
        if "pi_0" not in clients:
            name = type(federated(self.lightning_module).settings.algorithm).__name__
            raise ConfigError(f"{name} has no mixture weights to draw; take a mixture, such as FedEM")
        return mixtures_figure(clients)

    def plot_rounds(self, metric: str = "accuracy") -> Any:
        """A figure of matplotlib: a metric of seen and unseen clients at every evaluation, from the run's metrics.csv.

        Args:
            metric: `accuracy`, for regression `mse`, `loss` or a chosen metric.

        Raises:
            ConfigError: if the run has no folder, or the metric was not measured.
        """
        from lit_fed.pictures.run import rounds_figure

        folder = results_folder(self)
        if folder is None:
            raise ConfigError("the run has no metrics.csv; leave logger=False out, and call trainer.fit first")
        return rounds_figure(folder, metric)

    @contextmanager
    def _also(self, callback: Callback) -> Iterator[None]:
        """Add a callback for the duration of a block."""
        callbacks: list[Callback] = self.callbacks  # type: ignore[attr-defined]
        callbacks.append(callback)
        try:
            yield
        finally:
            callbacks.remove(callback)

    def save_checkpoint(self, filepath: _PATH, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint, and delete client files that only its predecessor needed."""
        store: Any = getattr(self.lightning_module, "store", None)  # without a module, Lightning says what is missing
        in_files = store is not None and store.files is not None
        with store.saving(Path(filepath), self.is_global_zero) if in_files else nullcontext():
            super().save_checkpoint(filepath, *args, **kwargs)

    @property
    def log_dir(self) -> str | None:
        own = [logger.log_dir for logger in self.loggers if isinstance(logger, RoundLogger)]
        return own[0] if own else super().log_dir if self.loggers else None


class ClientLoop(_ManualOptimization):
    """One block of clients; the last of a phase is followed by the server's step, the last of a round by the commit."""

    def advance(self, kwargs: OrderedDict[str, Any]) -> None:
        """Train the block and take the server's step, where Lightning counts optimizer steps."""
        block: ClientBlock = kwargs["batch"]
        super().advance(kwargs)
        module = federated(self.trainer.lightning_module)
        if block.ends_phase:
            module.tell("on_phase_reduce")
        if block.ends_round:
            module.commit_round()


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

    def __init__(self, trainer: Trainer, stock: _FitLoop) -> None:
        super().__init__(trainer, min_epochs=stock.min_epochs, max_epochs=stock.max_epochs)
        self.epoch_loop = RoundLoop(trainer, stock.epoch_loop.min_steps, stock.epoch_loop.max_steps)

    def on_advance_end(self) -> None:
        """End the round, and the run if requested: the checkpoint is written by now."""
        super().on_advance_end()
        self._stop_requests.agree()

    @property
    def done(self) -> bool:
        """Whether all rounds are done, or an early end was agreed."""
        return self._stop_requests.agreed or super().done

    @property
    def _stop_requests(self) -> StopRequests:
        requests: Any = self.trainer._signal_connector
        assert isinstance(requests, StopRequests)
        return requests
