"""Data sets of the Hugging Face hub, or from folders of `save_to_disk`.

Lhoest et al. "Datasets: A Community Library for Natural Language Processing". EMNLP 2021 (demonstrations).
arXiv:2109.02846, https://huggingface.co/docs/datasets

Annotations are not postponed, for the reason given in `base.py`.
"""

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.core.targets import IGNORED
from lit_fed.data.data_sets.base import (
    PLACE,
    Labels,
    Names,
    PooledDataSet,
    Samples,
    check_names,
    names_of,
    require,
    say,
)
from lit_fed.data.data_sets.hugging_face_columns import (
    ColumnPart,
    InputKind,
    declared_classes,
    dense,
    held_classes,
    kind_of,
    numbered,
    picture_column,
    table_of,
)
from lit_fed.data.data_sets.rows import TableRows, missing_values
from lit_fed.data.data_sets.texts import (
    CHAT,
    ROLES,
    TEXT,
    TextClients,
    Texts,
    byte_tokens,
    next_tokens,
    read_lines,
    split_of,
    text_clients,
    texts_of,
    token_lists,
    vocabulary,
    vocabulary_size,
    word_tokens,
)
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.files import given_path, is_below
from lit_fed.system.foreign_files import yaml_value
from lit_fed.system.names import few
from lit_fed.system.packages import hub_or_cache, optional_package

__all__ = ["HuggingFace"]

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""OWNER/NAME on the hub; a name without owner may be a reader, such as `pandas`, of the working folder."""

SAVED = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes."""

FILE = "text file"  # column with the client of each row where a client is a file, or a folder of files
FORMS = "give each client a file NAME.txt or NAME.jsonl, or a folder of them"


class Columns(NamedTuple):
    """Roles of the columns."""

    inputs: tuple[str, ...]
    kind: InputKind
    labels: tuple[str, ...]
    client: str | None
    features: dict[str, Any]  # of all columns, as `datasets` declares them
    classes: dict[str, tuple[str, ...]] = {}  # names of the classes of each column that declares some, of all splits


ReadLabels = Callable[[TableRows, Columns], tuple[np.ndarray, tuple[str, ...] | None]]
"""Labels of all rows, and names of the classes."""


@dataclass(frozen=True)
class HuggingFace(PooledDataSet):
    """A data set of `datasets`: images, texts, or columns of numbers, with one or several labels.

    Images become uint8 [channels, height, width] and are scaled to 0..1; texts become token ids [max_length]; columns
    of numbers are concatenated to [features], lists contribute all their entries and a `ClassLabel` a 0 or 1 for each
    of its names. Integer labels are classes, with the names of a `ClassLabel`, by which splits are matched; text labels
    are classes in alphabetical order; floating labels are regression targets. Official splits are kept for each client.
    A data set with one split is divided by the fractions of the data module.

    Args:
        path: a folder of `save_to_disk`, or of files that `load_dataset` reads; else a hub name OWNER/NAME. In a folder
            of .txt and .jsonl files without `client_column` a file or subfolder is a client and a line a text, or a
            chat in the tokenizer's template, unless the names are those of splits.
        name: configuration of the data set, as in `load_dataset`.
        split: splits to read and pool, such as `train` or `train+test`; null: train, validation and test, each in its
            role.
        revision: version of a data set on the hub.
        input_columns: one column of images, one of texts, or columns of numbers and `ClassLabel`; empty: the only image
            column, or besides labels and clients the only text column, or all columns of numbers and `ClassLabel`. A
            line names columns that are left out.
        label_column: the label column; several columns give several labels per sample.
        client_column: column with the client of each row; null: a partition divides the rows.
        labels: `multilabel`: entries of a list, or several columns, are separate labels 0 or 1, or a list of
            `ClassLabel` names the labels that hold; `auto`: lists of integers are labels of the positions of a
            sequence, lists of floats regression targets; `regression`: quantities, also integers.
        num_classes: number of classes without a `ClassLabel`; null: one more than the largest training label.
        next_token: labels are the token that follows each token, for a causal language model; -100, which counts
            nowhere, at padding. `num_classes` is the vocabulary.
        prompt_column: with `next_token`, column of texts that stand before the others and are not learned.
        packed: with `next_token`, the texts of a client follow one another in blocks of `max_length`, instead of one
            text a row.
        tokenizer: folder or hub name of a tokenizer for `transformers`; null: UTF-8 bytes, b as b + 1, padded with 0.
        max_length: tokens of a text; longer texts are truncated, and a line counts them.
        image_size: height and width to scale images to; null: no scaling.
    """

    path: str = ""
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    input_columns: Names = ()
    label_column: Names = "label"
    client_column: str | None = None
    labels: Labels = "auto"  # type: ignore[misc]  # the base promises one for the whole class
    num_classes: int | None = None  # type: ignore[misc]
    next_token: bool = False
    prompt_column: str | None = None
    packed: bool = False
    tokenizer: str | None = None
    max_length: int = 128
    image_size: tuple[int, int] | None = None

    reaches = dict.fromkeys(("path", "tokenizer"), "loads from a hub")

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_columns", names_of(self.input_columns))
        scaled = self.image_size is None or min(self.image_size) >= 1, "two whole numbers >= 1, or null"
        check_settings(self, prefix=PLACE, num_classes=">= 2", max_length=">= 1", image_size=scaled)
        for name in ("prompt_column", "packed"):
            require(
                self.next_token or not getattr(self, name),
                f"{PLACE}.{name} is {getattr(self, name)}, which needs {PLACE}.next_token true",
            )
        require(
            not self.packed or self.prompt_column is None,
            f"{PLACE}.packed is true, and a block may begin within a prompt; leave out prompt_column",
        )
        if self.next_token and self.num_classes is None:
            object.__setattr__(self, "num_classes", vocabulary_size(self.tokenizer))

    def prepare(self) -> None:
        """Download a hub data set into the cache of `datasets`."""
        if self.path and not given_path(self.path, "--data.dataset.path").is_dir():
            self._opened()

    def load(self) -> Samples:
        """All rows of the chosen splits, split after split."""
        samples, clients = self._samples(self._parts(self._opened()), self._labels), self._clients()
        if clients is None or samples.split is None:
            return samples
        assert samples.names is not None
        named = [any(split_of(name, one) for one in clients.files[name]) for name in samples.names]
        if all(named):
            return samples
        whose, rest = (
            [name for name, one in zip(samples.names, named, strict=True) if one is kept] for kept in (True, False)
        )
        say(
            f"{PLACE}.path {self.path}: files of {few(whose)} are splits by their names, such as test.txt; the samples "
            f"of {few(rest)} are divided by --data.test_fraction and val_fraction"
        )
        return samples._replace(split=np.where(np.array(named)[samples.owner], samples.split, -1))

    @property
    def texts(self) -> Texts | None:
        """How texts become tokens; None if later clients have other labels than one for each text or token."""
        columns = names_of(self.label_column)
        if self.labels != "auto" or len(columns) > 1:
            return None
        label = "" if self.next_token else "".join(columns)
        return Texts(self.tokenizer, self.max_length, self.next_token, self.packed, self.prompt_column, label)

    def later(self, class_names: tuple[str, ...] | None, *, continuous: bool) -> Samples:
        """The clients of a folder of texts who come after the training; texts without a label are test samples.

        No hub is reached: the tokenizer is a folder, or was loaded before.

        Args:
            class_names: of the training.
            continuous: labels are quantities.
        """
        root = given_path(self.path, "--clients")
        clients = text_clients(root) or TextClients({})
        with hub_or_cache(is_here=True):
            opened = _dataset_of(clients, optional_package("datasets", "datasets>=5.2", "hf", "--clients"), root)
            parts = [ColumnPart(ROLES[name], f"{root}, split {name}", rows) for name, rows in opened.items()]
            samples = self._samples(parts, partial(_later_labels, class_names, continuous), may_lack=True)
        labelled = np.ones(len(samples.y), dtype=bool)
        if not self.next_token:
            labelled = ~np.isnan(samples.y) if continuous else samples.y != IGNORED
        split = samples.split
        if not labelled.all():
            split = np.where(labelled, 0 if split is None else split, 2)
        y = samples.y if self.next_token else np.where(labelled, samples.y, 0)
        return samples._replace(y=y, split=split, labelled=labelled)

    def _samples(self, parts: list[ColumnPart], read_labels: ReadLabels, *, may_lack: bool = False) -> Samples:
        """The rows of these splits, with the labels that are read; `may_lack`: there may be none."""
        columns = self._columns(parts, may_lack=may_lack)
        for part in parts:
            require(len(part.rows) > 0, f"{part.place} has no rows; choose other splits by --data.dataset.split")
        read = dict.fromkeys([*columns.inputs, *columns.labels, *filter(None, (columns.client, self.prompt_column))])
        _check_types(parts, list(read))
        rows, classes = table_of(parts, [one for one in read if kind_of(columns.features[one]) != "image"])
        columns = columns._replace(classes=classes)
        check_names(columns.inputs, "columns")
        for name in columns.inputs:
            check_names(classes.get(name, ()), f"classes of column {name!r}")
        owner, names = (None, None) if columns.client is None else _owners(rows, columns.client, columns)
        split = np.repeat([part.role for part in parts], [len(part.rows) for part in parts])
        if self.next_token:
            x, y, kept = self._continued(rows, columns, split if owner is None else 3 * owner + split)
            owner, split, class_names = None if owner is None else owner[kept], split[kept], None
        else:
            x, (y, class_names) = self._inputs(parts, rows, columns), read_labels(rows, columns)
        held = [f"{one} ({', '.join(classes[one])})" if one in classes else one for one in columns.inputs]
        named = len(held) > 1 or held != list(columns.inputs)
        stored = f"columns {', '.join(held)}" if named else None
        stored = vocabulary(self.tokenizer) if columns.kind == "text" else stored
        return Samples(
            x, y, owner, names, class_names=class_names, split=split if split.any() else None, stored_type=stored,
            unseen=self._unseen(),
        )  # fmt: skip

    def _unseen(self) -> tuple[str, ...]:
        """Names of the clients of text files that are held out of training."""
        clients = self._clients()
        return () if clients is None else clients.unseen

    def _clients(self) -> TextClients | None:
        """The clients of a folder of text files; None if a column names them, or the folder has other files."""
        found = self._texts_found()
        return None if found is None or found.others else found

    def _texts_found(self) -> TextClients | None:
        folder = given_path(self.path, "--data.dataset.path")
        return text_clients(folder) if self.client_column is None and folder.is_dir() else None

    # ------------------------------------------------------------------ from the hub or a folder
    def _opened(self) -> Any:
        """Load the path by `datasets`: a data set, or a dictionary of splits."""
        require(bool(self.path), "HuggingFace: path is not set; pass --data.dataset.path with a folder or a hub name")
        datasets = optional_package("datasets", "datasets>=5.2", "hf", "HuggingFace")
        folder, option = given_path(self.path, "--data.dataset.path"), f"--data.dataset.path {self.path}"
        is_name = HUB_NAME.fullmatch(self.path) is not None
        require(folder.is_dir() or is_name, f"{option}: no such folder; correct it, or give a hub name OWNER/NAME")
        datasets.disable_progress_bars()
        try:
            if any((folder / file).is_file() for file in SAVED):
                opened = datasets.load_from_disk(str(folder))
                for part in opened.values() if isinstance(opened, dict) else (opened,):
                    for file in part.cache_files:
                        name = file["filename"]
                        require(is_below(name, folder), f"{option}: names the file {name}; save it again")
                return opened
            if (clients := self._clients()) is not None:
                opened = _dataset_of(clients, datasets, folder)
                return opened if len(opened) > 1 else opened["train"]
            place = str(folder) if folder.is_dir() else self.path
            _check_card(folder, option)
            with hub_or_cache(folder.is_dir()):
                opened = datasets.load_dataset(place, self.name, revision=self.revision)
            if (mixed := self._texts_found()) is not None:
                parts = list(opened.values())
                others, held = few(one.name for one in mixed.others), ", ".join(parts[0].column_names)
                say(
                    f"{option}: texts of {few(mixed.files)} stand beside {others}, so they are no clients: `datasets` "
                    f"reads {sum(map(len, parts)):,} rows with {held}; move the others away to make each text a client"
                )
            return opened
        except ConfigError:
            raise
        except Exception as error:  # of the network, the hub, its files, or Arrow
            said = str(error).partition("\n")[0] or type(error).__name__
            fix = (
                "save it again by save_to_disk"
                if folder.is_dir()
                else "correct the name, --data.dataset.name and --data.dataset.revision, or without access to the hub "
                "give a folder: load the data set elsewhere, save it by save_to_disk and copy the folder"
            )
            raise ConfigError(f"{option}: cannot be loaded ({said}); {fix}") from error

    def _parts(self, opened: Any) -> list[ColumnPart]:
        """The chosen splits with their roles, in order."""
        if not isinstance(opened, dict):
            require(self.split is None, f"--data.dataset.split {self.split}: {self.path} has no splits; leave it out")
            return [ColumnPart(0, self.path, opened)]
        known, option = list(opened), f"--data.dataset.split {self.split}"
        if self.split is not None:
            wanted = self.split.split("+")
            for one in wanted:
                require(one in known, f"{option}: {self.path} has no split {one!r}; it has {', '.join(known)}")
            return [ColumnPart(0, self._place(one), opened[one]) for one in dict.fromkeys(wanted)]
        if len(known) == 1:
            return [ColumnPart(0, self._place(known[0]), opened[known[0]])]
        others = [one for one in known if one not in ROLES]
        require(
            not others and "train" in known,
            f"{self.path} has the splits {', '.join(known)}, whose roles are not clear; "
            f"choose splits to pool, as in --data.dataset.split {'+'.join(known[:2])}",
        )
        return [ColumnPart(ROLES[one], self._place(one), opened[one]) for one in sorted(known, key=ROLES.__getitem__)]

    def _place(self, split: str) -> str:
        return f"{self.path}, split {split}"

    # ------------------------------------------------------------------ columns
    def _columns(self, parts: list[ColumnPart], *, may_lack: bool = False) -> Columns:
        """Roles of the columns; a `ConfigError` names a missing column, or inputs of several kinds."""
        first = parts[0]
        labels = () if self.next_token else names_of(self.label_column)
        require(bool(labels) or self.next_token, "--data.dataset.label_column is empty; name the column of labels")
        if may_lack:
            labels = tuple(one for one in labels if kind_of(first.rows.features.get(one)) is not None)
        given = [("client_column", self.client_column), ("prompt_column", self.prompt_column)]
        given += [("input_columns", one) for one in self.input_columns] + [("label_column", one) for one in labels]
        for part in parts:
            known = part.rows.column_names
            for option, name in given:
                held = f"has no such column; it has {', '.join(known)}"
                require(name is None or name in known, f"{PLACE}.{option} {name}: {part.place} {held}")
        inputs, client = self.input_columns, self.client_column
        if FILE in first.rows.column_names:
            inputs, client = (CHAT if CHAT in first.rows.column_names else TEXT,), FILE
        free = [name for name in first.rows.column_names if name not in (*labels, client, self.prompt_column)]
        features = first.rows.features
        for name in labels:
            known = kind_of(features[name]) not in (None, "image") or declared_classes(features[name]) is not None
            fix = f"{first.place} has {features[name]} there; store numbers, texts or a ClassLabel"
            require(known, f"{PLACE}.label_column {name}: {fix}")
        kinds = {name: kind_of(features[name]) for name in inputs or free}
        if not inputs:
            kinds = _chosen(kinds, first)
        found = {"numbers" if kind == "classes" else kind for kind in kinds.values()}
        held = ", ".join(str(features[name]) for name in kinds)
        require(
            len(found) == 1 and None not in found and (found == {"numbers"} or len(kinds) == 1),
            f"{PLACE}.input_columns {', '.join(kinds)}: {first.place} has there {held}; give one column of images, one "
            "of texts, or columns of numbers and ClassLabel",
        )
        return Columns(tuple(kinds), found.pop(), labels, client, features)  # type: ignore[arg-type]

    def _inputs(self, parts: list[ColumnPart], rows: TableRows, columns: Columns) -> np.ndarray:
        """Numbers side by side, [n, features] float32, pixels, tokens, or one column of lists [n, ...] as stored."""
        if columns.kind == "numbers":
            each = [
                np.eye(len(columns.classes[name]), dtype=np.float32)[numbered(rows, name)]
                if name in columns.classes
                else dense(rows, name)
                for name in columns.inputs
            ]
            if len(each) == 1 and each[0].ndim > 1:
                return each[0]
            return np.concatenate([one.reshape(len(one), -1).astype(np.float32) for one in each], axis=1)
        (name,) = columns.inputs
        if columns.kind == "image":
            return picture_column(parts, name, self.image_size, Path(self.path).expanduser())
        texts, chats = texts_of(rows, name, self.tokenizer)
        if self.tokenizer is None:
            return byte_tokens(texts, self.max_length)
        return word_tokens(texts, self.tokenizer, self.max_length, f"{PLACE}.tokenizer", is_chat=chats)

    def _continued(
        self, table: TableRows, columns: Columns, group: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens and those that follow, both [n, max_length], and the row [n] that each sample begins in.

        Args:
            table: the data set.
            columns: one of texts.
            group: rows [N] of equal numbers may share a block.
        """
        (name,) = columns.inputs
        require(columns.kind == "text", f"{PLACE}.next_token needs a column of texts, and {name} holds {columns.kind}s")
        texts, chats = texts_of(table, name, self.tokenizer)
        ids, pad = token_lists(texts, self.tokenizer, ends=not chats)
        rows, prompts = np.arange(len(ids)), [0] * len(ids)
        if self.prompt_column is not None:
            before, _ = token_lists(texts_of(table, self.prompt_column, self.tokenizer)[0], self.tokenizer, ends=False)
            prompts = [len(one) for one in before]
            ids = [[*prompt, *text] for prompt, text in zip(before, ids, strict=True)]
        if self.packed:
            order = np.argsort(group, kind="stable")
            starts = np.flatnonzero(np.diff(group[order], prepend=-1))
            joined = [[token for row in rows for token in ids[row]] for rows in np.split(order, starts[1:])]
            cuts = [range(0, max(len(one) - 1, 1), self.max_length) for one in joined]
            rows = np.repeat(order[starts], [len(one) for one in cuts])
            ids = [one[lo : lo + self.max_length + 1] for one, cut in zip(joined, cuts, strict=True) for lo in cut]
            prompts = [0] * len(ids)
        return *next_tokens(ids, prompts, self.max_length, pad), rows

    def _labels(self, rows: TableRows, columns: Columns) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """Labels [n] or [n, L] of all rows, and names of the classes or labels."""
        (first, *others), several = columns.labels, self.labels == "multilabel"
        feature, option = columns.features[first], f"{PLACE}.label_column {', '.join(columns.labels)}"
        listed: Any = getattr(feature, "feature", None)
        if type(listed).__name__ == "ClassLabel" and not others:
            need = f"holds a list of classes for each row; for several labels per row set {PLACE}.labels multilabel"
            require(several, f"{rows.source}: column {first!r} {need}")
            return held_classes(rows, first, len(columns.classes[first])), columns.classes[first]
        if kind_of(feature) == "text" and not several and not others:
            return rows.named(first)
        each = [dense(rows, name) for name in columns.labels]
        y = np.stack(each, axis=1) if others else each[0]
        if several:
            require(
                y.ndim == 2,
                f"{PLACE}.labels multilabel: column {first!r} of {rows.source} holds one number per row; give lists, "
                "or several columns",
            )
            wrong = (y != 0) & (y != 1)
            rows.refuse(", ".join(columns.labels), wrong, "is no multilabel label, 0 or 1; correct it", y)
            held = [f"{name} is {columns.classes[name][-1]!r}" for name in columns.labels if name in columns.classes]
            if held:
                say(f"{option}: a label holds where {', '.join(held)}")
            return y.astype(np.int64), columns.labels if others else None
        if others:
            need = f"for several labels 0 or 1 set {PLACE}.labels multilabel, for regression store floats"
            require(y.dtype.kind == "f", f"{option}: {rows.source} has integers there; {need}")
            return y, columns.labels
        if y.dtype.kind in "iu":
            hidden = f"-1 marks a hidden label: choose other splits by {PLACE}.split, or number the classes from 0"
            rows.refuse(first, (y < 0) & ((y != IGNORED) | (y.ndim == 1)), f"is no class; {hidden}", y)
        return y, columns.classes.get(first)


def _check_card(folder: Path, option: str) -> None:
    """Refuse a folder whose card names files elsewhere, which `datasets` would read, or download."""
    block = importlib.import_module("huggingface_hub.repocard").REGEX_YAML_BLOCK
    for name in ("README.md", ".huggingface.yaml"):
        text = (folder / name).read_text("utf-8") if (folder / name).is_file() else ""
        found = block.search(text) if name == "README.md" else re.fullmatch("()(.*)", text, re.DOTALL)
        card = yaml_value(found[2]) if found else None
        configs = json.dumps(card.get("configs") if isinstance(card, dict) else None)
        for one in map(json.loads, re.findall(r'"(?:[^"\\]|\\.)*"', configs)):
            is_inside = "::" not in one and "://" not in one and is_below(folder / one, folder)
            require(is_inside, f"{option}: {name} names {one!r}, which is not in the folder; remove that entry")


def _dataset_of(clients: TextClients, datasets: Any, root: Path) -> dict[str, Any]:
    """The lines of clients' text files as data sets by split, with a column of clients; also those without a line."""
    names = sorted(clients.files)
    found: dict[str, list[dict[str, Any]]] = {}
    fields, forms = dict.fromkeys((TEXT, FILE)), dict[str, Path]()
    for owner, name in enumerate(names):
        for file in clients.files[name]:
            lines = read_lines(file)
            found.setdefault(split_of(name, file) or "train", []).extend({**line, FILE: owner} for line in lines)
            fields |= dict.fromkeys(key for line in lines for key in line)
            forms = {CHAT if CHAT in line else TEXT: file for line in lines} | forms
    rows = {role: some for role, some in found.items() if some}
    require(bool(rows), f"{root}: no text in it; {FORMS}")
    if CHAT in fields:
        del fields[TEXT]
        require(
            TEXT not in forms, f"{forms[CHAT]} holds {CHAT}, and {forms.get(TEXT)} {TEXT}; give all clients one of both"
        )
    datasets.disable_progress_bars()
    whole = datasets.Dataset.from_dict(
        {name: [row.get(name) for some in rows.values() for row in some] for name in fields}
    )
    whole = whole.cast_column(FILE, datasets.ClassLabel(names=names))
    ends = np.cumsum([0, *map(len, rows.values())]).tolist()
    return {role: whole.select(range(*pair)) for role, pair in zip(rows, pairwise(ends), strict=True)}


def _later_labels(
    class_names: tuple[str, ...] | None, continuous: bool, rows: TableRows, columns: Columns
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels [n] of later clients in the terms of the training; NaN or -100 where one is missing."""
    if not columns.labels:
        return np.full(len(rows.frame), np.nan if continuous else IGNORED), class_names
    (name,) = columns.labels
    missing = missing_values(rows.frame[name])
    if continuous:
        return rows.numbers(name, may_miss=True), None
    if class_names is None:
        return np.where(missing, IGNORED, rows.numbers(name, may_miss=True)).astype(np.int64), None
    wrong = f"is no class of the training ({few(class_names, 6)}); correct it"
    y, _ = rows.named(name, class_names, wrong, may_miss=True)
    return np.where(missing, IGNORED, y), class_names


def _check_types(parts: list[ColumnPart], columns: list[str]) -> None:
    """Refuse splits that hold another kind of values in a column than the first, or lack it; uint8 is scaled."""
    first = parts[0]
    for part in parts[1:]:
        for name in columns:
            feature, wanted = part.rows.features.get(name), first.rows.features[name]
            kinds = {(kind_of(one), "uint8" in str(one)) for one in (feature, wanted)}
            require(
                feature is not None and len(kinds) == 1,
                f"{part.place}: column {name!r} is {feature or 'missing'}, in {first.place} {wanted}; store one "
                f"type, or choose splits by {PLACE}.split",
            )


def _owners(rows: TableRows, column: str, columns: Columns) -> tuple[np.ndarray, list[str]]:
    """The client of each row [n], and the clients' names in order, all that are declared."""
    feature = columns.features[column]
    require(
        str(getattr(feature, "dtype", "")).removeprefix("large_").startswith(("string", "int", "uint", "bool")),
        f"{PLACE}.client_column {column}: {rows.source} has {feature} there; store a text or a whole number",
    )
    if column in columns.classes:
        return numbered(rows, column), list(columns.classes[column])
    owner, names = rows.named(column)
    return owner, list(names)


def _chosen(kinds: dict[str, InputKind | None], part: ColumnPart) -> dict[str, InputKind | None]:
    """Infer the input columns; a line names those that are left out."""
    images, texts, numbers = (
        [name for name in kinds if kinds[name] in those] for those in (("image",), ("text",), ("classes", "numbers"))
    )
    columns = {name: f"{name} ({part.rows.features[name]})" for name in part.rows.features}
    held = ", ".join(columns.values())
    if not (images or texts or numbers):
        raise ConfigError(
            f"{part.place} has no column of inputs besides labels and clients; it has {held}: store numbers"
        )
    chosen = images or texts or numbers
    if (images or texts) and (len(chosen) > 1 or (not images and numbers)):
        raise ConfigError(f"{part.place} has {held}; choose the inputs among them by {PLACE}.input_columns")
    left_out = [columns[name] for name in kinds if name not in chosen]
    if left_out:
        say(
            f"{part.place}: inputs are read from {', '.join(chosen)}, and not from {', '.join(left_out)}; to use "
            f"these, convert them to numbers, or give {PLACE}.input_columns"
        )
    return {one: kinds[one] for one in chosen}
