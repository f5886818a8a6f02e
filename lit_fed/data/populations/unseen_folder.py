"""Unseen clients that are served from a checkpoint alone, read as its training read inputs.

FOLDER/<client>.npz             x_train, y_train; optionally x_test, and with it y_test; or these alone (`check_unseen`)
FOLDER/<client>/<class>/*.png   where the training was on pictures, see `read_picture_clients`
FILE.csv(.gz), FILE.parquet     the rows of all of them, where the training was on a table
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningDataModule

from lit_fed.core.blocks import serving_blocks
from lit_fed.core.types import Population, ServingBlock
from lit_fed.data.data_sets.base import require
from lit_fed.data.data_sets.client_folder import (
    ClientArrays,
    check_stored,
    check_types,
    checked,
    read_files,
    to_population,
)
from lit_fed.data.data_sets.picture_clients import read_picture_clients
from lit_fed.data.data_sets.table_clients import read_table_clients
from lit_fed.data.data_sets.table_rows import is_table_file
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import Blocks, Predicted
from lit_fed.data.populations.checks import find_client_name
from lit_fed.data.populations.find_client import find_client
from lit_fed.data.populations.splits import split_rows
from lit_fed.errors import ClientError, ConfigError
from lit_fed.system.given_paths import given_path

__all__ = ["HELD_OUT", "UnseenFolder"]

HELD_OUT = 0.2
"""Share of each client's rows that is measured where a table says nothing of what to adapt on."""


class UnseenFolder(LightningDataModule):
    """Unseen clients to be served, named by their files and numbered, in the order of their names, after the seen ones.

    Inputs are treated as `ClientFolder` treats them: uint8 is scaled to 0..1, other integers are token ids. Where the
    data of the training were normalised, inputs in 0..1, uint8 or floating, are normalised by the same constants.

    Args:
        folder: folder with a .npz file for each client, or of pictures; or a table, see `read_table_clients`.
        facts: what a checkpoint says of its training.
        only: name of the one to be served; None: all.

    Attributes:
        labelled: whether each client has labels to be measured on, [T] bool.
        held_out: whether a share of each client's samples was held out, since all rows of a table had a label and no
            column said what to predict; where one client alone is served there is nothing to measure.

    Raises:
        ConfigError: naming the file and the array that does not fit, or if there is no such client.
    """

    predicted = Predicted("unseen", "test")
    seen: Population | None = None

    def __init__(self, folder: str, facts: TrainingFacts, only: str | None = None) -> None:
        super().__init__()
        require(bool(folder), "--clients is not set; pass a folder with a .npz file for each unseen client")
        given = _read_clients(folder, facts)
        bare = {client.name for client in given if "x_train" not in client.arrays}
        clients = [_with_training(client, facts) for client in given]
        for client in clients:
            _check_test_arrays(client)
        silent = not any("x_test" in one.arrays for one in clients)
        self.held_out = only is None and silent and _is_table(given_path(folder, "--clients"))
        if self.held_out:
            clients = [_divided(client, position) for position, client in enumerate(clients)]
        self.labelled = torch.tensor(["y_test" in one.arrays or "x_test" not in one.arrays for one in clients])
        if facts.target.continuous:  # quantities that are whole numbers, too
            clients = [_floating(client) for client in clients]
        clients = [checked(_with_labels(client), may_lack_training=client.name in bare) for client in clients]
        _check_fit(clients, facts)
        if facts.normalisation is not None:
            for client in clients:
                for name in ("x_train", "x_val", "x_test"):
                    client.arrays[name] = facts.normalisation.apply(client.arrays[name])
        self.unseen = to_population(clients)
        for split in (self.unseen.train, self.unseen.val, self.unseen.test):
            split.first_id = facts.num_clients
        self.clients_per_block = facts.clients_per_block
        self.served = None if only is None else torch.tensor([find_client(only, {"new": self.unseen})[1]])

    def on_exception(self, exception: BaseException) -> None:
        """Tell an error the name of the client that it is about; Lightning calls this before it raises it again."""
        if isinstance(exception, ClientError):
            exception.client_name = find_client_name(exception.client_id, self.unseen)

    def predict_dataloader(self) -> Blocks[ServingBlock]:
        """This rank's unseen clients."""
        assert self.trainer is not None
        return Blocks(
            serving_blocks(
                self.unseen.test, self.unseen.train, self.served, clients_per_block=self.clients_per_block,
                rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
            )
        )  # fmt: skip


def _read_clients(folder: str, facts: TrainingFacts) -> list[ClientArrays]:
    """The clients of a folder or a table, as they were stored."""
    root = given_path(folder, "--clients")
    if _is_table(root):
        require(
            facts.columns is not None,
            f"--clients {folder}: the checkpoint was not trained on a table; pass a folder with a .npz file for each "
            "unseen client",
        )
        assert facts.columns is not None
        return read_table_clients(root, facts.columns, facts.class_names)
    more = "" if facts.columns is None else ", or a table with the columns of the training's"
    require(
        root.is_dir(), f"--clients {folder}: no such folder; pass one with a .npz file for each unseen client{more}"
    )
    clients = read_files(root, (), ("x_train", "y_train", "x_test", "y_test"))
    clients = clients or read_picture_clients(root, facts.input_shape, facts.class_names)
    require(bool(clients), f"--clients {folder}: no .npz file in it; save one for each client, or pass its subfolder")
    return clients


def _is_table(root: Path) -> bool:
    return is_table_file(root) and not root.is_dir()


def _divided(client: ClientArrays, position: int) -> ClientArrays:
    """The client with some of its samples held out, as if it had been an unseen client of the training."""
    rows = split_rows(np.arange(len(client.arrays["y_train"])), 0.0, HELD_OUT, seed=0, client_id=position)
    kept = {"train": np.sort(rows.train), "test": np.sort(rows.test)}
    arrays = {f"{name}_{split}": client.arrays[f"{name}_train"][some] for split, some in kept.items() for name in "xy"}
    return client._replace(arrays=arrays)


def _check_test_arrays(client: ClientArrays) -> None:
    """Refuse test labels without the inputs that they belong to."""
    if "y_test" in client.arrays and "x_test" not in client.arrays:
        raise ConfigError(f"{client.sources['test']}: array x_test is missing; save it beside y_test, or drop y_test")


def _floating(client: ClientArrays) -> ClientArrays:
    """The client with whole labels as floating ones."""
    return client._replace(
        arrays={
            name: array.astype(np.float32) if name.startswith("y") and array.dtype.kind in "iub" else array
            for name, array in client.arrays.items()
        }
    )


def _with_training(client: ClientArrays, facts: TrainingFacts) -> ClientArrays:
    """The client, with an empty training split if it has inputs to be predicted alone."""
    arrays, source = client.arrays, client.sources["train"]
    if "x_train" in arrays or "y_train" in arrays or "x_test" not in arrays:
        for name in ("x_train", "y_train"):
            require(name in arrays, f"{source}: array {name} is missing; save x_train, y_train in it")
        return client
    kind = np.float32 if facts.target.continuous else np.int64
    empty = np.zeros((0, *facts.label_shape), arrays.get("y_test", np.zeros(0, kind)).dtype)
    return client._replace(arrays=arrays | {"x_train": arrays["x_test"][:0], "y_train": empty})


def _with_labels(client: ClientArrays) -> ClientArrays:
    """The client with zeros as labels of its test inputs where it brought none; its results are left empty then."""
    x, y = client.arrays.get("x_test"), client.arrays["y_train"]
    if x is None or "y_test" in client.arrays or not x.ndim or not y.ndim:
        return client
    return client._replace(arrays=client.arrays | {"y_test": np.zeros((len(x), *y.shape[1:]), y.dtype)})


def _check_fit(clients: list[ClientArrays], facts: TrainingFacts) -> None:
    """Refuse samples of another type or shape than the checkpoint was trained on, and labels of other classes."""
    types = {
        "x": f"{facts.input_type} of shape {list(facts.input_shape)}",
        "y": f"{'float32' if facts.target.continuous else 'int64'} of shape {list(facts.label_shape)}",
    }
    check_types(clients, types, dict.fromkeys(types, "the checkpoint's training"))
    if facts.stored_type:
        check_stored(clients, facts.stored_type, "the inputs of the checkpoint's training")
    if facts.target.continuous:
        return
    for client in clients:
        for name in ("y_train", "y_test"):
            largest = int(client.arrays[name].max(initial=0))
            require(
                largest < facts.target.num_values,
                f"{client.sources[name[2:]]}: array {name} contains label {largest}, but the checkpoint knows the "
                f"classes 0 … {facts.target.num_values - 1}; correct the labels, or leave such samples out",
            )
