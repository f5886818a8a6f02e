"""Checks of loaded and divided populations, their fingerprint, and clients by name."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.segmentation import Segmentation
from lit_fed.core.targets import IGNORED, Binary, Multiclass, Regression, Sequences, Target
from lit_fed.core.types import SPLITS, Population, Split
from lit_fed.data.data_sets.base import MOST_CLASSES, DataSet, Normalisation, say
from lit_fed.data.data_sets.columns import TableColumns
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.errors import ConfigError
from lit_fed.metrics.scores import outlier
from lit_fed.system.names import few
from lit_fed.system.spreadsheets import unquoted

__all__ = [
    "all_splits", "check_equal_inputs", "check_finite_samples", "check_labels", "check_mask_values",
    "check_missing_classes", "check_training", "far_inputs", "find_client", "find_client_name", "fingerprint",
    "learned_constants", "looked_at", "num_classes_of", "outlying_inputs", "rounded_numbers", "say_rare_class",
    "scale_of_labels", "taken_labels", "with_foreground", "with_ignored", "without_unlabelled",
]  # fmt: skip

CLIENTS_LOOKED_AT = 8
"""Number of clients checked if samples are generated on demand."""


def check_labels(target: Target, seen: Population | None, unseen: Population | None = None) -> None:
    """Raise a `ConfigError` naming split, client and label if a class is outside 0 … C − 1.

    Checks only a few clients if samples are generated on demand.
    """
    if target.continuous:
        return
    for kind, name, population, split in all_splits(seen, unseen, samples=True):
        wrong = (split.y < 0) | (split.y >= target.num_values)
        if target.ignored is not None:
            wrong &= split.y != target.ignored
        row = _first_row(wrong)
        if row is not None:
            label = int(split.y[wrong][0])
            fix = "number the classes from 0" if label < 0 else "correct it, or train with a larger num_classes"
            fix = "multilabel labels are 0 or 1" if target.vectors else fix
            fix = f"number the classes from 0; {IGNORED} marks positions to ignore" if target.positions else fix
            raise ConfigError(
                f"{name} split of {kind} client {_owner_name(population, split, row)!r}: "
                f"label {label} is outside 0 … {target.num_values - 1}; {fix}"
            )


def with_ignored(target: Target, seen: Population, unseen: Population | None = None, *, pads: bool = False) -> Target:
    """The target, ignoring labels -100 at positions if there are some and it does not name another.

    Args:
        target: the target.
        seen: the training clients.
        unseen: clients held out of training, or None.
        pads: whether masks get pixels from outside their pictures in local steps.
    """
    if not isinstance(target, Sequences) or target.ignored is not None:
        return target
    if pads and isinstance(target, Segmentation):
        return replace(target, ignore_index=IGNORED)
    found = any(bool((split.y == IGNORED).any()) for *_, split in all_splits(seen, unseen, samples=True))
    return replace(target, ignore_index=IGNORED) if found else target


def without_unlabelled(target: Target, population: Population) -> tuple[Population, int]:
    """The clients with their labelled training samples, and the number of samples without any label.

    Samples that are read or generated on demand all stay; the clients' masks leave out those without a label.
    """
    train = population.train
    if not target.partly_labelled or type(train) is not Split:
        return population, 0
    kept = target.counted(train.y, torch.ones(len(train.y))) > 0
    if kept.all():
        return population, 0
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    fewer = Split(train.x[kept], train.y[kept], before[train.offsets], train.first_id, train.ids)
    return population._replace(train=fewer), int((~kept).sum())


def learned_constants(dataset: DataSet, seen: Population, target: Target) -> tuple[str, ...]:
    """Names of constants learned from clients' samples before training; ε does not cover them."""
    declared = dataset.num_classes is not None or getattr(dataset, "constants", None) is not None
    return seen.learned if target.continuous or declared else (*seen.learned, "the classes")


def num_classes_of(dataset: DataSet, seen: Population) -> int | None:
    """Number of classes, from the data set or the class names; None: unknown.

    Raises:
        ConfigError: if both are given and differ.
    """
    if seen.class_names is None:
        return dataset.num_classes
    named = len(seen.class_names)
    if dataset.num_classes not in (None, named):
        raise ConfigError(
            f"num_classes of {type(dataset).__name__} is {dataset.num_classes}, its data name {named} classes; "
            "leave num_classes out"
        )
    return named


def check_missing_classes(dataset: DataSet, target: Target, seen: Population, unseen: Population | None = None) -> None:
    """Refuse ambiguous labels, and classes below the largest label that have no sample.

    One wrong large label would otherwise add outputs to the network, and labels from 1 would add a class. Missing
    classes are allowed if the data set knows the number of classes, and in sequences, whose vocabulary may be large.

    Raises:
        ConfigError: naming the client with the largest label, that label and the first missing class; or if
            num_classes is given for floating labels.
    """
    if target.continuous and dataset.num_classes is not None:
        raise ConfigError(
            f"num_classes of {type(dataset).__name__} is {dataset.num_classes}, but the labels are floating; store "
            "whole numbers from 0, or leave num_classes out for a regression"
        )
    if target.continuous or dataset.unsaid == "task":
        _check_doubtful_labels(dataset, target, seen)
    _check_two_columns(dataset, seen)
    known = dataset.num_classes is not None or seen.class_names is not None
    if known or target.continuous or target.positions or target.vectors:
        return
    row = int(seen.train.y.argmax())
    largest = int(seen.train.y[row])
    held = torch.cat([split.y.unique() for _, _, _, split in all_splits(seen, unseen, samples=True)]).unique()
    held = held[(held >= 0) & (held <= largest)]
    if len(held) == largest + 1:
        _check_doubtful_labels(dataset, target, seen)
        return
    missing = _first_row(held != torch.arange(len(held)))
    own = "num_classes" in getattr(dataset, "__dataclass_fields__", {})
    say = "--data.dataset.num_classes" if own else "--model.target Multiclass --model.target.num_classes"
    raise ConfigError(
        f"train split of seen client {_owner_name(seen, seen.train, row)!r}: label {largest} means {largest + 1} "
        f"classes, but no sample has class {len(held) if missing is None else missing}; number the classes 0, 1, 2, … "
        f"without a gap, correct the label, or give the number of classes by {say}"
        f"{' (quantities: --data.dataset.labels regression)' if _is_guessed(dataset, seen) else ''}"
    )


def _is_guessed(dataset: DataSet, seen: Population) -> bool:
    """Whether the kind of labels is inferred from their values alone, and the user can set it."""
    if dataset.is_remote or dataset.num_classes is not None:
        return False
    if dataset.unsaid == "task":  # a table, in which texts are classes
        return all(one.lstrip("-").isdecimal() for one in seen.class_names or ())
    return dataset.unsaid is not None and seen.class_names is None


def _check_doubtful_labels(dataset: DataSet, target: Target, seen: Population) -> None:
    """Refuse floating labels with few whole values, and integer labels with many."""
    y = looked_at(seen.train).y
    if not _is_guessed(dataset, seen) or not len(y):
        return
    option, is_table = f"--data.dataset.{dataset.unsaid}", dataset.unsaid == "task"
    rounding = 0.0
    if seen.label_scale is not None:  # standardising rounded them
        y, rounding = target.standardised(seen.label_scale).in_units(y), 1e-6 * seen.label_scale[1]
    values = y.unique()
    whole = target.continuous and bool(((values - values.round()).abs() <= rounding).all())
    if whole and len(values) <= MOST_CLASSES:
        shown = ", ".join([f"{value:.1f}" for value in (values[:4].round() + 0.0).tolist()] + ["…"] * (len(values) > 4))
        kind = "several labels per sample, with --data.dataset.labels multilabel" if target.vectors else "classes"
        kind += f", with {option} classification" if is_table else ""
        raise ConfigError(
            f"the training labels are floating and hold {len(values)} whole numbers ({shown}); store integers if they "
            f"are {kind}, or give {option} regression if they are quantities, or a --model.target: "
            f"{'MultiLabel or VectorRegression' if target.vectors else 'Multiclass or Regression'}"
        )
    if not target.continuous and not target.positions and target.num_classes > MOST_CLASSES:
        own = "num_classes" in getattr(dataset, "__dataclass_fields__", {})
        classes = f"--data.dataset.num_classes {target.num_classes}" if own else "--model.target Multiclass"
        classes = f"{option} classification" if is_table else classes
        raise ConfigError(
            f"the training labels hold {target.num_classes} different whole numbers; give {classes} if they are "
            f"classes, or {option} regression if they are quantities, or a --model.target: Multiclass, Regression, or "
            "Poisson for counts"
        )


RARE = 0.05
"""Share of the training labels below which a class of few is named."""


def say_rare_class(target: Target, seen: Population) -> None:
    """Name the rarest class if it is far rarer than the others, and what guessing the most frequent one is worth."""
    y = looked_at(seen.train).y
    if not isinstance(target, Binary | Multiclass) or y.ndim > 1 or not len(y):
        return
    shares = torch.bincount(y, minlength=target.num_values).double() / len(y)
    held = [one for one in shares.argsort().tolist() if shares[one] > 0]
    rare, usual = held[0], held[-1]
    if len(held) < 2 or shares[rare] >= min(RARE, 0.25 / len(held)):
        return
    names = [str(one) for one in range(len(shares))] if seen.class_names is None else seen.class_names
    say(
        f"{100 * shares[rare]:.2g} % of the training labels are {names[rare]!r}, and always guessing {names[usual]!r} "
        f"has an accuracy of {shares[usual]:.3f}; --model.metrics [AUROC] tells more, and --model.loss CrossEntropy "
        "--model.loss.weight inverse_frequency counts rare classes as much as others"
    )


VOID = 255
"""Value of white pixels, and in many data sets of pixels that do not count."""


def with_foreground(
    seen: Population, unseen: Population | None, ignored: int | None, num_classes: int
) -> tuple[Population, Population | None]:
    """The clients with masks of 0 and one other value, such as 255, as classes 0 and 1; a line says it.

    Args:
        seen: the clients.
        unseen: clients held out of training, or None.
        ignored: value of pixels that do not count.
        num_classes: number of classes if given, else 0; masks of more than two are unchanged.
    """
    held, splits = _mask_values(seen, unseen, ignored), [one for *_, one in all_splits(seen, unseen)]
    is_here = all(type(one) is Split for one in splits)  # neither drawn when needed nor on other machines
    if num_classes not in (0, 2) or not is_here or len(held) != 2 or held[0] or held[1] == 1:
        return seen, unseen
    say(f"masks hold 0 and {held[1]}, which are read as the classes 0 and 1")

    def read(split: Split) -> Split:
        y = torch.where(split.y == held[1], 1, split.y)
        return Split(split.x, y, split.offsets, split.first_id, split.ids)

    return seen.with_splits(read), None if unseen is None else unseen.with_splits(read)


def _mask_values(seen: Population, unseen: Population | None, ignored: int | None) -> list[int]:
    """Values of the pixels that count, ascending; [] if labels are no masks."""
    labels = [split.y for *_, split in all_splits(seen, unseen, samples=True)]
    masks = [y.unique() for y in labels if y.ndim == 3 and not y.is_floating_point()]
    held = torch.cat(masks or [torch.zeros(0)]).unique()
    values: list[int] = held[(held >= 0) & (held != (IGNORED if ignored is None else ignored))].tolist()
    return values


def check_mask_values(dataset: DataSet, target: Segmentation, seen: Population, unseen: Population | None) -> None:
    """Refuse masks that are not of the classes 0, 1, 2, …, where the number of classes is not given.

    Raises:
        ConfigError: naming the values.
    """
    option, held = "--model.target Segmentation --model.target.", _mask_values(seen, unseen, target.ignored)
    if dataset.is_remote and target.num_classes == VOID + 1:
        raise ConfigError(
            f"masks on nodes hold {VOID}; store the classes 0, 1, 2, …, or give {option}num_classes, and ignore_index "
            f"if pixels of {VOID} do not count"
        )
    if len(held) == 1:
        void = "" if target.ignored is None else f"besides {target.ignored}, which is ignored, "
        raise ConfigError(f"{void}masks hold {held[0]} alone; give masks of two classes or more")
    if held != [*range(len(held))]:
        shown = ", ".join([*map(str, held[:4]), *["…"] * (len(held) > 5), *map(str, held[4:][-1:])])
        void = f", or if pixels of {VOID} do not count {option}ignore_index {VOID}" if held[-1] == VOID else ""
        raise ConfigError(
            f"masks hold the values {shown}, which are not the classes 0, 1, 2, …; number the classes, as np.unique("
            f"masks, return_inverse=True) does, or if some occur nowhere give {option}num_classes{void}"
        )


def _check_two_columns(dataset: DataSet, seen: Population) -> None:
    """Refuse undeclared labels [n, 2], unless inputs are sequences of two tokens."""
    y, x = seen.train.y, seen.train.x
    if y.shape[1:] != (2,) or not len(y) or not _is_guessed(dataset, seen):
        return
    if y.is_floating_point() or x.is_floating_point() or x.shape[1:] != (2,):
        integers = "" if y.is_floating_point() else "Sequences (a class at each of two positions), MultiLabel, "
        raise ConfigError(
            f"the training labels have two columns, as in {[round(one, 4) for one in y[0].tolist()]}; say what they "
            f"are by --model.target: {integers}VectorRegression (two numbers), or a Likelihood of your own, such as "
            "that of a time and whether its event was seen"
        )


def taken_labels(dataset: DataSet, target: Target, seen: Population) -> str | None:
    """Message on the inferred kind of labels and the option that changes it; None if it was given."""
    if isinstance(target, Segmentation) and (dataset.is_remote or _is_guessed(dataset, seen)):
        return f"labels are taken for masks of {target.num_classes} classes"
    if dataset.is_remote:
        taken = "quantities, a regression" if target.continuous else f"{target.num_classes} classes"
        stored, other = ("floats", "integers") if target.continuous else ("integers", "floats")
        otherwise = "classes" if target.continuous else "quantities"
        return f"labels are taken for {taken}: the nodes store {stored}; {other} would be {otherwise}"
    if not _is_guessed(dataset, seen):
        return None
    is_table, option = dataset.unsaid == "task", f"--data.dataset.{dataset.unsaid}"
    others = "regression" if not target.continuous else "classification" if is_table else "multilabel"
    if target.positions:
        return (
            f"labels are taken for classes of positions of a sequence ({option} multilabel: several labels per sample)"
        )
    if target.continuous:
        otherwise = f" (set {option} {others} otherwise)" if is_table or target.vectors else ""
        return f"labels are taken for quantities, a regression{otherwise}"
    return f"labels are taken for {target.num_classes} classes, as whole numbers (set {option} {others} otherwise)"


FAR_FROM_ONE = 10.0
"""Deviations of labels above it, or below its inverse, are named."""


def scale_of_labels(dataset: DataSet, target: Target, seen: Population) -> str | None:
    """Message on standardised labels, or on quantities whose deviation is far from 1; None: there is nothing to say."""
    if seen.label_scale is not None:
        mean, std = seen.label_scale
        return (
            f"labels are standardised by the mean {mean:.4g} and deviation {std:.4g} of the training rows: loss is "
            f"that of standardised labels, predictions and {target.metric} are in units of the column (set "
            "--data.dataset.standardize_labels false otherwise)"
        )
    if not isinstance(target, Regression):
        return None
    y = looked_at(seen.train).y
    std = float(y.std()) if len(y) > 1 else 1.0
    if dataset.is_remote or std == 0 or 1 / FAR_FROM_ONE <= std <= FAR_FROM_ONE:
        return None
    return (
        f"the deviation of the training labels is {std:.3g}, and losses and E-steps take them to have a variance of 1 "
        "around the predictions; scale them to about 1, and the learning rate may stay"
    )


FEW_STEPS = 100
"""Numbers that differ by fewer steps of float32 are named."""


def rounded_numbers(seen: Population) -> str | None:
    """Warning about inputs or labels whose differences float32 rounds off; None if there are none.

    All clients count: those of one may be near to each other. Checks only a few if samples are generated on demand.
    """
    found, few_clients = list[str](), looked_at(seen.train)
    for what, values in (("inputs", few_clients.x), ("labels", few_clients.y)):
        if not values.is_floating_point() or not len(values):
            continue
        low, high = values.reshape(len(values), -1).aminmax(dim=0)
        largest = torch.maximum(low.abs(), high.abs())
        step = torch.nextafter(largest, largest.new_tensor(torch.inf)) - largest
        places = ((high > low) & (high - low < FEW_STEPS * step)).nonzero().flatten().tolist()
        found += [
            f"{what} at place {one} of a sample lie between {low[one]:.9g} and {high[one]:.9g}, where float32 has "
            f"steps of {step[one]:.3g}"
            for one in places
        ]
    return f"{few(found, 3, between='; ')}: take their mean off before, in float64" if found else None


def outlying_inputs(seen: Population, unseen: Population | None = None) -> str | None:
    """Warning about a client whose inputs are far larger than all others'; None if there is none.

    Checks only a few clients if samples are generated on demand.
    """
    if not seen.train.x.is_floating_point() or seen.inputs is not None:  # ids beside floats have no scale
        return None
    names: list[str] = []
    largest: list[float] = []
    for _, _, population, split in all_splits(seen, unseen, samples=True):
        for position, (start, end) in enumerate(pairwise(split.offsets.tolist())):
            if start < end:
                low, high = split.x[start:end].aminmax()
                names.append(_name_at(population, split, position))
                largest.append(max(float(high), -float(low)))
    found = outlier(torch.tensor(largest)) if largest else None  # empty for remote clients
    if found is None:
        return None
    position, value, median = found
    return (
        f"client {names[position]!r} has inputs up to {value:.3g}, the median of all clients is {median:.3g}; they "
        "dominate every mean over clients: clean or scale them, or leave the client out"
    )


FAR = 6.0
"""Deviations from the training mean above which an input is named."""


def far_inputs(
    population: Population | None, constants: Normalisation | None, columns: TableColumns | None
) -> str | None:
    """Message on columns, or channels of pictures, that are far from their training mean; None: there are none.

    Of a picture the mean counts. Checks only a few clients if samples are generated on demand.

    Args:
        population: the clients, whose inputs are normalised.
        constants: of the training; None: there is nothing to compare with.
        columns: of the training's table.
    """
    if population is None or constants is None:
        return None
    far: dict[str, Tensor] = {}
    rows: Counter[str] = Counter()
    for *_, split in all_splits(None, population, samples=True):
        x = split.x if split.x.ndim == 2 else split.x.flatten(2).mean(2)
        for position, (start, end) in enumerate(pairwise(split.offsets.tolist())):
            name = _name_at(population, split, position)
            far[name] = far.get(name, 0) + (x[start:end].abs() > FAR).sum(0)
            rows[name] += end - start
    names = [f"channel {one}" for one in range(len(constants.mean))] if columns is None else columns.input_names
    found = [
        f"{names[place]} at client {name!r} ({100 * int(counts[place]) / rows[name]:.3g} % of {rows[name]} rows)"
        for name, counts in far.items()
        for place in counts.nonzero().flatten().tolist()
    ]
    if not found:
        return None
    return f"more than {FAR:g} deviations from the mean of the training: {few(found)}; are the units the same?"


def find_client_name(client_id: int, *populations: Population | None) -> str:
    """Name of a client in the data; "" if it has only a number, or is unknown."""
    for population in populations:
        position = -1 if population is None else client_id - population.train.first_id
        if population is not None and 0 <= position < len(population.names):
            name = population.names[position]
            return "" if name == str(client_id) else name
    return ""


def all_splits(
    seen: Population | None, unseen: Population | None, *, samples: bool = False
) -> list[tuple[str, str, Population, Split]]:
    """All splits of seen and unseen clients.

    Args:
        seen: the training clients.
        unseen: clients held out of training, or None.
        samples: return `looked_at(split)`, with samples in memory, in place of each split.

    Returns:
        For each split `seen` or `unseen`, its name, its population, and the split.
    """
    return [
        (kind, name, population, looked_at(split) if samples else split)
        for kind, population in (("seen", seen), ("unseen", unseen))
        if population is not None
        for name, split in zip(SPLITS, population.splits, strict=False)
    ]


def looked_at(split: Split) -> Split:
    """Samples for checks: all if they are in memory, else those of a few evenly spaced clients."""
    few = torch.linspace(0, split.num_clients - 1, min(split.num_clients, CLIENTS_LOOKED_AT)).long()
    return split.select(few + split.first_id)


def check_training(seen: Population, unseen: Population | None) -> None:
    """Raise a `ConfigError` naming the first client without samples; unseen clients may have test samples alone."""
    for kind, name, population, split in all_splits(seen, unseen):
        needed = split.sizes if kind == "seen" else split.sizes + population.test.sizes + population.val.sizes
        if name == "train" and int(needed.min()) == 0:
            empty, what = population.names[int(needed.argmin())], "training samples" if kind == "seen" else "samples"
            others = int((needed == 0).sum()) - 1
            more = f", and {others} others" if others else ""
            raise ConfigError(
                f"{kind} client {empty!r} has no {what}{more}; give it at least one, leave it out, or pool the splits"
            )


def check_finite_samples(seen: Population, unseen: Population | None) -> None:
    """Raise a `ConfigError` naming split and client of the first NaN or infinity."""
    for kind, name, population, split in all_splits(seen, unseen, samples=True):
        for array_name, tensor in (("x", split.x), ("y", split.y)):
            row = _first_non_finite(tensor)
            if row is not None:
                raise ConfigError(
                    f"{name} split of {kind} client {_owner_name(population, split, row)!r}: "
                    f"{array_name} contains NaN or infinity; clean or drop these samples"
                )


BEGINNING = 16
"""Numbers of each input that are compared first."""


def check_equal_inputs(seen: Population, unseen: Population | None) -> None:
    """Refuse training samples with one and the same input; a line names clients whose inputs are equal in a split.

    Checks only a few clients if samples are generated on demand.

    Raises:
        ConfigError: naming the number of samples and the first numbers.
    """
    x = looked_at(seen.train).x
    drawn = "; pictures that are drawn in their transparency alone are of one colour: paste them on a background"
    if len(x) > 1 and torch.equal(x[1:], x[:-1]):
        shown = ", ".join(f"{one:g}" for one in x[0].flatten()[:3].tolist())
        raise ConfigError(
            f"all {len(x):,} training inputs are equal, {shown}, …; correct the data{drawn if x.ndim == 4 else ''}"
        )
    found = []
    for kind, name, population, split in all_splits(seen, unseen, samples=True):
        several = (split.sizes > 1).nonzero()[:, 0]
        start = split.offsets[several]
        begins = split.x[:, None].flatten(1)[:, :BEGINNING]  # rules out most clients at once
        for position in several[(begins[start] == begins[start + 1]).all(1)].tolist():
            own = split.x[slice(*split.offsets[position : position + 2].tolist())]
            if torch.equal(own[1:], own[:-1]):
                found.append(f"{name} split of {kind} client {_name_at(population, split, position)!r}")
    if found:
        say(f"all inputs are equal in the {few(found)}{drawn if x.ndim == 4 else ''}")


def _first_non_finite(tensor: Tensor) -> int | None:
    """First row with NaN or infinity; a finite sum rules them out without allocating memory."""
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum())):
        return None
    return _first_row(~torch.isfinite(tensor))


def _first_row(wrong: Tensor) -> int | None:
    """Index of the first row [n, ...] with a true element."""
    rows = wrong.flatten(1).any(1).nonzero() if wrong.ndim > 1 else wrong.nonzero()
    return int(rows[0]) if len(rows) else None


def _owner_name(population: Population, split: Split, row: int) -> str:
    return _name_at(population, split, int(torch.searchsorted(split.offsets, row, right=True)) - 1)


def _name_at(population: Population, split: Split, position: int) -> str:
    """Name of the client at a position of a split, which may be a subset of the population."""
    return population.names[position if split.ids is None else int(split.ids[position]) - split.first_id]


SHOWN = 3
"""Number of clients of each population listed in errors."""


def find_client(client: str, populations: Mapping[str, Population | None]) -> tuple[str, int]:
    """Find a client: its population and its position there.

    Args:
        client: name, or number counted over all populations (the column `client_id` of predictions).
        populations: by name, searched in this order; None: no clients.

    Raises:
        ConfigError: if there is no such client, listing some clients.
    """
    there = {name: population for name, population in populations.items() if population is not None}
    for called in dict.fromkeys((client, unquoted(client))):  # as written in result tables
        for name, population in there.items():
            if called in population.names:
                return name, population.names.index(called)
    for name, population in there.items():
        position = int(client) - population.train.first_id if client.isdecimal() else -1
        if 0 <= position < population.train.num_clients:
            return name, position
    known = "; ".join(f"{name}: {few(population.names)}" for name, population in there.items())
    raise ConfigError(f"--client {client or 'is not set and'} names no client; give one of them ({known})")


def fingerprint(*populations: Population | None) -> str:
    """Digest of offsets, inputs and labels of all splits, 32 hexadecimal digits, for resuming.

    If samples are generated on demand it covers all sizes, the origin of the samples, and the samples of a few clients.
    """
    digest = hashlib.blake2b(digest_size=16)
    for population in populations:
        digest.update(b"none" if population is None else b"population")
        for split in () if population is None else population.splits:
            tensors = [split.offsets]
            if isinstance(split, DrawnSplit):
                digest.update(split.origin.encode())
                tensors.append(split.numbers)
            few = looked_at(split)
            for tensor in (*tensors, few.x, few.y):
                _add(digest, tensor)
    return digest.hexdigest()


def _add(digest: Any, tensor: Tensor) -> None:
    array = np.ascontiguousarray(tensor.numpy())
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
