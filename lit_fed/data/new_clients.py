"""Clients that come after the training, for a checkpoint: read by the data set that read those of the training.

FOLDER/<client>.npz             x_train, y_train and optionally x_test, y_test; or the test arrays alone; after training
                                on several inputs <name>_train and <name>_test of each in place of x_train and x_test
FOLDER/<client>/<class>/*.png   after training on images, with FOLDER/<client>/*.png (optional), which are predicted
FOLDER/<client>.jsonl, .txt     after training on texts, a file or a folder of files for each client, see `texts.py`
FOLDER/<client>/images/*.png    after training on masks, with <client>/masks/*.png of those to adapt on
FILE.csv(.gz), FILE.parquet     rows of all clients, after training on a table
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningDataModule

from lit_fed.core.blocks import serving_blocks
from lit_fed.core.segmentation import Segmentation, flat_population
from lit_fed.core.types import Population, ServingBlock
from lit_fed.data.data_sets.base import Samples, check_names, require, say, scaled_labels
from lit_fed.data.data_sets.client_folder import (
    SPLITS,
    ClientArrays,
    check_stored,
    check_types,
    checked,
    packed,
    read_files,
    to_population,
)
from lit_fed.data.data_sets.hugging_face import HuggingFace
from lit_fed.data.data_sets.image_folder import SUFFIXES, ImageFolder, visible_entries
from lit_fed.data.data_sets.rows import is_table_file
from lit_fed.data.data_sets.table import read_later
from lit_fed.data.data_sets.texts import text_clients
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import Blocks, Predicted
from lit_fed.data.populations.checks import (
    check_labels,
    far_inputs,
    find_client,
    find_client_name,
    with_foreground,
)
from lit_fed.data.populations.splits import Division, cut_part, divided_rows
from lit_fed.errors import ClientError, ConfigError
from lit_fed.system.files import given_path
from lit_fed.system.names import few
from lit_fed.system.packages import pd

__all__ = ["HELD_OUT", "NewClients"]

HELD_OUT = 0.2
"""Share of each client's rows held out for evaluation if a table assigns no test rows."""

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class NewClients(LightningDataModule):
    """Clients that come after the training, named by their files and numbered by name after the seen clients.

    Inputs are converted as in `ClientFolder`: uint8 is scaled to 0..1, other integers are token ids. If the training
    data were normalised, inputs in 0..1, uint8 or floating, are normalised by the same constants.

    Args:
        folder: folder with a .npz file for each client, or of images; or a table.
        facts: facts of the training, from the checkpoint.
        only: name of the only client to serve; None: all.
        seen: they took part in the training, and are numbered as there.
        calibration_fraction: share of their training samples that decide their thresholds; those of seen clients, which
            trained on these samples, are in the checkpoint.
        fewest: number of samples that a threshold takes; a client whose share is smaller keeps all for its model.

    Attributes:
        labelled: whether each client has test labels, [T] bool.
        source: `file` or, in a table, `row` of all test samples, client after client; None: they have neither.
        held_out: whether a share of each client's samples was held out, as in tables whose rows all have labels and no
            split, unless only one client is served.

    Raises:
        ConfigError: naming the file and array that does not fit, or an unknown client.
    """

    predicted = Predicted("unseen", "test")
    seen: Population | None = None

    def __init__(
        self,
        folder: str,
        facts: TrainingFacts,
        only: str | None = None,
        *,
        seen: bool = False,
        calibration_fraction: float = 0.0,
        fewest: int = 1,
    ) -> None:
        super().__init__()
        require(bool(folder), "--clients is not set; pass a folder with a .npz file for each unseen client")
        read = _read(given_path(folder, "--clients"), facts)
        self.held_out = isinstance(read, Samples) and read.split is None and only is None
        given = _divided(read, HELD_OUT if self.held_out else 0.0, folder) if isinstance(read, Samples) else read
        if seen:
            numbers = {one.name: facts.number_of(one.name) for one in given}
            new = [name for name, number in numbers.items() if number is None]
            require(
                not new,
                f"--use_states is true, and {', '.join(new)} took no part in the training; leave it out",
            )
            given = sorted(given, key=lambda one: numbers[one.name] or 0)
        self.source = None
        if isinstance(read, Samples) and (read.files is not None or facts.columns is not None):
            rows = np.concatenate([one.rows for one in given if one.rows is not None])
            self.source = pd.DataFrame({"row": rows + 1} if read.files is None else {"file": read.files[rows]})
        self.labelled = torch.tensor(["y_test" in one.arrays or "x_test" not in one.arrays for one in given])
        clients = [
            checked(_completed(one, facts), may_lack_training="x_train" not in one.arrays, inputs=facts.inputs_of)
            for one in given
        ]
        _check_fit(clients, facts)
        check_names([one.name for one in clients], "clients")
        later = to_population(clients)
        if calibration_fraction and not seen:
            later = cut_part(later, "calibration", calibration_fraction, 0, range(len(clients)), least=fewest)
        if isinstance(facts.target, Segmentation):
            later, _ = with_foreground(later, None, facts.target.ignored, facts.target.num_classes)
        self.unseen = flat_population(later)
        check_labels(facts.target, None, self.unseen)
        said = far_inputs(self.unseen, facts.normalisation, facts.columns)
        if said is not None:
            say(f"--clients {folder}: {said}")
        for split in self.unseen.splits:
            split.first_id = facts.num_clients
            split.ids = torch.tensor([facts.number_of(one) for one in self.unseen.names]) if seen else None
        self.clients_per_block = facts.clients_per_block
        self.served = None if only is None else torch.tensor([find_client(only, {"new": self.unseen})[1]])

    def on_exception(self, exception: BaseException) -> None:
        """Add the client's name to a `ClientError`; Lightning calls this before it re-raises."""
        if isinstance(exception, ClientError):
            exception.client_name = find_client_name(exception.client_id, self.unseen)

    def predict_dataloader(self) -> Blocks[ServingBlock]:
        assert self.trainer is not None
        blocks = serving_blocks(
            self.unseen.test, self.unseen.train, self.served, clients_per_block=self.clients_per_block,
            rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
        )  # fmt: skip
        return Blocks([block._replace(calibration=self.unseen.calibration) for block in blocks])


def _read(root: Path, facts: TrainingFacts) -> Samples | list[ClientArrays]:
    """The clients as their data set reads them: rows of a table, pictures, or stored arrays."""
    npz = "a folder with a .npz file for each unseen client"
    if is_table_file(root) and not root.is_dir():
        if facts.columns is None:
            raise ConfigError(f"--clients {root}: the checkpoint was not trained on a table; pass {npz}")
        return read_later(root, facts.columns, facts.class_names)
    more = "" if facts.columns is None else ", or a table with the columns of the training's"
    require(root.is_dir(), f"--clients {root}: no such folder; pass {npz}{more}")
    texts = text_clients(root)
    if texts is not None and (facts.texts is not None or not texts.others):
        return _texts(root, texts.others, facts, npz)
    clients = read_files(root, (), ARRAYS, () if facts.inputs is None else facts.inputs.names)
    entries = [] if clients else visible_entries(root)
    for entry in entries:
        require(
            entry.is_dir() or entry.suffix.lower() not in SUFFIXES,
            f"--clients {entry}: an image that belongs to no client; move it into a folder named by its client",
        )
    if any(entry.is_dir() for entry in entries):
        return _pictures(root, facts, npz)
    require(bool(clients), f"--clients {root}: no .npz file in it; save one for each client, or pass its subfolder")
    if facts.inputs is None:
        return clients
    wanted = ", ".join(f"{name}_train" for name in facts.inputs.names)
    for client in clients:
        stored = client.arrays.keys() & {"x_train", "x_test"}
        require(bool(stored), f"{client.sources['train']}: has none of the inputs of the training; save {wanted} in it")
    length = None if facts.target.continuous or len(facts.label_shape) != 1 else facts.label_shape[0]
    return packed(clients, facts.inputs, length)


def _texts(root: Path, others: Sequence[Path], facts: TrainingFacts, npz: str) -> Samples:
    known = facts.texts
    if known is None:
        raise ConfigError(
            f"--clients {root}: has files of texts, and the checkpoint was not trained on such; pass {npz}"
        )
    require(not others, f"--clients {root}: {few(one.name for one in others)} beside texts; move them away")
    reader = HuggingFace(str(root), num_classes=max(facts.target.num_classes, 2), **known._asdict())
    samples = reader.later(facts.class_names, continuous=facts.target.continuous)
    require(
        samples.stored_type == facts.stored_type,
        f"--clients {root}: the tokenizer {known.tokenizer} has other words than in the training; give the one of the "
        "training in its place",
    )
    return samples


def _pictures(root: Path, facts: TrainingFacts, npz: str) -> Samples:
    shape, masks = facts.input_shape, isinstance(facts.target, Segmentation)
    pictures = len(shape) == 3 and shape[0] in (1, 3) and shape[1] == shape[2]
    without = "" if facts.class_names else " and classes without names"
    require(
        pictures and (masks or facts.class_names is not None),
        f"--clients {root}: has folders, which are read as clients with images; the checkpoint was trained on inputs "
        f"of shape {list(shape)}{without}: pass {npz}",
    )
    layout = "masks" if masks else "clients"
    return ImageFolder(str(root), layout, shape[1], shape[0], classes=facts.class_names).later()  # type: ignore[arg-type]


def _divided(samples: Samples, held_out: float, source: str) -> list[ClientArrays]:
    """The clients of these samples, with a share held out for testing if nothing assigns any."""
    assert samples.owner is not None
    assert samples.names is not None
    assert samples.labelled is not None
    clients, empty = list[ClientArrays](), list[str]()
    parts = [np.flatnonzero(samples.owner == number) for number in range(len(samples.names))]
    in_time = samples.order is not None and samples.groups is None  # a training by persons was not divided by times
    division = Division(0.0, held_out, split="time" if in_time else "random")
    drawn = divided_rows(parts, samples.split, division, groups=samples.groups, order=samples.order)
    for name, rows in zip(samples.names, drawn, strict=True):
        place, train, test = f"{source}: client {name!r}", np.sort(rows.train), np.sort(rows.test)
        require("/" not in name, f"{place} names a file of results; rename it without /")
        arrays = {"x_train": samples.x[train], "y_train": samples.y[train]} if len(train) else {}
        if len(test):
            known = set(samples.labelled[test])
            require(len(known) == 1, f"{place}: only some of its test samples have a label; label all or none")
            arrays |= {"x_test": samples.x[test]} | ({"y_test": samples.y[test]} if True in known else {})
        if not arrays:
            empty.append(name)
            continue
        clients.append(ClientArrays(name, arrays, dict.fromkeys(SPLITS, place), rows=test))
    if empty:
        say(f"--clients {source}: clients without a sample are left out: {few(empty)}")
    require(bool(clients), f"--clients {source}: no client has a sample; fill the files in")
    return clients


def _completed(client: ClientArrays, facts: TrainingFacts) -> ClientArrays:
    """The client with no training samples if only test inputs are stored, and zeros for labels that are not.

    Results of zeros are left empty.
    """
    arrays, source = dict(client.arrays), client.sources["train"]
    if arrays.keys() - {"x_test", "y_test"} or "x_test" not in arrays:
        for name in ("x_train", "y_train"):
            require(name in arrays, f"{source}: array {name} is missing; save x_train, y_train in it")
        stray = "y_test" in arrays and "x_test" not in arrays
        require(not stray, f"{source}: array x_test is missing; save it beside y_test, or drop y_test")
    else:
        like = arrays.get("y_test", np.zeros(0, np.int64))
        arrays |= {"x_train": arrays["x_test"][:0], "y_train": np.zeros((0, *facts.label_shape), like.dtype)}
    x, y = arrays.get("x_test"), arrays["y_train"]
    if x is not None and "y_test" not in arrays and x.ndim and y.ndim:
        arrays["y_test"] = np.zeros((len(x), *y.shape[1:]), y.dtype)
    for name in ("y_train", "y_test") if facts.target.continuous else ():  # whole numbers may be quantities
        if name in arrays and arrays[name].dtype.kind in "iub":
            arrays[name] = arrays[name].astype(np.float64)
        if name in arrays and arrays[name].dtype.kind == "f" and facts.label_scale is not None:
            arrays[name] = scaled_labels(arrays[name], facts.label_scale)
    return client._replace(arrays=arrays)


def _check_fit(clients: list[ClientArrays], facts: TrainingFacts) -> None:
    """Refuse samples whose type or shape differ from the checkpoint's training."""
    types = {
        "x": f"{facts.input_type} of shape {list(facts.input_shape)}",
        "y": f"{'float32' if facts.target.continuous else 'int64'} of shape {list(facts.label_shape)}",
    }
    check_types(clients, types, dict.fromkeys(types, "the checkpoint's training"))
    if facts.stored_type:
        check_stored(clients, facts.stored_type, "the inputs of the checkpoint's training")
