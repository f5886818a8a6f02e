"""Commands beside Lightning's: functions of a trainer, or of its data.

`personalize` and `export` are also commands of the command line.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor

from lit_fed.callbacks import report
from lit_fed.core import tree
from lit_fed.core.conformal import described, fewest
from lit_fed.core.types import Population, Tree
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import ALL, FederatedDataModule, Predicted
from lit_fed.errors import ConfigError, notice
from lit_fed.rounds import FederatedRounds
from lit_fed.serving import BlockPredictions
from lit_fed.system.files import owner_only
from lit_fed.system.names import few
from lit_fed.system.packages import DataFrame
from lit_fed.trainer import FederatedTrainer
from lit_fed.training.hooks import data_of, federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import (
    check_new_folder,
    check_table_format,
    new_folder,
    write_predictions,
    write_table,
)
from lit_fed.training.refusals import refuse_remote
from lit_fed.training.thresholds import said_of

if TYPE_CHECKING:
    from lit_fed.data.new_clients import NewClients
    from lit_fed.training.export import PersonalModel

__all__ = ["client_table", "export", "personal_model", "personalize", "plot_mixtures", "plot_partition", "plot_rounds"]

Unknown = Literal["error", "zeros"] | None


def personalize(
    trainer: FederatedTrainer,
    model: LightningModule,
    ckpt_path: str | None = None,
    clients: str = "",
    output: str = "",
    format: Literal["csv", "parquet"] = "csv",
    unknown_categories: Unknown = None,
    use_states: bool = False,
) -> DataFrame | None:
    """Serve new clients from a checkpoint: write their adapted states, accuracies and predictions.

    Args:
        trainer: the trainer that serves them.
        model: a `FederatedModule` with the checkpoint's settings, not yet trained or tested.
        ckpt_path: checkpoint of a run, or `last` on the command line.
        clients: folder with a file `<client>.npz` for each new client: x_train and y_train to adapt on, x_test to
            predict, y_test to measure; the last two are optional. Inputs are as in a folder of clients: uint8
            pixels or numbers in 0..1 if the training normalised its inputs. After training on a `Table` also a
            .csv, .csv.gz or .parquet file with its columns: rows without a label, or with `test` in a column
            `split`, are predicted; if every row has a label and there is no column `split`, a fifth of each
            client's rows is held out and measured. After training on pictures with named classes also a folder of
            pictures for each client; after training on masks its `images`, of which those with one in `masks` are
            adapted on. After training on texts a folder of texts, see `HuggingFace`. Several inputs are `<name>_train`
            and `<name>_test` in place of x_train and x_test.
        output: new or empty folder for clients.csv, predictions and `states/<client>.pt`.
        format: file format of the predictions.
        unknown_categories: a text that no training row of a table holds is an `error`, or `zeros` in all inputs of
            its column; null: as in the training.
        use_states: the clients took part in the training; serve them by their states in the checkpoint.

    Returns:
        The table of clients on rank zero; None elsewhere.

    Raises:
        ConfigError: if the checkpoint, a client's file or the folder is invalid, before anything is computed.
    """
    from lit_fed.callbacks.served_clients import ServedClients, served_in_words, unseen_tables

    if not output:
        raise ConfigError("--output is not set; give a new folder for the results")
    folder = check_new_folder(output)
    check_table_format(format)
    if ckpt_path is None:
        raise ConfigError("personalize serves clients from a checkpoint; give ckpt_path")
    module = federated(model)
    data = _unseen_clients(trainer, module, ckpt_path, clients, unknown=unknown_categories, seen=use_states)
    with owner_only(module.settings.is_private), new_folder(folder, owner=trainer.is_global_zero) as partial:
        served = ServedClients(partial / "states")
        trainer.serve(module, data, into=served)
        if not trainer.is_global_zero:
            return None
        table, predictions, results = unseen_tables(served, data, module)
        write_table(table, partial / "clients.csv")
        write_predictions(predictions, partial / f"predictions.{format}")
    if results:
        report.print_table(results, "unseen clients", module.target.metric, module.chosen_metrics.names)
    said = served_in_words(served, data, module.federation.without_samples) + said_of(
        module.settings.conformal, [served]
    )
    sys.stdout.write(f"{said}results: {folder}\n")
    return table


def personal_model(
    trainer: FederatedTrainer,
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
        trainer: the trainer that serves it.
        model: a `FederatedModule`; with `clients`, one that has not been trained or tested.
        datamodule: the data module; not needed with `clients`.
        ckpt_path: checkpoint of the run; None takes the model as it is.
        client: name of the client, seen or unseen, or else its number; or `all`, for a model that takes a client's
            own numbers as input.
        clients: unseen clients as for `personalize`, of which `client` is one; they need a checkpoint.
        weights_only: refuse checkpoints with anything but tensors and plain types.
        unknown_categories: as for `personalize`.

    Returns:
        The module, on the CPU, on rank zero; None elsewhere.

    Raises:
        ConfigError: if there is no such client or its model cannot be traced.
    """
    from lit_fed.training.export import traced_for_all, traced_model

    one = _serve_one(trainer, model, datamodule, ckpt_path, client, clients, weights_only, unknown_categories)
    return None if one is None else (traced_for_all if client == ALL else traced_model)(*one)


def export(
    trainer: FederatedTrainer,
    model: LightningModule,
    datamodule: LightningDataModule | None = None,
    ckpt_path: _PATH | None = None,
    weights_only: bool | None = None,
    *,
    client: str = "",
    clients: str = "",
    format: Literal["pt", "onnx", "peft", "lightning"] = "pt",
    output: str = "",
    unknown_categories: Unknown = None,
    raw_columns: bool = False,
) -> PersonalModel | None:
    """Write a client's personal model as a program that runs without lit_fed, or its adapters for peft.

    The program takes a batch of inputs, in 0..1 if the training normalised its inputs, and returns the probability
    of every class, or for regression the predicted value. Inputs that are not legal are refused; ONNX returns NaN.

    Args:
        trainer: the trainer that serves the client.
        model: a `FederatedModule`; with `clients`, one that has not been trained or tested.
        datamodule: the data module; not needed with `clients`.
        ckpt_path: checkpoint of the run, or `last` on the command line; null takes the model as it is.
        weights_only: refuse checkpoints with anything but tensors and plain types.
        client: name of the client in `clients.csv`, seen or unseen, or else its number `client_id` in the table of
            `predict`; or `all`: one program for all clients, `model.pt2` or `model.onnx`, which takes a client's own
            numbers as input, and `clients/<name>.npz` with those of each.
        clients: unseen clients as for `personalize`, a folder or a table; `client` is one of them, without .npz.
        format: `pt` for `torch.export.load`, `onnx`, `peft` for the adapters of `--model.lora_rank`, or `lightning` for
            checkpoints that a LightningModule given as network loads by `load_from_checkpoint`.
        output: `.pt2` or `.onnx` file, or a new folder for `peft`, `lightning` and all clients.
        unknown_categories: as for `personalize`.
        raw_columns: after training on a table, take its columns: numbers, numbers of categories, NaN where a value
            is missing; the program encodes them. Else it takes the encoded inputs.

    Returns:
        The model as a module, frozen as in the file, on rank zero; None elsewhere, and for folders.

    Raises:
        ConfigError: if the file cannot be written, there is no such client or its model cannot be traced.
    """
    from lit_fed.training.export import check_program_file
    from lit_fed.training.peft_folder import save_client

    if not output:
        raise ConfigError(
            "--output is not set; give a file that ends in .pt2, with --format onnx in .onnx, and with --client all a "
            "new folder"
        )
    path = check_program_file(output, format, every=client == ALL)
    if not clients:
        refuse_remote(datamodule, "export")
    if client == ALL and trainer.world_size > 1:
        raise ConfigError(f"--client all in {trainer.world_size} processes; leave --trainer.devices and num_nodes out")
    arguments = trainer, model, datamodule, ckpt_path, client, clients, weights_only, unknown_categories
    with owner_only(federated(model).settings.is_private):
        if client == ALL:
            exported: PersonalModel | None = _save_all(path, format, _serve(*arguments), raw_columns=raw_columns)
        elif (one := _serve_one(*arguments)) is not None:
            exported = save_client(path, format, *one, raw_columns=raw_columns)
        else:
            return None
    sys.stdout.write(f"model: {path}\n")
    return exported


def client_table(trainer: Trainer) -> DataFrame:
    """One row per measured client with its last results, as in the run's clients.csv.

    Args:
        trainer: the trainer of the run.

    Raises:
        ConfigError: if nothing was measured yet.
    """
    module: Any = trainer.lightning_module
    if not isinstance(module, FederatedModule) or not module.client_scores:
        raise ConfigError("no client was measured yet; call trainer.fit or trainer.test first")
    return report.client_table(report.populations_of(data_of(trainer)), module)


def plot_mixtures(trainer: Trainer) -> Any:
    """A figure of matplotlib: the mixture weights of each seen client, above its true group where known.

    Args:
        trainer: the trainer of the run.

    Raises:
        ConfigError: if the algorithm has no mixture weights, or nothing was measured yet.
    """
    from lit_fed.pictures.run import mixture_columns, mixtures_figure

    clients = client_table(trainer)
    if not mixture_columns(clients):
        name = type(federated(trainer.lightning_module).settings.algorithm).__name__
        raise ConfigError(f"{name} has no mixture weights to draw; take a mixture, such as FedEM")
    return mixtures_figure(clients)


def plot_partition(data: FederatedDataModule) -> Any:
    """A figure of matplotlib: the samples of each client, and below them the shares of its labels.

    Args:
        data: the data module, before or after a fit.
    """
    from lit_fed.command_line.partition import partition_table
    from lit_fed.pictures.partition import partition_figure

    data.prepare_data()
    data.setup()
    return partition_figure(partition_table(data))


def plot_rounds(trainer: Trainer, metric: str = "accuracy") -> Any:
    """A figure of matplotlib: a metric of seen and unseen clients at every evaluation, from the run's metrics.csv.

    Args:
        trainer: the trainer of the run.
        metric: `accuracy`, for regression `mse`, `loss` or a chosen metric.

    Raises:
        ConfigError: if the run has no folder, or the metric was not measured.
    """
    from lit_fed.pictures.run import rounds_figure

    folder = results_folder(trainer)
    if folder is None:
        raise ConfigError("the run has no metrics.csv; leave logger=False out, and call trainer.fit first")
    return rounds_figure(folder, metric)


One = tuple[FederatedRounds, TrainingFacts, Tree, Tensor, str, dict[str, Any]]
"""What serves a client: arguments of `traced_model`."""


def _serve_one(
    trainer: FederatedTrainer, model: LightningModule, data: Any, ckpt_path: _PATH | None, client: str, clients: str,
    weights_only: bool | None, unknown: Unknown,
) -> One | None:  # fmt: skip
    """Serve one client, from a checkpoint alone if that has all it takes; None on ranks without it."""
    module = federated(model)
    if client != ALL and not clients and not module.is_built and ckpt_path is not None and Path(ckpt_path).is_file():
        restored = copy.deepcopy(module)
        state, said = restored.restore_client(str(ckpt_path), client)
        alone = state is not None
        if trainer.is_global_zero:
            notice(f"{client} is served without data: {said}" if alone else f"{said}; the run's data are read")
        if alone:
            sets = described(restored.target, restored.settings.conformal, restored.thresholds_of(client))
            one = restored.federation, restored.facts, state, restored.facts.blank.x, client, sets
            return one if trainer.is_global_zero else None
    served = _serve(trainer, model, data, ckpt_path, client, clients, weights_only, unknown)
    return None if served is None else served.one(client)


class _Served(NamedTuple):
    """Clients that are served, and what serves them."""

    federation: FederatedRounds
    facts: TrainingFacts
    blocks: list[BlockPredictions]
    populations: list[Population]
    example: Tensor  # [1, ...] any input
    coverage: float | None  # of prediction sets

    def one(self, client: str) -> One:
        """What serves the first client, whose name is given, or with `all` any of them."""
        each = {
            name: pair
            for block in self.blocks
            for name, pair in zip(self.names_in(block), block.thresholds_and_owned, strict=False)
        }
        sets = described(self.facts.target, self.coverage, each)
        return self.federation, self.facts, tree.index(self.blocks[0].states, 0), self.example, client, sets

    def names_in(self, block: BlockPredictions) -> list[str]:
        """Names of the clients of a block."""
        each = [zip(one.train.client_ids.tolist(), one.names, strict=True) for one in self.populations]
        names = dict(pair for pairs in each for pair in pairs)
        return [names[one] for one in block.client_ids.tolist()]


def _serve(
    trainer: FederatedTrainer, model: LightningModule, data: Any, ckpt_path: _PATH | None, client: str, clients: str,
    weights_only: bool | None, unknown: Unknown,
) -> _Served | None:  # fmt: skip
    """Serve a client, or all of them; None on ranks without one."""
    module = federated(model)
    if clients:
        if ckpt_path is None:
            raise ConfigError("unseen clients are served from a checkpoint; give ckpt_path")
        only = None if client == ALL else client
        data = _unseen_clients(trainer, module, str(ckpt_path), clients, only, unknown)
        ckpt_path = None  # it has been restored
    elif isinstance(data, FederatedDataModule):
        data.predicted = Predicted(client=client)
    else:
        raise ConfigError(
            "there are no clients; pass datamodule=FederatedDataModule(...) or a folder of unseen clients"
        )
    blocks = [block for block in trainer.serve(module, data, ckpt_path, weights_only) if block]
    populations = [one for one in (data.seen, data.unseen) if one is not None]
    example = populations[0].train.x[:1]
    coverage = module.settings.conformal
    return _Served(module.federation, module.facts, blocks, populations, example, coverage) if blocks else None


def _save_all(path: Path, format: str, served: _Served | None, *, raw_columns: bool) -> PersonalModel:
    """Write `model.pt2` or `model.onnx`, and `clients/<name>.npz` for each client."""
    from lit_fed.training.export import ENDINGS, save_clients, save_program, traced_for_all

    assert served is not None  # there is one process
    model = traced_for_all(*served.one(ALL))
    if raw_columns:
        model.take_columns(served.facts.columns)
    with new_folder(path, owner=True) as partial:
        for block in served.blocks:
            save_clients(partial, model.own, block.states, served.names_in(block))
        save_program(model, partial / f"model{ENDINGS[format]}", format)
    return model


def _unseen_clients(
    trainer: Trainer, module: FederatedModule, ckpt_path: str, clients: str, only: str | None = None,
    unknown: Unknown = None, *, seen: bool = False,
) -> NewClients:  # fmt: skip
    """Restore a checkpoint to serve new clients; notes which of them took part in the training."""
    from lit_fed.data.new_clients import NewClients

    facts = module.restore_shared(ckpt_path, unknown)
    coverage, fraction = module.settings.conformal, module.calibration_fraction
    least = 1 if coverage is None else fewest(coverage)
    data = NewClients(clients, facts, only, seen=seen, calibration_fraction=fraction, fewest=least)
    names = data.unseen.names if only is None else [only]
    if seen:
        ids, store = data.unseen.train.client_ids.tolist(), module.stored
        if lost := [name for name, one in zip(names, ids, strict=True) if not store.holds(one)]:
            raise ConfigError(
                f"--use_states is true, and the checkpoint does not hold the states of {few(lost)}, which have not "
                "trained, are in files or on nodes; take predict, or `lit-fed client predict` on a node"
            )
        federation, sizes = module.federation, data.unseen.train.sizes
        work = federation.algorithm.adapt_work(federation.context("adapt"), True) or federation.algorithm.tune_work
        bare = [
            name for name, size in zip(data.unseen.names, sizes.tolist(), strict=True) if name in names and not size
        ]
        if work is not None and bare:
            raise ConfigError(
                f"--use_states is true, and {few(bare)} has no training samples in --clients {clients}: "
                f"{module.algorithm_name} computes a client's model from them whenever it serves it, and no "
                "checkpoint holds them; put those of the training beside the others, or take predict or export with "
                "the data of the run"
            )
        if trainer.is_global_zero:
            notice(f"{few(names)}: served by the shared state and their own, from the checkpoint")
    elif (known := facts.took_part(names)) and trainer.is_global_zero:
        notice(
            f"{', '.join(known)} took part in the training; --clients serves new clients, so the stored state is "
            "not used. --use_states true of personalize, predict, and export without --clients use it; in a federation "
            "`lit-fed client predict`"
        )
    return data
