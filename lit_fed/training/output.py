"""Tables, files and folders of results: checked before anything is computed, written atomically."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import conformal
from lit_fed.core.likelihood import Likelihood
from lit_fed.core.segmentation import Segmentation
from lit_fed.core.targets import Target
from lit_fed.core.types import SPLITS, Population
from lit_fed.data.data_sets.base import MOST_CLASSES
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path, os_error_text, quote, whole_file
from lit_fed.system.packages import pd
from lit_fed.system.spreadsheets import quoted_table

__all__ = [
    "check_creatable", "check_new_folder", "check_run_name", "check_table_file", "check_table_format",
    "check_writable", "new_folder", "prediction_table", "print_line", "print_rows", "source_columns",
    "write_predictions", "write_table",
]  # fmt: skip

TAKEN = ("client", "client_id", "sample", "row", "position", "label", "prediction")
"""Columns of predictions that no column of a table may replace."""

LONGEST_NAME = 200
"""Upper limit of bytes in a folder's name; file systems take 255, and files beside it have longer names."""


@contextmanager
def _writing_in(folder: Path, option: str) -> Iterator[None]:
    """Name the folder and the fix if the system refuses to write in it."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise ConfigError(
            f"{option} {quote(folder)}: {os_error_text(error)}; choose a folder that can be written"
        ) from error


def check_writable(folder: Path, option: str) -> None:
    """Check that a folder can be written.

    Args:
        folder: the folder, created if missing.
        option: the argument that named it.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    with _writing_in(folder, option):
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


def check_creatable(folder: Path, option: str) -> None:
    """Check that a folder can be created and written, without creating it.

    Args:
        folder: the folder.
        option: the argument that named it.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    given_path(str(folder), option)
    with _writing_in(folder, option):
        existing = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        TemporaryFile(dir=existing).close()


def check_run_name(name: str | None) -> None:
    """Refuse a run's name that is no folder below the folder of all runs; `digits/first` is one.

    Args:
        name: the name; None if not given.

    Raises:
        ConfigError: naming the name and the fix.
    """
    if name is None:
        return
    parts = name.split("/")
    wrong = (
        "is empty" if not name.strip()
        else "is a path from the root" if name.startswith("/")
        else "leads out of the folder of runs" if ".." in parts
        else "names no folder" if any(part in ("", ".") for part in parts)
        else "holds a letter that no folder should have" if not name.isprintable()
        else "is too long" if max(len(part.encode()) for part in parts) > LONGEST_NAME
        else None
    )  # fmt: skip
    if wrong:
        shown = name if len(name) <= LONGEST_NAME else name[:20] + "…"
        raise ConfigError(
            f"--name {shown!r} {wrong}; give letters, digits, - and _, at most {LONGEST_NAME} bytes: the run's folder "
            "is <name>/version_<n> below --trainer.default_root_dir"
        )


def check_table_file(output: str | Path, option: str = "--output") -> Path:
    """The file of a table, with `~` expanded.

    Args:
        output: the file.
        option: the argument that named it.

    Raises:
        ConfigError: if its ending is neither .csv nor .parquet, a package is missing or its folder cannot be written.
    """
    path = given_path(str(output), option)
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(
            f"{option} {path}: a table is written as .csv or .parquet; end the file's name in one of them"
        )
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; give a file in it")
    check_table_format(path.suffix[1:])
    check_writable(path.parent, option)
    return path


def check_table_format(name: str) -> None:
    """Refuse `parquet` where the package that writes it is missing.

    Raises:
        ConfigError: naming the command that installs it.
    """
    if name == "parquet":
        try:
            importlib.import_module("pyarrow")
        except ImportError as error:
            raise ConfigError(
                'parquet files need the package pyarrow; pip install "pyarrow>=15", or choose csv'
            ) from error


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table atomically as .csv, with texts quoted against formulas of spreadsheets, or as .parquet."""
    with whole_file(path) as file:
        if path.suffix == ".parquet":
            table.to_parquet(file, index=False, engine="pyarrow")
        else:
            quoted_table(table).to_csv(file, index=False)


def write_predictions(table: pd.DataFrame, path: Path) -> None:
    """Write a table of predictions as `write_table` does; of masks the table names files.

    A mask is a PNG file of one channel, whose pixels are the predicted classes: `<table>_masks/<client>/<file>.png`
    beside the table, with the name of the image's file, or else the number of the sample. The labels are left out.
    """
    if len(table) and isinstance(table["prediction"].iloc[0], np.ndarray):
        masks = path.with_name(f"{path.stem}_masks")
        files = [masks.joinpath(*_name_of_mask(row)) for row in table.to_dict("records")]
        for file, classes in zip(files, table["prediction"], strict=True):
            _write_mask(classes, file)
        named = [file.relative_to(path.parent).as_posix() for file in files]
        table = table.drop(columns="label").assign(prediction=named)
    write_table(table, path)


def _name_of_mask(row: Mapping[Any, Any]) -> tuple[str, str]:
    client, image = str(row["client"]), row.get("file")
    folder = client if Path(client).name == client else f"client {row['client_id']}"  # a name need not be a file's
    return folder, f"{row['sample'] if image is None else Path(image).stem}.png"


def _write_mask(classes: np.ndarray, path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        Image.fromarray(classes).save(file, "PNG")


def print_line(line: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_rows(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1, caption: str | None = None,
    width: int = 100, overflow: Literal["ellipsis", "fold"] = "ellipsis",
) -> None:  # fmt: skip
    """Print a table; all columns but the first `words` are aligned to the right. `width` is for output to a file."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < words else "right", overflow=overflow)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else width, markup=False, emoji=False).print(table)  # names hold [ and :


def check_new_folder(output: str | Path) -> Path:
    """A new or empty folder of results, with `~` expanded.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    path = given_path(str(output), "--output")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"--output {path} exists and is not empty; choose a new folder")
    check_writable(path.absolute().parent, "--output")
    return path


@contextmanager
def new_folder(path: Path, *, owner: bool) -> Iterator[Path]:
    """A temporary folder beside `path` for results, moved there at the end or deleted after an error.

    Args:
        path: folder of the results; missing or empty.
        owner: whether this process moves and deletes.
    """
    partial = path.absolute().with_name(f".{path.name}.partial")
    if not owner:
        yield partial
        return
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    try:
        yield partial
        if path.exists():
            path.rmdir()
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class Predictions(Protocol):
    """Predictions for the samples of some clients."""

    @property
    def client_ids(self) -> Tensor:
        """The clients, [C]."""

    @property
    def sizes(self) -> Tensor:
        """Samples of each, [C]."""

    @property
    def labels(self) -> Tensor:
        """Client after client, [n] or [n, L]."""

    @property
    def log_prob(self) -> Tensor:
        """Predictions, [n, C] or [n, L, C], or for regression [n, 1] or [n, C]."""

    @property
    def posteriors(self) -> Tensor | None:
        """Responsibilities of the components, [n, M]; None: not asked."""

    @property
    def thresholds(self) -> Tensor | None:
        """Thresholds of prediction sets, [C]; None: not asked."""

    @property
    def owned(self) -> Tensor | None:
        """Whether a threshold is by the client's own samples, [C] bool."""


def prediction_table(
    served: Predictions, names: Mapping[int, str], facts: TrainingFacts, source: pd.DataFrame | None = None
) -> pd.DataFrame:
    """One row for each sample, of sequences for each position of each sample.

    Args:
        served: the predictions.
        names: name of each client, by number.
        facts: target, shape of labels, and names of the classes or of several labels.
        source: columns that describe the samples, [n], beside `sample`; None: none.

    Returns:
        Columns `client` (name), `client_id`, `sample` (position in the client's split), for sequences `position`,
        `label`, `prediction`, and for classes the float32 probabilities `p_0` … `p_{C-1}`, with names of classes
        instead of numbers where there are any. Of several labels each has its `label_0`, …, `prediction_0`, … and, as
        the probability that it is 1, `p_0`, …; of vectors each entry has the first two. Positions with many classes,
        as those of texts, have the probabilities of their label and of the prediction alone, `p_label` and
        `p_prediction`; next tokens of texts are words instead of numbers, and positions that do not count have no row.
        Of masks `label` and `prediction` are arrays [height, width], and `accuracy` is the share of
        labelled pixels that are predicted. Responsibilities are `q_0` … `q_{M-1}`. With thresholds, `set` holds the
        names of classes with `|` between them, and `lower` and `upper` the ends of intervals.
    """
    target = facts.target
    masks = isinstance(target, Segmentation)
    length = served.labels.shape[1] if target.positions and not masks else 1
    client_ids = served.client_ids.repeat_interleave(served.sizes)
    before = served.sizes.cumsum(0) - served.sizes
    sample = torch.arange(len(client_ids)) - before.repeat_interleave(served.sizes)
    columns: dict[str, Any] = {
        "client": np.array([names[one] for one in served.client_ids.tolist()]).repeat(served.sizes * length),
        "client_id": client_ids.repeat_interleave(length).numpy(),
        "sample": sample.repeat_interleave(length).numpy(),
    }
    parts = {} if source is None else {str(name): cells.to_numpy() for name, cells in source.items()}
    if served.posteriors is not None:
        parts |= {f"q_{m}": q.numpy() for m, q in enumerate(served.posteriors.unbind(1))}
    parts |= _regions(served, target, facts.class_names, taken=parts)
    columns |= {name: cells.repeat(length) for name, cells in parts.items()}
    if target.positions and not masks:
        columns["position"] = torch.arange(length).repeat(len(sample)).numpy()
    if not len(served.labels):  # clients adapted on all their samples
        return pd.DataFrame(columns | dict.fromkeys(("label", "prediction"), served.labels.flatten().numpy()))
    table = pd.DataFrame(columns | _columns_of(served, facts))
    if not _holds_tokens(facts) or target.ignored is None:
        return table
    counted = served.labels.flatten() != target.ignored
    return table[counted.numpy()].reset_index(drop=True)


def _holds_tokens(facts: TrainingFacts) -> bool:
    """Whether labels are the next tokens of texts."""
    return facts.texts is not None and facts.texts.next_token


def _columns_of(served: Predictions, facts: TrainingFacts) -> dict[str, Any]:
    """Columns of labels and predictions, by the kind of the target."""
    target = facts.target
    if isinstance(target, Segmentation):
        return _mask_columns(served, target, facts.label_shape)
    if isinstance(target, Likelihood):
        return _own_columns(served, target)
    if target.vectors:
        return _vector_columns(served, target, facts.class_names)
    if target.continuous:
        values = served.labels.flatten(), target.shown(served.log_prob)
        return {name: target.in_units(one).numpy() for name, one in zip(("label", "prediction"), values, strict=True)}
    if not _holds_tokens(facts):
        return _class_columns(served, target, facts.class_names)
    assert facts.texts is not None
    columns = _class_columns(served, target, None)
    return columns | {name: facts.texts.words(columns[name]) for name in ("label", "prediction")}


def _class_columns(served: Predictions, target: Target, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Columns of classes, of samples or positions; `class_names` [C], None: their numbers."""
    log_prob = served.log_prob.flatten(0, -2)
    columns = {"label": served.labels.flatten().numpy(), "prediction": log_prob.argmax(1).numpy()}
    if class_names is not None:
        called = np.array(class_names, dtype=object)
        called = called if target.ignored is None else np.append(called, "")
        known = dict(columns)
        if target.ignored is not None:  # positions that do not count have no name
            known["label"] = np.where(known["label"] == target.ignored, -1, known["label"])
        columns = {name: called[numbers] for name, numbers in known.items()}
    probabilities = log_prob.exp_()
    if target.positions and probabilities.shape[1] > MOST_CLASSES:
        label = served.labels.flatten()
        counted = torch.ones_like(label, dtype=torch.bool) if target.ignored is None else label != target.ignored
        own = probabilities.gather(1, label.where(counted, 0).unsqueeze(1))[:, 0].masked_fill(~counted, torch.nan)
        return columns | {"p_label": own.numpy(), "p_prediction": probabilities.amax(1).numpy()}
    classes = range(probabilities.shape[1]) if class_names is None else class_names
    return columns | {f"p_{name}": probabilities[:, c].numpy() for c, name in enumerate(classes)}


def _regions(
    served: Predictions, target: Target, class_names: tuple[str, ...] | None, taken: Collection[str]
) -> dict[str, np.ndarray]:
    """Columns of prediction sets, or of the ends of intervals; {} without thresholds or samples.

    Raises:
        ConfigError: if a column of the table has such a name.
    """
    if served.thresholds is None or not len(served.labels):
        return {}
    names = ("lower", "upper") if target.continuous else ("set",)
    if found := set(names) & set(taken):
        raise ConfigError(
            f"--keep {min(found)}: --model.conformal writes a column of this name; rename it in the table"
        )
    each = served.thresholds.repeat_interleave(served.sizes)
    if target.continuous:
        ends = conformal.intervals(target, served.log_prob, each)
        return {name: end.numpy() for name, end in zip(names, ends, strict=True)}
    held = conformal.sets(served.log_prob, each).numpy()
    called = np.array(class_names or [str(one) for one in range(held.shape[1])], dtype=object)
    return {"set": np.array(["|".join(called[row]) for row in held], dtype=object)}


def source_columns(
    client_ids: Tensor, clients: Population, split: str, cells: pd.DataFrame | None
) -> pd.DataFrame | None:
    """Origin of each sample of these clients: its `file`, or its `row` in a table and other columns; None: unknown.

    Args:
        client_ids: the clients whose samples are predicted, ascending.
        clients: the population.
        split: name of the split.
        cells: columns of all rows of the table; None: none.

    Raises:
        ConfigError: if samples were left out of the split, so that rows are not known, or a name is taken.
    """
    place = SPLITS.index(split)
    own, rows = clients.splits[place], None if clients.rows is None else clients.rows[place]
    if rows is None or len(rows) != own.num_samples:
        if cells is not None:
            raise ConfigError(f"--keep: samples without a label were left out of --split {split}; choose another split")
        return None
    found = clients.rows_of(place, own.positions(client_ids)).numpy()
    if clients.files is not None:
        return pd.DataFrame({"file": clients.files[found]})
    source = pd.DataFrame({"row": found + 1})
    for name, column in () if cells is None else cells.items():
        if str(name) in TAKEN:
            raise ConfigError(f"--keep {name}: predictions have a column of this name; rename it in the table")
        source[name] = column.to_numpy()[found]
    return source


def _mask_columns(served: Predictions, target: Segmentation, shape: tuple[int, ...]) -> dict[str, Any]:
    """Columns of masks of this shape, (H, W), from positions [n, H·W]."""
    kind = np.uint8 if target.num_classes <= 2**8 else np.uint16
    called = served.log_prob.argmax(-1)
    labelled = torch.ones_like(called, dtype=torch.bool) if target.ignored is None else served.labels != target.ignored
    hits = (called == served.labels) & labelled
    return {
        "label": list(served.labels.unflatten(1, shape).numpy()),
        "prediction": list(called.unflatten(1, shape).numpy().astype(kind)),
        "accuracy": (hits.sum(1) / labelled.sum(1)).numpy(),
    }


def _own_columns(served: Predictions, target: Likelihood) -> dict[str, np.ndarray]:
    """Columns of user-defined labels and predictions; those with several entries are numbered."""
    columns: dict[str, np.ndarray] = {}
    shown = target.columns(target.in_units(target.shown(served.log_prob)))
    for kind, values in {"label": target.in_units(served.labels), **shown}.items():
        rows = values.flatten(0, 1) if target.positions else values
        each = {kind: rows} if rows.ndim == 1 else dict(enumerate(rows.flatten(1).unbind(1)))
        columns |= {one if one == kind else f"{kind}_{one}": column.numpy() for one, column in each.items()}
    return columns


def _vector_columns(served: Predictions, target: Target, names: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """Columns of labels that are vectors of C entries, by their names or numbers."""
    shown = target.shown(served.log_prob)  # [n, C]
    values = {"label": served.labels, "prediction": shown}
    if not target.continuous:
        values |= {"prediction": served.log_prob.argmax(-1), "p": shown}
    called = names or range(shown.shape[1])
    columns = {kind: zip(called, rows.unbind(1), strict=True) for kind, rows in values.items()}
    return {f"{kind}_{name}": column.numpy() for kind, pairs in columns.items() for name, column in pairs}
