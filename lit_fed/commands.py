"""Commands beside Lightning's: functions of a trainer.

`personalize` and `export` are also commands of the command line.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor

from lit_fed.callbacks import report
from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule, Predicted
from lit_fed.errors import ConfigError, notice
from lit_fed.rounds import FederatedRounds
from lit_fed.system.files import owner_only
from lit_fed.system.packages import DataFrame
from lit_fed.trainer import FederatedTrainer
from lit_fed.training.hooks import data_of, federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import check_new_folder, check_table_format, new_folder, write_table
from lit_fed.training.refusals import refuse_remote

if TYPE_CHECKING:
    from lit_fed.data.new_clients import NewClients
    from lit_fed.training.export import PersonalModel

__all__ = ["client_table", "export", "personal_model", "personalize", "plot_mixtures", "plot_rounds"]

Unknown = Literal["error", "zeros"] | None


def personalize(
    trainer: FederatedTrainer,
    model: LightningModule,
    ckpt_path: str | None = None,
    clients: str = "",
    output: str = "",
    format: Literal["csv", "parquet"] = "csv",
    unknown_categories: Unknown = None,
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
    from lit_fed.callbacks.served_clients import ServedClients, served_in_words, unseen_tables

    if not output:
        raise ConfigError("--output is not set; give a new folder for the results")
    folder = check_new_folder(output)
    check_table_format(format)
    if ckpt_path is None:
        raise ConfigError("personalize serves clients from a checkpoint; give ckpt_path")
    module = federated(model)
    data = _unseen_clients(trainer, module, ckpt_path, clients, unknown=unknown_categories)
    with owner_only(module.settings.is_private), new_folder(folder, owner=trainer.is_global_zero) as partial:
        served = ServedClients(partial / "states")
        trainer.serve(module, data, into=served)
        if not trainer.is_global_zero:
            return None
        table, predictions, results = unseen_tables(served, data, module)
        write_table(table, partial / "clients.csv")
        write_table(predictions, partial / f"predictions.{format}")
    if results:
        report.print_table(results, "unseen clients", module.target.metric, module.chosen_metrics.names)
    sys.stdout.write(f"{served_in_words(served, data)}results: {folder}\n")
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
        client: name of the client, seen or unseen, or else its number.
        clients: unseen clients as for `personalize`, of which `client` is one; they need a checkpoint.
        weights_only: refuse checkpoints with anything but tensors and plain types.
        unknown_categories: as for `personalize`.

    Returns:
        The module, on the CPU, on rank zero; None elsewhere.

    Raises:
        ConfigError: if there is no such client or its model cannot be traced.
    """
    from lit_fed.training.export import traced_model

    served = _serve_one(trainer, model, datamodule, ckpt_path, client, clients, weights_only, unknown_categories)
    return None if served is None else traced_model(*served)


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
            `predict`.
        clients: unseen clients as for `personalize`, a folder or a table; `client` is one of them, without .npz.
        format: `pt` for `torch.export.load`, `onnx`, `peft` for the adapters of `--model.lora_rank`, or `lightning` for
            checkpoints that a LightningModule given as network loads by `load_from_checkpoint`.
        output: `.pt2` or `.onnx` file, or a new folder for `peft` and `lightning`.
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
        raise ConfigError("--output is not set; give a file that ends in .pt2, or with --format onnx in .onnx")
    path = check_program_file(output, format)
    if not clients:
        refuse_remote(datamodule, "export")
    served = _serve_one(trainer, model, datamodule, ckpt_path, client, clients, weights_only, unknown_categories)
    if served is None:
        return None
    with owner_only(federated(model).settings.is_private):
        exported = save_client(path, format, *served, raw_columns=raw_columns)
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


def _serve_one(
    trainer: FederatedTrainer, model: LightningModule, data: Any, ckpt_path: _PATH | None, client: str, clients: str,
    weights_only: bool | None, unknown: Unknown,
) -> tuple[FederatedRounds, TrainingFacts, Tree, Tensor, str] | None:  # fmt: skip
    """Serve one client; the arguments of `traced_model`, on rank zero."""
    module = federated(model)
    if clients:
        if ckpt_path is None:
            raise ConfigError("unseen clients are served from a checkpoint; give ckpt_path")
        data = _unseen_clients(trainer, module, str(ckpt_path), clients, client, unknown)
        ckpt_path = None  # it has been restored
    elif isinstance(data, FederatedDataModule):
        data.predicted = Predicted(client=client)
    else:
        raise ConfigError(
            "there are no clients; pass datamodule=FederatedDataModule(...) or a folder of unseen clients"
        )
    served = next((block for block in trainer.serve(module, data, ckpt_path, weights_only) if block), None)
    if served is None:
        return None
    example = (data.seen or data.unseen).train.x[:1]
    return module.federation, module.facts, tree.index(served.states, 0), example, client


def _unseen_clients(
    trainer: Trainer, module: FederatedModule, ckpt_path: str, clients: str, only: str | None = None,
    unknown: Unknown = None,
) -> NewClients:  # fmt: skip
    """Restore a checkpoint to serve new clients; notes which of them took part in the training."""
    from lit_fed.data.new_clients import NewClients

    facts = module.restore_shared(ckpt_path, unknown)
    data = NewClients(clients, facts, only)
    known = facts.took_part(data.unseen.names if only is None else [only])
    if known and trainer.is_global_zero:
        notice(
            f"{', '.join(known)} took part in the training; --clients serves new clients, so the stored state is "
            "not used. predict, and export without --clients, use it; in a federation `lit-fed client predict`"
        )
    return data
