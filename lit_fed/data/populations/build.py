"""From a data set to seen and unseen clients with training, validation and test splits.

Partition, splits and the choice of unseen clients use independent random streams.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.blocks import whole_part
from lit_fed.core.likelihood import OwnLoss
from lit_fed.core.named_inputs import LABELS, Input, NamedInputs, kind_of
from lit_fed.core.seeds import generator
from lit_fed.core.segmentation import Segmentation
from lit_fed.core.targets import Binary, Multiclass, MultiLabel, Regression, Sequences, Target, VectorRegression
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import (
    ClientDataSet,
    DataSet,
    Encode,
    Labels,
    PooledDataSet,
    Samples,
    check_names,
    require,
    say,
    say_left_out,
)
from lit_fed.data.partitions.base import Partition
from lit_fed.data.partitions.dirichlet import Dirichlet
from lit_fed.data.partitions.natural import Natural
from lit_fed.data.populations.checks import check_equal_inputs, check_finite_samples, check_training
from lit_fed.data.populations.splits import (
    Division,
    SplitKind,
    classes_of,
    divided_rows,
    set_calibration_apart,
    split_of,
    with_part,
)
from lit_fed.errors import ConfigError
from lit_fed.system.names import few

__all__ = [
    "DEFAULT_NUM_CLIENTS", "build_populations", "infer_target", "select_clients", "told",
    "with_labels",
]  # fmt: skip

DEFAULT_NUM_CLIENTS = 20
"""Default number of clients of a partition."""


def build_populations(
    dataset: DataSet,
    partition: Partition | None = None,
    num_clients: int | None = None,
    *,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    unseen_fraction: float = 0.0,
    seed: int = 0,
    split: SplitKind = "random",
    test_seed: int | None = None,
    exclude: Sequence[str] = (),
    calibration_fraction: float = 0.0,
) -> tuple[Population, Population | None]:
    """Load a data set and divide it into clients and splits.

    Args:
        dataset: pooled samples, or clients.
        partition: divides pooled samples; None: natural owners if the data set names them, else Dirichlet.
        num_clients: clients of a partition; None: 20. Refused if the data set has natural clients.
        val_fraction: share of each client's samples for validation; if clients have their own splits, it is cut from
            the training samples unless there is a validation split.
        test_fraction: share of each client's pooled samples for testing; ignored if clients have their own splits.
        unseen_fraction: share of the clients held out of training.
        seed: seed of the partition, the splits and the choice of unseen clients.
        split: `random`, `stratified` by the labels of each client, or `time`, with the last samples for testing.
        test_seed: seed of the partition, the unseen clients and the test samples; None: `seed`.
        exclude: names of clients that are left out before anything is learned or drawn; those of a partition are left
            out of its clients.
        calibration_fraction: share of the training samples that are left, set apart for thresholds.

    Returns:
        Seen clients, and unseen clients or None; both in the order of the data set.
    """
    _check_fractions(val_fraction, test_fraction, unseen_fraction, calibration_fraction)
    _check_parties(dataset, val_fraction, unseen_fraction, calibration_fraction)
    division = Division(val_fraction, test_fraction, seed, test_seed, split, calibration_fraction)
    unseen: Population | None = None
    encode: Encode | None = None
    if isinstance(dataset, ClientDataSet):
        _refuse_partition(dataset, partition, num_clients)
        _check_time(dataset, None, split)
        loaded = _without_clients(exclude, *dataset.load()) if exclude else dataset.load()
        seen, unseen = with_part(*loaded, "val", val_fraction, seed, stratified=split == "stratified")
        seen, unseen = with_part(
            seen, unseen, "calibration", calibration_fraction, seed, stratified=split == "stratified"
        )
    elif isinstance(dataset, PooledDataSet):
        samples = dataset.load()
        _check_time(dataset, samples, split)
        natural = samples.owner is not None and isinstance(partition, Natural | None)
        samples = _without_samples(exclude, samples) if exclude and natural else samples
        seen = _divide_pool(dataset, samples, partition, num_clients, division)
        seen = _without_clients(exclude, seen, None)[0] if exclude and not natural else seen
        seen, unseen = _set_aside(seen, samples)
        encode = samples.encode
    else:
        raise ConfigError(f"{type(dataset).__name__} is not a data set; derive it from PooledDataSet or ClientDataSet")
    check_training(seen, unseen)
    check_finite_samples(seen, unseen)
    seen, unseen = _hold_out(seen, unseen, unseen_fraction, division.seed_of_clients)
    if dataset.labels == "regression":
        seen, unseen = _quantities(seen), None if unseen is None else _quantities(unseen)
    seen, unseen = (seen, unseen) if encode is None else encode(seen, unseen)
    _check_all_names(seen, unseen)
    check_equal_inputs(seen, unseen)
    return seen, unseen


def _check_all_names(seen: Population, unseen: Population | None) -> None:
    """Compare the names of clients, classes, columns and categories with one another; see `check_names`."""
    later = () if unseen is None else unseen.names
    if isinstance(seen.names, list):  # otherwise numbers, as many as clients can be drawn
        check_names([*seen.names, *later], "clients")
    check_names(seen.class_names or (), "classes")
    features = () if seen.columns is None else seen.columns.features
    check_names([one.name for one in features], "columns")
    check_names(() if seen.inputs is None else seen.inputs.names, "inputs")
    for one in features:
        check_names(one.categories or (), f"categories of column {one.name!r}")


def told(dataset: DataSet, target: Target | None) -> DataSet:
    """The data set, told the kind of labels that `--model.target` implies, so that it does not ask for it."""
    if target is None:
        return dataset
    if isinstance(target, OwnLoss):  # labels keep their type
        scales = getattr(dataset, "standardize_labels", False)
        return replace(dataset, standardize_labels=False) if scales else dataset  # type: ignore[type-var]
    kind = "multilabel" if isinstance(target, MultiLabel) else "regression" if target.continuous else "classification"
    option = "labels" if kind == "multilabel" else "task"
    said: dict[str, str | bool] = {option: kind} if dataset.unsaid == option else {}
    if (not target.scalable or target.partly_labelled) and getattr(dataset, "standardize_labels", False):
        said["standardize_labels"] = False
    return replace(dataset, **said) if said else dataset  # type: ignore[type-var]


def with_labels(population: Population, target: Target) -> Population:
    """The same clients with labels in the type of a target; quantities have no class names.

    Raises:
        ConfigError: if the labels are texts, and the target has no classes.
    """
    if isinstance(target, OwnLoss):
        return _holding_labels(population)
    require(
        population.inputs is None or not population.inputs.hold_labels,
        f"samples hold their labels somewhere in {population.inputs}, where --model.target {type(target).__name__} "
        "cannot find them; leave the target out, so that the loss of the module decides, or give samples (x, y)",
    )
    names = population.class_names
    require(
        names is None or not target.continuous,
        f"labels are the classes {', '.join((names or ())[:4])}, and --model.target {target.name} is for numbers; give "
        "--data.dataset.task or labels regression, or another target",
    )
    return population.with_splits(
        lambda split: (
            split
            if type(split) is not Split  # drawn when needed, or on other machines
            else Split(split.x, target.as_labels(split.y), split.offsets, split.first_id, split.ids)
        )
    )


def _holding_labels(population: Population) -> Population:
    """The same clients with labels as an input of each sample, of the type that they have; `Split.y` is then 0.

    Raises:
        ConfigError: if samples are on other machines, or whole numbers do not fit beside floats.
    """
    known = population.inputs
    if known is not None and known.hold_labels:
        return population
    train = population.train
    require(
        type(train) is Split,
        "--model.target OwnLoss needs labels beside inputs, and samples are drawn when needed, or are on nodes; choose "
        "a data set in memory, or a target that names what labels are",
    )
    own = (Input("x", tuple(train.x.shape[1:]), kind_of(train.x)),) if known is None else known.inputs
    inputs = NamedInputs((*own, Input(LABELS, tuple(train.y.shape[1:]), kind_of(train.y))), hold_labels=True)

    def held(split: Split) -> Split:
        x = split.x if known is not None else split.x.flatten(1)
        rows = inputs.joined_rows(x, split.y)
        return Split(rows, torch.zeros(len(rows)), split.offsets, split.first_id, split.ids)

    return population.with_splits(held)._replace(inputs=inputs, class_names=None)


def _quantities(population: Population) -> Population:
    """The same clients with floating labels and without class names."""
    return with_labels(population._replace(class_names=None), Regression())


def select_clients(population: Population, client_ids: np.ndarray) -> Population:
    """Select clients of a population; views of the same samples if the ids are consecutive.

    Args:
        population: T clients.
        client_ids: ascending ids [m] of at least one client.
    """
    positions = torch.from_numpy(client_ids)
    names = [population.names[client_id] for client_id in client_ids]
    groups = None if population.groups is None else population.groups[positions]
    rows = (
        None
        if population.rows is None
        else tuple(population.rows_of(split, positions) for split in range(len(population.rows)))
    )
    chosen = population.with_splits(lambda split: split.subset(positions))
    return chosen._replace(names=names, groups=groups, rows=rows)


def infer_target(y_train: Tensor, num_classes: int | None = None, labels: Labels = "auto") -> Target:
    """Infer the prediction target from type and shape of the training labels.

    Args:
        y_train: training labels [n] or [n, L]. Floating labels mean regression (of vectors with a second axis), integer
            labels with a second axis sequences, with two more masks. n = 0 if samples are generated on demand.
        num_classes: number of classes if known; None: one more than the largest label.
        labels: `multilabel`: L labels 0 or 1 per sample; `regression`: labels were converted to floating ones before.

    Returns:
        The target; two classes are `Binary` (one logit), except in sequences.
    """
    shape = list(y_train.shape)
    if y_train.ndim == 3 and not y_train.is_floating_point():
        return Segmentation().fitted(y_train, num_classes)
    require(
        y_train.ndim in (1, 2),
        f"training labels have shape {shape}; store them as [n], [n, L] for sequences, or whole numbers [n, height, "
        "width] for masks, or give a --model.target that takes this shape",
    )
    if labels == "multilabel":
        return _multilabel(y_train, num_classes)
    if y_train.is_floating_point():
        return Regression() if y_train.ndim == 1 else _vectors(y_train)
    require(
        num_classes is not None or len(y_train) > 0,
        "the data set generates samples on demand and does not know the number of classes; set its num_classes",
    )
    # a single class in the training data counts as binary
    classes = max(2, int(y_train.max()) + 1 if num_classes is None else num_classes)
    if y_train.ndim == 2:
        return Sequences(classes)
    return Binary() if classes == 2 else Multiclass(classes)


def _multilabel(y_train: Tensor, num_labels: int | None) -> MultiLabel:
    """The target of labels [n, L] that are 0 or 1."""
    shape = list(y_train.shape)
    require(
        y_train.ndim == 2 and not y_train.is_floating_point(),
        f"labels are set to multilabel, but the training labels are {str(y_train.dtype).removeprefix('torch.')} of "
        f"shape {shape}; store whole numbers 0 and 1 of shape [n, L], or leave --data.dataset.labels out",
    )
    require(
        num_labels in (None, shape[1]),
        f"num_classes is {num_labels}, but each sample has {shape[1]} labels; leave num_classes out",
    )
    return MultiLabel(shape[1])


def _vectors(y_train: Tensor) -> VectorRegression:
    """The target of floating labels [n, L]; one-hot vectors are refused."""
    shape = list(y_train.shape)
    require(shape[1] > 1, f"floating training labels have shape {shape}; store [n, 1] as [n]")
    one_hot = bool(((y_train == 0) | (y_train == 1)).all()) and bool((y_train.sum(1) == 1).all())
    require(
        not one_hot,
        f"floating training labels have shape {shape}, each of them one-hot; store classes as the whole numbers "
        "y.argmax(1)",
    )
    return VectorRegression(shape[1])


def _check_fractions(val_fraction: float, test_fraction: float, unseen_fraction: float, calibration: float) -> None:
    fractions = {
        "val_fraction": val_fraction, "test_fraction": test_fraction, "unseen_fraction": unseen_fraction,
        "calibration_fraction": calibration,
    }  # fmt: skip
    for name, value in fractions.items():
        require(0 <= value < 1, f"{name} = {value}; choose a number from 0 up to, but not including, 1")
    total = val_fraction + test_fraction
    require(total < 1, f"val_fraction + test_fraction = {total:g} leaves nothing to train on; choose less than 1")


def _check_parties(dataset: DataSet, val_fraction: float, unseen_fraction: float, calibration: float) -> None:
    """Refuse to hold out rows or parties if the parties hold features of the same rows."""
    held_out = {"val_fraction": val_fraction, "unseen_fraction": unseen_fraction, "calibration_fraction": calibration}
    for name, value in held_out.items():
        require(
            value == 0 or dataset.divided_by == "samples",
            f"{name} = {value}: the parties of {type(dataset).__name__} hold features of the same rows, and "
            f"predictions need all of them; leave {name} at 0",
        )


def _refuse_partition(dataset: DataSet, partition: Partition | None, num_clients: int | None) -> None:
    """Refuse to partition a data set with natural clients."""
    name = type(dataset).__name__
    require(
        num_clients is None,
        f"num_clients = {num_clients}: num_clients is for partitions; {name} comes with its clients, "
        "so leave num_clients out",
    )
    require(
        partition is None or isinstance(partition, Natural),
        f"partition {type(partition).__name__}: {name} comes with its clients, so leave the partition out",
    )


def _check_time(dataset: DataSet, samples: Samples | None, split: SplitKind) -> None:
    """Refuse the split `time` without times, and with persons, who would have to be on one side as well."""
    name = type(dataset).__name__
    require(
        split != "time" or (samples is not None and samples.order is not None),
        f"--data.split is time, and {name} has no time of its samples; set its time_column, or give random",
    )
    require(
        split != "time" or samples is None or samples.groups is None,
        f"--data.split is time, and {name} has a group_column; leave one of them out",
    )


def _check_excluded(exclude: Sequence[str], names: Collection[str]) -> None:
    """Refuse names of no client, and all names."""
    for name in exclude:
        require(
            name in names,
            f"--data.exclude_clients names {name!r}, which is no client of the data ({few(names)}); correct it, or "
            "leave it out if its samples are deleted",
        )
    require(len({*exclude}) < len(names), "--data.exclude_clients names all clients; leave some to train with")


def _without_clients(
    exclude: Sequence[str], seen: Population, unseen: Population | None
) -> tuple[Population, Population | None]:
    """The clients that are not excluded."""
    _check_excluded(exclude, [*seen.names, *(() if unseen is None else unseen.names)])
    kept = [np.flatnonzero(~np.isin(one.names, exclude)) for one in (seen, unseen) if one is not None]
    require(len(kept[0]) > 0, "--data.exclude_clients names all clients that train; leave some of them")
    unseen = select_clients(unseen, kept[1]) if unseen is not None and len(kept[1]) else None
    return select_clients(seen, kept[0]), unseen


def _without_samples(exclude: Sequence[str], samples: Samples) -> Samples:
    """The samples of natural clients that are not excluded, as if there were no others."""
    assert samples.owner is not None
    owner, named = samples.owner, samples.names is not None
    known = np.array(samples.names or range(int(owner.max()) + 1)).astype(str)
    _check_excluded(exclude, known[np.unique(owner)].tolist())
    stays = ~np.isin(known, exclude)
    kept, numbers = stays[owner], np.cumsum(stays) - 1 if named else np.arange(len(stays))
    rows = ("x", "y", "split", "ids", "labelled", "groups", "order", "files")
    found: dict[str, Any] = {one: part[kept] for one in rows if (part := getattr(samples, one)) is not None}
    found |= {"owner": numbers[owner[kept]], "names": known[stays].tolist() if named else None}
    found["unseen"] = tuple(one for one in samples.unseen if one not in exclude)
    lost = set() if samples.class_names is None else {*np.unique(samples.y)} - {*np.unique(found["y"])}
    if lost and samples.class_names is not None:
        classes = few(samples.class_names[one] for one in sorted(lost))
        say(f"--data.exclude_clients: no sample is left of {classes}, which stays a class")
    return samples._replace(**found)


def _divide_pool(
    dataset: PooledDataSet, samples: Samples, partition: Partition | None, num_clients: int | None, division: Division
) -> Population:
    _check_samples(samples, type(dataset).__name__)
    partition = partition or (Dirichlet() if samples.owner is None else Natural())
    if dataset.natural or isinstance(partition, Natural):
        _refuse_partition(dataset, partition, num_clients)
    require(
        not samples.unseen or isinstance(partition, Natural),
        f"partition {type(partition).__name__} makes new clients, but {type(dataset).__name__} names unseen clients; "
        "leave one of them out",
    )
    wanted_clients = DEFAULT_NUM_CLIENTS if num_clients is None else num_clients
    seed = division.seed_of_clients
    parts = partition(samples.y, wanted_clients, seed, samples.owner)
    if isinstance(partition, Natural) and samples.names is not None:
        held = {int(samples.owner[part[0]]) for part in parts}  # type: ignore[index]  # natural clients own samples
        say_left_out([one for number, one in enumerate(samples.names) if number not in held], "a sample")
    groups = partition.groups(len(parts), seed)
    x, y = partition.altered(samples.x, samples.y, parts, seed)
    labels = classes_of(samples.y) if division.split == "stratified" else None
    drawn = divided_rows(parts, samples.split, division, labels, samples.groups, samples.order)
    rows, apart = set_calibration_apart(drawn, division, labels, samples.groups, samples.order)
    if labels is not None:
        _say_rare_classes(parts, labels, 1 + (division.val_fraction > 0) + (division.test_fraction > 0))
    columns = [list(column) for column in zip(*rows, strict=True)] + ([] if apart is None else [apart])
    train, val, test, *calibration = (split_of(x, y, column, dataset.normalisation) for column in columns)
    origin = None if samples.files is None else tuple(torch.from_numpy(np.concatenate(column)) for column in columns)
    names = _client_names(samples, partition, parts)
    return Population(
        train, val, test, names, None if groups is None else torch.from_numpy(groups), class_names=samples.class_names,
        stored_type=str(samples.x.dtype) if samples.stored_type is None else samples.stored_type,
        inputs=samples.inputs, rows=origin, files=samples.files,
        calibration=calibration[0] if calibration else None,
    )  # fmt: skip


def _say_rare_classes(parts: list[np.ndarray], labels: np.ndarray, num_splits: int) -> None:
    """Say in one line at how many clients a class has too few samples for each split to have one."""
    rare = sum(bool((np.unique(labels[part], return_counts=True)[1] < num_splits).any()) for part in parts)
    if rare:
        say(
            f"--data.split stratified: at {rare} of {len(parts)} clients a class has fewer than {num_splits} samples, "
            "so that some split has none of it"
        )


def _check_samples(samples: Samples, dataset_name: str) -> None:
    """Refuse an empty pool, arrays of different lengths, and duplicate or single class names."""
    num_samples = len(samples.x)
    require(num_samples > 0, f"{dataset_name} has no samples; check where it reads them")
    for name, array in (
        ("y", samples.y), ("owner", samples.owner), ("split", samples.split), ("groups", samples.groups),
        ("order", samples.order),
    ):  # fmt: skip
        count = num_samples if array is None else len(array)
        require(
            count == num_samples, f"{dataset_name}: {num_samples} samples in x, but {count} in {name}; make them equal"
        )
    names = samples.class_names
    require(
        names is None or len({*names}) == len(names) > 1,
        f"{dataset_name}: the class names are {names}; give at least two, all different",
    )


def _client_names(samples: Samples, partition: Partition, parts: list[np.ndarray]) -> list[str]:
    if not isinstance(partition, Natural) or samples.owner is None:
        return [str(client_id) for client_id in range(len(parts))]
    owners = [int(samples.owner[part[0]]) for part in parts]
    return [str(owner) if samples.names is None else samples.names[owner] for owner in owners]


def _set_aside(clients: Population, samples: Samples) -> tuple[Population, Population | None]:
    if not samples.unseen:
        return clients, None
    chosen = np.array([name in samples.unseen for name in clients.names])
    require(not chosen.all(), "all clients are named as unseen; leave at least one for training")
    return select_clients(clients, np.flatnonzero(~chosen)), select_clients(clients, np.flatnonzero(chosen))


def _hold_out(
    seen: Population, unseen: Population | None, fraction: float, seed: int
) -> tuple[Population, Population | None]:
    if fraction == 0:
        return seen, unseen
    num_clients = len(seen.names)
    require(
        unseen is None,
        f"unseen_fraction = {fraction}, but the data set has its own unseen clients; leave unseen_fraction at 0",
    )
    require(num_clients >= 2, f"unseen_fraction = {fraction} needs at least 2 clients, there is one; leave it at 0")
    num_unseen = max(1, min(whole_part(fraction, num_clients), num_clients - 1))
    chosen = np.zeros(num_clients, dtype=bool)
    chosen[generator(seed, 0, 0, "unseen").choice(num_clients, num_unseen, replace=False)] = True
    return select_clients(seen, np.flatnonzero(~chosen)), select_clients(seen, np.flatnonzero(chosen))
