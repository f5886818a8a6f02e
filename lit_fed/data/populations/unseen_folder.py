"""Unseen clients for a checkpoint, read as its training data were read.

FOLDER/<client>.npz             x_train, y_train and optionally x_test, y_test; or the test arrays alone
FOLDER/<client>/<class>/*.png   after training on images, see `read_picture_clients`
FOLDER/<client>/images, masks   after training on images with masks, see there
FILE.csv(.gz), FILE.parquet     rows of all clients, after training on a table
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningDataModule

from lit_fed.core.blocks import serving_blocks
from lit_fed.core.segmentation import flat_population
from lit_fed.core.types import Population, ServingBlock
from lit_fed.data.data_sets.base import require
from lit_fed.data.data_sets.client_folder import (
    SPLITS,
    ClientArrays,
    check_stored,
    check_types,
    checked,
    read_files,
    to_population,
)
from lit_fed.data.data_sets.columns import (
    TableColumns,
    TableRows,
    as_text,
    dated,
    encode,
    fill_in,
    is_table_file,
    marked,
    missing_values,
    numbers,
    read_rows,
    split_names,
    table_name,
    texts,
)
from lit_fed.data.data_sets.image_folder import BESIDE, decoded, pictures_in, visible_entries
from lit_fed.data.data_sets.image_labels import IMAGES, MASKS, check_masks, mask_of, read_masks
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import Blocks, Predicted
from lit_fed.data.populations.checks import find_client, find_client_name
from lit_fed.data.populations.splits import split_rows
from lit_fed.errors import ClientError, ConfigError
from lit_fed.system.files import given_path

__all__ = ["HELD_OUT", "UnseenFolder", "read_picture_clients", "read_table_clients"]

HELD_OUT = 0.2
"""Share of each client's rows held out for evaluation if a table assigns no test rows."""


class UnseenFolder(LightningDataModule):
    """Unseen clients, named by their files and numbered by name after the seen clients.

    Inputs are converted as in `ClientFolder`: uint8 is scaled to 0..1, other integers are token ids. If the training
    data were normalised, inputs in 0..1, uint8 or floating, are normalised by the same constants.

    Args:
        folder: folder with a .npz file for each client, or of images; or a table, see `read_table_clients`.
        facts: facts of the training, from the checkpoint.
        only: name of the only client to serve; None: all.

    Attributes:
        labelled: whether each client has test labels, [T] bool.
        held_out: whether a share of each client's samples was held out, as in tables whose rows all have labels and no
            split, unless only one client is served.

    Raises:
        ConfigError: naming the file and array that does not fit, or an unknown client.
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
        if facts.target.continuous:  # integer labels of a regression
            clients = [_floating(client) for client in clients]
        clients = [checked(_with_labels(client), may_lack_training=client.name in bare) for client in clients]
        _check_fit(clients, facts)
        if facts.normalisation is not None:
            for client in clients:
                for name in ("x_train", "x_val", "x_test"):
                    client.arrays[name] = facts.normalisation.apply(client.arrays[name])
        self.unseen = flat_population(to_population(clients))
        for split in (self.unseen.train, self.unseen.val, self.unseen.test):
            split.first_id = facts.num_clients
        self.clients_per_block = facts.clients_per_block
        self.served = None if only is None else torch.tensor([find_client(only, {"new": self.unseen})[1]])

    def on_exception(self, exception: BaseException) -> None:
        """Add the client's name to a `ClientError`; Lightning calls this before it re-raises."""
        if isinstance(exception, ClientError):
            exception.client_name = find_client_name(exception.client_id, self.unseen)

    def predict_dataloader(self) -> Blocks[ServingBlock]:
        assert self.trainer is not None
        return Blocks(
            serving_blocks(
                self.unseen.test, self.unseen.train, self.served, clients_per_block=self.clients_per_block,
                rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
            )
        )  # fmt: skip


def _read_clients(folder: str, facts: TrainingFacts) -> list[ClientArrays]:
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
    masks = len(facts.label_shape) == 2
    clients = clients or read_picture_clients(root, facts.input_shape, facts.class_names, masks=masks)
    require(bool(clients), f"--clients {folder}: no .npz file in it; save one for each client, or pass its subfolder")
    return clients


def _is_table(root: Path) -> bool:
    return is_table_file(root) and not root.is_dir()


def _divided(client: ClientArrays, position: int) -> ClientArrays:
    """The client with a share of its samples held out for testing."""
    rows = split_rows(np.arange(len(client.arrays["y_train"])), 0.0, HELD_OUT, seed=0, client_id=position)
    kept = {"train": np.sort(rows.train), "test": np.sort(rows.test)}
    arrays = {f"{name}_{split}": client.arrays[f"{name}_train"][some] for split, some in kept.items() for name in "xy"}
    return client._replace(arrays=arrays)


def _check_test_arrays(client: ClientArrays) -> None:
    if "y_test" in client.arrays and "x_test" not in client.arrays:
        raise ConfigError(f"{client.sources['test']}: array x_test is missing; save it beside y_test, or drop y_test")


def _floating(client: ClientArrays) -> ClientArrays:
    return client._replace(
        arrays={
            name: array.astype(np.float32) if name.startswith("y") and array.dtype.kind in "iub" else array
            for name, array in client.arrays.items()
        }
    )


def _with_training(client: ClientArrays, facts: TrainingFacts) -> ClientArrays:
    """The client, with an empty training split if it has only test inputs."""
    arrays, source = client.arrays, client.sources["train"]
    if "x_train" in arrays or "y_train" in arrays or "x_test" not in arrays:
        for name in ("x_train", "y_train"):
            require(name in arrays, f"{source}: array {name} is missing; save x_train, y_train in it")
        return client
    kind = np.float32 if facts.target.continuous else np.int64
    empty = np.zeros((0, *facts.label_shape), arrays.get("y_test", np.zeros(0, kind)).dtype)
    return client._replace(arrays=arrays | {"x_train": arrays["x_test"][:0], "y_train": empty})


def _with_labels(client: ClientArrays) -> ClientArrays:
    """The client with zeros for missing test labels; its results are then left empty."""
    x, y = client.arrays.get("x_test"), client.arrays["y_train"]
    if x is None or "y_test" in client.arrays or not x.ndim or not y.ndim:
        return client
    return client._replace(arrays=client.arrays | {"y_test": np.zeros((len(x), *y.shape[1:]), y.dtype)})


def _check_fit(clients: list[ClientArrays], facts: TrainingFacts) -> None:
    """Refuse samples whose type, shape or classes differ from the checkpoint's training."""
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
            labels = client.arrays[name]
            largest = int(labels[labels != facts.target.ignored].max(initial=0))
            require(
                largest < facts.target.num_values,
                f"{client.sources[name[2:]]}: array {name} contains label {largest}, but the checkpoint has the "
                f"classes 0 … {facts.target.num_values - 1}; correct the labels, or leave such samples out",
            )


def read_picture_clients(
    root: Path, input_shape: tuple[int, ...], class_names: tuple[str, ...] | None, *, masks: bool = False
) -> list[ClientArrays]:
    """Read clients from folders of images, as `ImageFolder` does; [] if there is no folder.

    FOLDER/<client>/<class>/*.png are adapted on, FOLDER/<client>/*.png (optional) are predicted. With masks,
    FOLDER/<client>/images/*.png with a mask of the same name in FOLDER/<client>/masks are adapted on, those without
    one are predicted.

    Args:
        root: folder with a folder for each client.
        input_shape: input shape of the training.
        class_names: class names of the training, by label; None: no names.
        masks: whether the labels of the training are masks.

    Returns:
        x_train [n, channels, height, width] uint8, y_train [n] or [n, height, width] and, if there are images without
        a label, x_test sorted by name, of each client.

    Raises:
        ConfigError: if the training was not on images with named classes or masks, or naming an unexpected folder or
            file.
    """
    clients = [entry for entry in visible_entries(root) if entry.is_dir()]
    if not clients:
        return []
    pictures = len(input_shape) == 3 and input_shape[0] in (1, 3) and input_shape[1] == input_shape[2]
    labelled = masks or class_names is not None
    require(
        pictures and labelled,
        f"--clients {root}: has folders, which are read as clients with images; the checkpoint was trained on inputs "
        f"of shape {list(input_shape)}{'' if labelled else ' and classes without names'}: pass a folder with a .npz "
        "file for each unseen client",
    )
    channels, image_size, _ = input_shape
    if masks:
        return [_masked_client(folder, channels, image_size) for folder in clients]
    return [_picture_client(folder, channels, image_size, class_names or ()) for folder in clients]


def _masked_client(folder: Path, channels: int, image_size: int) -> ClientArrays:
    for name in (IMAGES, MASKS):
        require((folder / name).is_dir(), f"{folder}: no folder {name}; expected are {BESIDE['masks']}")
    images, masks = pictures_in(folder / IMAGES), pictures_in(folder / MASKS)
    paths = [image for image in images if mask_of(image) in masks]
    check_masks(paths, masks)
    require(bool(paths), f"{folder / MASKS}: no mask to adapt on; add some with the names of images")
    unlabelled = [image for image in images if mask_of(image) not in masks]
    return _from_pictures(folder, paths, read_masks(paths, image_size), unlabelled, channels, image_size)


def _picture_client(folder: Path, channels: int, image_size: int, class_names: tuple[str, ...]) -> ClientArrays:
    entries = visible_entries(folder)
    labelled: list[tuple[Path, int]] = []
    for entry in entries:
        if entry.is_dir():
            require(
                entry.name in class_names,
                f"{entry}: not a class of the checkpoint, which has {', '.join(class_names)}; rename the folder, or "
                "remove it",
            )
            labelled += [(path, class_names.index(entry.name)) for path in pictures_in(entry)]
    require(
        bool(labelled),
        f"{folder}: no image of a known class to adapt on; add some as {folder.name}/{class_names[0]}/*.png",
    )
    paths, labels = [path for path, _ in labelled], np.array([label for _, label in labelled])
    unlabelled = pictures_in(folder, beside_classes=True)
    return _from_pictures(folder, paths, labels, unlabelled, channels, image_size)


def _from_pictures(
    folder: Path, paths: list[Path], labels: np.ndarray, unlabelled: list[Path], channels: int, image_size: int
) -> ClientArrays:
    """A client of images with labels [n, ...] and of images to be predicted."""
    arrays = {"x_train": np.stack(list(decoded(paths, image_size, channels))), "y_train": labels.astype(np.int64)}
    if unlabelled:
        arrays["x_test"] = np.stack(list(decoded(unlabelled, image_size, channels)))
    return ClientArrays(folder.name, arrays, dict.fromkeys(("train", "val", "test"), str(folder)))


OPTION = "--clients"
SPLIT_COLUMN = "split"
"""Name of the split column in a table if the training had none."""


def read_table_clients(path: Path, columns: TableColumns, class_names: tuple[str, ...] | None) -> list[ClientArrays]:
    """Read clients from a table; inputs are not standardised yet.

    Rows with a label are adapted on, rows without are predicted, unless the training's `split_column`, or a column
    `split` of this table, assigns the rows; rows of `val` are ignored.

    Args:
        path: a .csv, .csv.gz or .parquet file with the columns of the training's table.
        columns: encoding of the training's table.
        class_names: class names of the training; None: labels are numbers.

    Returns:
        `x_train` and `y_train` and, if there are test rows or a split column, `x_test` and `y_test` of each client, by
        name. Without a client column all rows belong to one client, named after the file.

    Raises:
        ConfigError: naming file, row, column and value of what is wrong.
    """
    rows = read_rows([(str(path), OPTION)], columns.separator)
    columns = columns._replace(split_column=columns.split_column or _own_split(rows, columns))
    rows.require_columns(columns.dates, f"{OPTION} {path}, column")
    rows = dated(rows, columns.dates, columns.date_parts)
    wanted = [one.name for one in columns.features]
    roles = columns.label_column, columns.client_column, columns.split_column, columns.query_column
    wanted += [one for one in roles if one]
    rows.require_columns(wanted, f"{OPTION} {path}, column")
    rows = marked(rows, columns.missing_values, [one.name for one in columns.features])
    x, labelled = encode(rows, columns), ~missing_values(rows.frame[columns.label_column])
    y = _table_labels(rows, columns.label_column, labelled, class_names)
    if columns.query_column is not None:
        y = np.stack([y, numbers(rows, columns.query_column).astype(np.float32)], 1)
    if columns.client_column is None:
        clients = np.full(len(x), table_name(path), dtype=object)
    else:
        clients = texts(rows, columns.client_column, mixed=True)
    split = (
        np.where(labelled, "train", "test") if columns.split_column is None else split_names(rows, columns.split_column)
    )
    arrays = []
    for name in sorted(set(clients)):
        require("/" not in name, f"{path}: client {name!r} names a file of results; rename it without /")
        own = clients == name
        x[own] = fill_in(x[own], columns, x[own & (split == "train")])
        client = _table_client(rows, name, own & (split == "train"), own & (split == "test"), x, y, labelled)
        if columns.split_column is not None and "x_test" not in client.arrays:  # no test rows
            client.arrays.update(x_test=x[:0], y_test=y[:0])
        arrays.append(client)
    return arrays


def _own_split(rows: TableRows, columns: TableColumns) -> str | None:
    """The column `split` of a table if the training did not use it otherwise and it holds split names."""
    used = (columns.label_column, columns.client_column, *(one.name for one in columns.features))
    if SPLIT_COLUMN in used or SPLIT_COLUMN not in rows.frame.columns:
        return None
    return SPLIT_COLUMN if rows.frame[SPLIT_COLUMN].isin(SPLITS).all() else None


def _table_client(
    rows: TableRows, name: str, train: np.ndarray, test: np.ndarray, x: np.ndarray, y: np.ndarray, labelled: np.ndarray
) -> ClientArrays:
    """One client from the masks [n] of its training and test rows."""
    source = f"{rows.source}: client {name!r}"
    bare = train & ~labelled
    require(
        not bare.any(),
        f"{rows.place(int(bare.argmax()))}: a training row without a label; label it, or mark it as test",
    )
    require(
        bool(train.any()), f"{source} has no row with a label to adapt on; label at least one, or leave the client out"
    )
    known = labelled[test]
    require(
        bool(known.all() or not known.any()), f"{source}: only some of its test rows have a label; label all or none"
    )
    arrays = {"x_train": x[train], "y_train": y[train]}
    if test.any():
        arrays |= {"x_test": x[test]} | ({"y_test": y[test]} if known.all() else {})
    return ClientArrays(name, arrays, dict.fromkeys(SPLITS, source))


def _table_labels(
    rows: TableRows, column: str, labelled: np.ndarray, class_names: tuple[str, ...] | None
) -> np.ndarray:
    """Labels [n], 0 if missing."""
    if class_names is None:
        y = np.zeros(len(labelled), dtype=np.float32)
        places = np.flatnonzero(labelled)
        part = TableRows(rows.frame.iloc[places], rows.source, lambda row: rows.place(int(places[row])))
        y[places] = numbers(part, column)
        return y
    number = {name: position for position, name in enumerate(class_names)}
    y = np.zeros(len(labelled), dtype=np.int64)
    for row in np.flatnonzero(labelled).tolist():
        name = as_text(rows.frame[column].iloc[row])
        if name not in number:
            raise rows.error(
                row, column, f"{name!r} is not a class of the training ({', '.join(class_names)}); correct it"
            )
        y[row] = number[name]
    return y
