"""A user's data: one .npz file per client, or LEAF's JSON layout.

ROOT/seen/<client>.npz, ROOT/unseen/<client>.npz      x_train, y_train, x_test, y_test and optionally x_val, y_val;
                                                      unseen clients may have only test samples; several inputs of a
                                                      network as <name>_train, <name>_test, … in place of x_train, …
ROOT/train/*.json, ROOT/test/*.json                   {"users": [...], "num_samples": [...],
                                                       "user_data": {user: {"x": [...], "y": [...]}}}; if no user is
                                                      in both, those of test are unseen
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.core.named_inputs import Given, NamedInputs
from lit_fed.core.targets import IGNORED
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import PLACE, ClientDataSet, Labels, input_array, label_array, make_split, require
from lit_fed.data.data_sets.leaf import LeafUser, read_leaf_users
from lit_fed.data.data_sets.npz import npz_files, read_npz
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.files import given_path

__all__ = [
    "SPLITS", "ClientArrays", "ClientFolder", "check_alike", "check_stored", "check_types", "checked", "packed",
    "read_clients", "read_files", "to_population",
]  # fmt: skip

SPLITS = ("train", "val", "test")
REQUIRED_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL_ARRAYS = ("x_val", "y_val")


class ClientArrays(NamedTuple):
    """The arrays of one client, and where they were read."""

    name: str
    arrays: dict[str, Any]  # x_train [n, ...], y_train [n] or [n, L], …; x a dict of inputs until it is packed
    sources: dict[str, str]  # origin of each split, for error messages
    stored: dict[str, str] = {}
    inputs: NamedInputs | None = None  # that x holds one after another; None: it is one input
    rows: np.ndarray | None = None  # positions of the test samples in the table or among the files


@dataclass(frozen=True)
class ClientFolder(ClientDataSet):
    """Clients read from a folder, named by files (or LEAF's users), sorted.

    uint8 inputs are scaled to 0..1, other integers are token ids, floats become float32. Integer labels are classes,
    floating labels regression targets. Test and validation splits may be empty. Arrays `<name>_train`, `<name>_test`, …
    in place of `x_train`, … are several inputs, which the network's `forward` gets by their names.

    Args:
        root: folder with `seen/*.npz` and optionally `unseen/*.npz`, or with `train/*.json` and `test/*.json`.
        num_classes: number of classes; null: one more than the largest training label, and each smaller class must
            occur in the data.
        labels: `auto`: integers are classes ([n, L]: of the positions of a sequence), floats quantities; `multilabel`:
            L labels 0 or 1 per sample; `regression`: quantities, also integers.
    """

    root: str = ""
    num_classes: int | None = None  # type: ignore[misc]  # the base promises one number for the whole class
    labels: Labels = "auto"  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_settings(self, prefix=PLACE, num_classes=">= 2")

    def load(self) -> tuple[Population, Population | None]:
        """All clients of `seen` and, if that folder exists, of `unseen`."""
        require(bool(self.root), "ClientFolder: root is not set; pass --data.dataset.root FOLDER")
        root = given_path(self.root, "--data.dataset.root")
        require(root.is_dir(), f"{root}: no such folder; correct --data.dataset.root")
        if (root / "train").is_dir() and not (root / "seen").is_dir():
            return _read_leaf(root)
        fix = "move its .npz files there" if any(root.glob("*.npz")) else "add one"
        require(
            (root / "seen").is_dir(),
            f"{root}: neither a folder 'seen' with a .npz file per client nor LEAF's 'train' and 'test'; {fix}",
        )
        clients = read_clients(root)
        return to_population(clients["seen"]), to_population(clients["unseen"]) if "unseen" in clients else None


def read_clients(root: Path) -> dict[str, list[ClientArrays]]:
    """Read all clients of the folders `seen` and `unseen` that exist, with samples of one type and shape.

    Raises:
        ConfigError: naming the file and the array that is missing, or does not fit the others.
    """
    found = {name: _read_folder(root / name, name == "unseen") for name in ("seen", "unseen") if (root / name).is_dir()}
    each = packed([client for clients in found.values() for client in clients])
    each = [
        checked(client, may_lack_training=name == "unseen")
        for client, name in zip(each, [name for name, clients in found.items() for _ in clients], strict=True)
    ]
    if each:
        check_alike(each)
    first = len(found.get("seen", ()))
    return {name: each[:first] if name == "seen" else each[first:] for name in found}


def _read_folder(folder: Path, may_lack_training: bool) -> list[ClientArrays]:
    """The clients of a folder; without both val arrays a client has no validation split."""
    of_training = REQUIRED_ARRAYS[:2] if may_lack_training else ()
    clients = read_files(folder, REQUIRED_ARRAYS[len(of_training) :], (*of_training, *OPTIONAL_ARRAYS))
    require(bool(clients), f"{folder}: no .npz file; save one per client, or remove the folder")
    for client in clients:
        for pair in (OPTIONAL_ARRAYS, REQUIRED_ARRAYS[:2]):
            for name, other in (pair, pair[::-1]):
                require(
                    name not in client.arrays or other in client.arrays,
                    f"{client.sources['val']}: array {other} is missing; save it beside {name}",
                )
    return clients


def read_files(
    folder: Path, required: tuple[str, ...], optional: tuple[str, ...], inputs: Sequence[str] | None = None
) -> list[ClientArrays]:
    """Read the stored arrays of each .npz file of a folder, sorted by file name.

    Args:
        folder: an existing folder.
        required: names of the required arrays.
        optional: names of optional arrays; others are not read.
        inputs: as of `read_npz`.

    Raises:
        ConfigError: naming the file that cannot be read, or its missing array.
    """
    return [
        ClientArrays(path.stem, read_npz(path, required, optional, inputs), dict.fromkeys(SPLITS, str(path)))
        for path in npz_files(folder)
    ]


def _read_leaf(root: Path) -> tuple[Population, Population | None]:
    """LEAF's users by name; users without test samples get an empty test split.

    If LEAF split by user (`--by-user`), no user is in both folders, and users of `test` are unseen.
    """
    train, test = read_leaf_users(root / "train"), read_leaf_users(root / "test")
    unseen: dict[str, LeafUser] = {} if train.keys() & test.keys() else test
    test = {} if unseen else test
    for name, user in test.items():
        require(name in train, f"{user.source}: no training samples in {root / 'train'}; add some, or remove the user")
    # JSON may write 1.0 as 1, so integers are token ids only if no user has fractions
    everybody = (*train.values(), *test.values(), *unseen.values())
    floating = any(user.x.size and user.x.dtype.kind == "f" for user in everybody)
    seen = [_leaf_client(name, train[name], test.get(name), floating) for name in sorted(train)]
    later = [_leaf_client(name, None, unseen[name], floating) for name in sorted(unseen)]
    check_alike(seen + later)
    return to_population(seen), to_population(later) if later else None


def _leaf_client(name: str, train: LeafUser | None, test: LeafUser | None, floating: bool) -> ClientArrays:
    """One client from its training and test samples; `floating` converts integer inputs to float32."""
    arrays: dict[str, np.ndarray] = {}
    sources: dict[str, str] = {}
    for split, user in (("train", train), ("test", test)):
        if user is not None:
            arrays[f"x_{split}"] = user.x.astype(np.float32) if floating and user.x.dtype.kind == "i" else user.x
            arrays[f"y_{split}"], sources[split] = user.y, user.source
    source = next(iter(sources.values()))
    return checked(ClientArrays(name, arrays, dict.fromkeys(SPLITS, source) | sources), may_lack_training=train is None)


def packed(
    clients: list[ClientArrays], inputs: NamedInputs | None = None, length: int | None = None
) -> list[ClientArrays]:
    """The clients with several inputs in one array, and labels of positions padded with -100; others are unchanged.

    Args:
        clients: clients, in whose arrays `x_<split>` is a dict of inputs by name.
        inputs: those that are wanted; None: as the clients have them.
        length: positions of the labels; None: the largest number.

    Raises:
        ConfigError: naming the client with other inputs.
    """
    named = [name for client in clients for name, array in client.arrays.items() if isinstance(array, dict)]
    if not named and inputs is None:
        return clients
    groups = [
        (f"{client.sources[name[2:]]}, {name[2:]}", array)
        for client in clients
        for name, array in client.arrays.items()
        if name.startswith("x")
    ]
    for place, array in groups:
        other = "others have several" if inputs is None else f"the training had {', '.join(inputs.names)}"
        require(isinstance(array, dict), f"{place}: has one input x, and {other}; give all clients the same")
        _check_entries(place, array)
    labels = [array for client in clients for name, array in client.arrays.items() if name.startswith("y")]
    for client in clients:
        for name in [name for name in client.arrays if name.startswith("y")]:
            _check_entries(f"{client.sources[name[2:]]}, {name[2:]}", {"y": client.arrays[name]})
    known = NamedInputs.of(groups) if inputs is None else inputs
    length = _longest(labels) if length is None else length

    def converted(source: str, name: str, array: Any) -> np.ndarray:
        place = f"{source}, {name[2:]}"
        return known.pack(place, array) if name.startswith("x") else _padded_labels(place, array, length)

    return [
        client._replace(
            arrays={name: converted(client.sources[name[2:]], name, array) for name, array in client.arrays.items()},
            inputs=known,
        )
        for client in clients
    ]


def _check_entries(place: str, given: Mapping[str, Given]) -> None:
    for name, array in given.items():
        require(
            isinstance(array, list) or array.ndim > 0,
            f"{place}: {name} is a single number; give an array with one entry per sample",
        )


def _longest(labels: list[Given]) -> int | None:
    """The largest number of positions of labels that are whole numbers; None if none have positions."""
    each = [np.asarray(row) for array in labels for row in (array if isinstance(array, list) else array[:1])]
    return max((len(row) for row in each if row.ndim == 1 and row.dtype.kind in "iu"), default=None)


def _padded_labels(place: str, labels: Given, length: int | None) -> np.ndarray:
    """Labels [n, length] of labels with fewer positions, padded with -100; other labels are unchanged.

    Raises:
        ConfigError: naming the place of labels that differ in shape and are no lists of whole numbers.
    """
    if isinstance(labels, np.ndarray) and (labels.ndim != 2 or labels.dtype.kind not in "iu" or not length):
        return labels
    listed = all(one.ndim == 1 and one.dtype.kind in "iu" for one in labels)
    require(listed, f"{place}: labels differ in shape; give one shape, or lists of whole numbers, which are padded")
    width = max(length or 0, *map(len, labels), 0)
    padded = np.full((len(labels), width), IGNORED, dtype=np.int64)
    for row, one in zip(padded, labels, strict=True):
        row[: len(one)] = one
    return padded


def checked(
    client: ClientArrays,
    *,
    may_lack_training: bool = False,
    inputs: Callable[[np.ndarray], np.ndarray] = input_array,
) -> ClientArrays:
    """The client with all six arrays in their final types, checked as far as one client alone allows."""
    given = client.arrays
    bare = may_lack_training and not any(given[name].size for name in REQUIRED_ARRAYS[:2] if name in given)
    if bare:  # shapes and types come from the test arrays
        client = client._replace(arrays=given | {"x_train": given["x_test"][:0], "y_train": given["y_test"][:0]})
    arrays: dict[str, np.ndarray] = {}
    stored: dict[str, str] = {}
    for split in SPLITS:
        x_name, y_name = f"x_{split}", f"y_{split}"
        if split != "train" and not any(client.arrays[name].size for name in (x_name, y_name) if name in client.arrays):
            # empty arrays take shape and type of the training samples
            arrays[x_name], arrays[y_name] = arrays["x_train"][:0], arrays["y_train"][:0]
            continue
        x, y = client.arrays[x_name], client.arrays[y_name]
        _check_lengths(client.sources[split], split, x, y, may_be_empty=bare and len(given["x_test"]) > 0)
        _check_axes(client.sources[split], split, x, y)
        for name, array in ((x_name, x), (y_name, y)):
            arrays[name] = _converted(client.sources[split], name, array, inputs)
        stored[x_name] = str(x.dtype)
    return client._replace(arrays=arrays, stored=stored)


def _check_lengths(source: str, split: str, x: np.ndarray, y: np.ndarray, *, may_be_empty: bool) -> None:
    """Refuse arrays without a sample axis or of different lengths, and empty training arrays."""
    for key, array in (("x", x), ("y", y)):
        require(array.ndim > 0, f"{source}: {key}_{split} is a single number; store an array with one entry per sample")
    require(
        len(x) == len(y), f"{source}: x_{split} has {len(x)} samples and y_{split} has {len(y)}; make them equally long"
    )
    require(
        split != "train" or len(x) > 0 or may_be_empty,
        f"{source}: x_train is empty; give the client at least one training sample, or leave it out",
    )


def _check_axes(source: str, split: str, x: np.ndarray, y: np.ndarray) -> None:
    """Refuse samples without features, and labels [n, 1], which would be taken for sequences."""
    require(0 not in x.shape[1:], f"{source}: x_{split} has shape {list(x.shape)}, without features; store some")
    tokens = x.dtype.kind in "iu" and x.dtype != np.uint8
    require(
        y.shape[1:] != (1,) or (tokens and x.shape[1:] == (1,)),
        f"{source}: y_{split} has shape {list(y.shape)}; store labels as [{len(y)}], as y.squeeze(1) makes them, or "
        "give a LightningModule that reads this shape samples that are dicts, in a Dataset or DataLoader",
    )


def _converted(source: str, name: str, array: np.ndarray, inputs: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Convert an array to its final type; NaN, infinity and negative integers are refused."""
    try:
        array = inputs(array) if name.startswith("x") else label_array(array)
    except ConfigError as error:
        raise ConfigError(f"{source}: array {name}: {error}") from error
    if array.dtype.kind == "f":
        _refuse(~np.isfinite(array), f"{source}: array {name} contains NaN or infinity", "clean or drop these samples")
    elif name.startswith("y"):
        wrong = (array < 0) & (array != IGNORED) if array.ndim > 1 else array < 0
        _refuse(wrong, f"{source}: array {name} contains a negative label", "number the classes from 0")
    else:
        fix = "integers are token ids, from 0 on; store features as floats"
        _refuse(array < 0, f"{source}: array {name} contains a negative integer", fix)
    return array


def _refuse(wrong: np.ndarray, what: str, fix: str) -> None:
    """Raise a `ConfigError` naming the first sample with a wrong element, [n, ...] bool."""
    if wrong.any():
        sample = int(wrong.reshape(len(wrong), -1).any(axis=1).argmax())
        raise ConfigError(f"{what} (first in sample {sample}); {fix}")


def check_alike(clients: list[ClientArrays]) -> None:
    """Raise a `ConfigError` if a client's samples differ in stored or final type or shape from the first client's."""
    first = clients[0]
    types = {name: _sample_type(first.arrays[f"{name}_train"]) for name in ("x", "y")}
    check_types(clients, types, {name: f"{name}_train in {first.sources['train']}" for name in types})
    check_stored(clients, first.stored["x_train"], f"x_train in {first.sources['train']}")


def check_stored(clients: list[ClientArrays], stored_type: str, source: str) -> None:
    """Refuse a mixture of inputs stored as uint8, which are scaled to 0..1, and other types.

    Args:
        clients: clients with arrays in their final types.
        stored_type: the expected stored type.
        source: origin of that type, for the error message.

    Raises:
        ConfigError: naming both origins and types.
    """
    for client in clients:
        for name, found in client.stored.items():
            require(
                (found == "uint8") == (stored_type == "uint8"),
                f"{client.sources[name[2:]]}: {name} is stored as {found}, but {source} as {stored_type}; store the "
                "inputs of all clients with one type, since uint8 is scaled to 0..1 and other types are not",
            )


def check_types(clients: list[ClientArrays], types: dict[str, str], sources: dict[str, str]) -> None:
    """Refuse samples of an unexpected type or shape.

    Args:
        clients: clients with arrays in their final types.
        types: type and shape of samples of `x` and `y`, such as `float32 of shape [64]`.
        sources: origin of both, for the error message.

    Raises:
        ConfigError: naming the file and the array.
    """
    for client in clients:
        for name, array in client.arrays.items():
            require(
                _sample_type(array) == types[name[0]],
                f"{client.sources[name[2:]]}: samples of {name} are {_sample_type(array)}, but those of "
                f"{sources[name[0]]} are {types[name[0]]}; store all clients with one type and sample shape",
            )


def _sample_type(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {list(array.shape[1:])}"


def to_population(clients: list[ClientArrays]) -> Population:
    """Concatenate all clients' arrays; each client's arrays are freed when joined."""
    train, val, test = (_join(clients, split) for split in SPLITS)
    return Population(
        train, val, test, [client.name for client in clients], stored_type=clients[0].stored.get("x_train", ""),
        inputs=clients[0].inputs,
    )  # fmt: skip


def _join(clients: list[ClientArrays], split: str) -> Split:
    x = [client.arrays.pop(f"x_{split}") for client in clients]
    y = [client.arrays.pop(f"y_{split}") for client in clients]
    return make_split(np.concatenate(x), np.concatenate(y), np.array([len(array) for array in y]))
