"""From a data set to seen and unseen clients, each with a training, validation and test split.

Partition, splits and the choice of unseen clients have streams of random numbers of their own: one does not depend on
the others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.blocks import whole_part
from lit_fed.core.seeds import generator
from lit_fed.core.targets import Binary, Multiclass, MultiLabel, Regression, Sequences, Target, VectorRegression
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import ClientDataSet, DataSet, Encode, Labels, PooledDataSet, Samples, require
from lit_fed.data.partitions.base import Partition
from lit_fed.data.partitions.dirichlet import Dirichlet
from lit_fed.data.partitions.natural import Natural
from lit_fed.data.populations.checks import check_finite_samples, check_training
from lit_fed.data.populations.splits import divided_rows, split_of, with_validation
from lit_fed.errors import ConfigError

__all__ = [
    "DEFAULT_NUM_CLIENTS",
    "build_populations",
    "infer_target",
    "select_clients",
]

DEFAULT_NUM_CLIENTS = 20
"""Clients of a partition where `num_clients` is not given."""


def build_populations(
    dataset: DataSet,
    partition: Partition | None = None,
    num_clients: int | None = None,
    *,
    val_fraction: float = 0.0,
    test_fraction: float = 0.2,
    unseen_fraction: float = 0.0,
    seed: int = 0,
) -> tuple[Population, Population | None]:
    """Load a data set and divide it into clients and splits.

    Args:
        dataset: pooled samples, or clients.
        partition: how to divide pooled samples; None: by natural owner where the data set names one, else Dirichlet.
        num_clients: clients of a partition; None: 20. Refused where the data set itself says who the clients are.
        val_fraction: part of each client's samples for validation; of clients with their own splits it is taken from
            the training samples, and only if the data set has no validation split.
        test_fraction: part of each client's pooled samples for testing; clients with their own splits keep theirs.
        unseen_fraction: part of the clients that never takes part in training.
        seed: seed of the partition, the splits and the choice of unseen clients.

    Returns:
        Seen clients, and unseen ones or None; both in the order of the data set.
    """
    _check_fractions(val_fraction, test_fraction, unseen_fraction)
    _check_parties(dataset, val_fraction, unseen_fraction)
    unseen: Population | None = None
    encode: Encode | None = None
    if isinstance(dataset, ClientDataSet):
        _refuse_partition(dataset, partition, num_clients)
        seen, unseen = with_validation(*dataset.load(), val_fraction, seed)
    elif isinstance(dataset, PooledDataSet):
        samples = dataset.load()
        seen = _divide_pool(dataset, samples, partition, num_clients, val_fraction, test_fraction, seed)
        seen, unseen = _set_aside(seen, samples)
        encode = samples.encode
    else:
        raise ConfigError(f"{type(dataset).__name__} is no data set; derive it from PooledDataSet or ClientDataSet")
    check_training(seen, unseen)
    check_finite_samples(seen, unseen)
    seen, unseen = _hold_out(seen, unseen, unseen_fraction, seed)
    if dataset.labels == "regression":
        seen, unseen = _quantities(seen), None if unseen is None else _quantities(unseen)
    return (seen, unseen) if encode is None else encode(seen, unseen)


def _quantities(population: Population) -> Population:
    """The same clients, whose labels are numbers and no classes."""
    train, val, test = (
        Split(split.x, split.y.float(), split.offsets, split.first_id, split.ids)
        for split in (population.train, population.val, population.test)
    )
    return population._replace(train=train, val=val, test=test, class_names=None)


def select_clients(population: Population, client_ids: np.ndarray) -> Population:
    """Some clients of a population, in ascending order; views of the same samples where the ids are consecutive.

    Args:
        population: T clients.
        client_ids: ascending ids [m] of at least one client.
    """
    positions = torch.from_numpy(client_ids)
    train, val, test = (split.subset(positions) for split in (population.train, population.val, population.test))
    names = [population.names[client_id] for client_id in client_ids]
    groups = None if population.groups is None else population.groups[positions]
    return population._replace(train=train, val=val, test=test, names=names, groups=groups)


def infer_target(y_train: Tensor, num_classes: int | None = None, labels: Labels = "auto") -> Target:
    """What there is to predict, by the type and shape of the training labels.

    Args:
        y_train: training labels [n] or [n, L]; floating ones mean regression, of vectors where there is a second axis;
            a second axis of whole ones means sequences, unless told otherwise; n = 0 where clients are drawn when they
            are needed.
        num_classes: number of classes where the data set knows it; None: one more than the largest label.
        labels: `multilabel`: L labels of each sample, 0 or 1; `regression` makes floating ones of whole ones before.

    Returns:
        The target; two classes are `Binary` (one logit), except in sequences.
    """
    shape = list(y_train.shape)
    require(y_train.ndim in (1, 2), f"training labels have shape {shape}; store them as [n], or [n, L] for sequences")
    if labels == "multilabel":
        return _multilabel(y_train, num_classes)
    if y_train.is_floating_point():
        return Regression() if y_train.ndim == 1 else _vectors(y_train)
    require(
        num_classes is not None or len(y_train) > 0,
        "the data set draws its clients when they are needed and does not say how many classes there are; "
        "set its num_classes",
    )
    # A single class in all of the training data is a binary problem that nobody has an example of yet.
    classes = max(2, int(y_train.max()) + 1 if num_classes is None else num_classes)
    if y_train.ndim == 2:
        return Sequences(classes)
    return Binary() if classes == 2 else Multiclass(classes)


def _multilabel(y_train: Tensor, num_labels: int | None) -> MultiLabel:
    """The target of labels [n, L] that are 0 or 1."""
    shape = list(y_train.shape)
    require(
        y_train.ndim == 2 and not y_train.is_floating_point(),
        f"labels are said to be multilabel, and the training labels are {str(y_train.dtype).removeprefix('torch.')} of "
        f"shape {shape}; store whole numbers 0 and 1 of shape [n, L], or leave --data.dataset.labels out",
    )
    require(
        num_labels in (None, shape[1]),
        f"num_classes is {num_labels}, and each sample has {shape[1]} labels; leave num_classes out",
    )
    return MultiLabel(shape[1])


def _vectors(y_train: Tensor) -> VectorRegression:
    """The target of floating labels [n, L]; classes that are written as one-hot vectors are no regression."""
    shape = list(y_train.shape)
    require(shape[1] > 1, f"floating training labels have shape {shape}; store [n, 1] as [n]")
    one_hot = bool(((y_train == 0) | (y_train == 1)).all()) and bool((y_train.sum(1) == 1).all())
    require(
        not one_hot,
        f"floating training labels have shape {shape}, each of them one-hot; store classes as the whole numbers "
        "y.argmax(1)",
    )
    return VectorRegression(shape[1])


def _check_fractions(val_fraction: float, test_fraction: float, unseen_fraction: float) -> None:
    """Refuse fractions outside [0, 1), and splits that leave nothing to train on."""
    fractions = {"val_fraction": val_fraction, "test_fraction": test_fraction, "unseen_fraction": unseen_fraction}
    for name, value in fractions.items():
        require(0 <= value < 1, f"{name} = {value}; choose a number from 0 up to, but not including, 1")
    total = val_fraction + test_fraction
    require(total < 1, f"val_fraction + test_fraction = {total:g} leaves nothing to train on; choose less than 1")


def _check_parties(dataset: DataSet, val_fraction: float, unseen_fraction: float) -> None:
    """Refuse to hold back rows or parties where parties have features of the same rows: a model needs all of them."""
    for name, value in (("val_fraction", val_fraction), ("unseen_fraction", unseen_fraction)):
        require(
            value == 0 or dataset.divided_by == "samples",
            f"{name} = {value}: the parties of {type(dataset).__name__} hold features of the same rows, and a "
            f"prediction needs all of them; leave {name} at 0",
        )


def _refuse_partition(dataset: DataSet, partition: Partition | None, num_clients: int | None) -> None:
    """Refuse to divide a data set that has clients of its own."""
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


def _divide_pool(
    dataset: PooledDataSet,
    samples: Samples,
    partition: Partition | None,
    num_clients: int | None,
    val_fraction: float,
    test_fraction: float,
    seed: int,
) -> Population:
    """Partition the pool and split every client's samples."""
    _check_samples(samples, type(dataset).__name__)
    partition = partition or (Dirichlet() if samples.owner is None else Natural())
    if dataset.natural or isinstance(partition, Natural):
        _refuse_partition(dataset, partition, num_clients)
    require(
        not samples.unseen or isinstance(partition, Natural),
        f"partition {type(partition).__name__} makes clients of its own, and {type(dataset).__name__} is told which of "
        "its clients stay unseen; leave one of them out",
    )
    wanted_clients = DEFAULT_NUM_CLIENTS if num_clients is None else num_clients
    parts = partition(samples.y, wanted_clients, seed, samples.owner)
    groups = partition.groups(len(parts), seed)
    x, y = partition.altered(samples.x, samples.y, parts, seed)
    rows = divided_rows(parts, samples.split, val_fraction, test_fraction, seed)
    train, val, test = (split_of(x, y, list(column), dataset.normalisation) for column in zip(*rows, strict=True))
    names = _client_names(samples, partition, parts)
    return Population(
        train, val, test, names, None if groups is None else torch.from_numpy(groups), class_names=samples.class_names,
        stored_type=str(samples.x.dtype) if samples.stored_type is None else samples.stored_type,
    )  # fmt: skip


def _check_samples(samples: Samples, dataset_name: str) -> None:
    """Refuse a pool without samples, arrays of other lengths than it has samples, and a name of two classes."""
    num_samples = len(samples.x)
    require(num_samples > 0, f"{dataset_name} has no samples; check where it reads them")
    for name, array in (("y", samples.y), ("owner", samples.owner), ("split", samples.split)):
        count = num_samples if array is None else len(array)
        require(
            count == num_samples,
            f"{dataset_name}: {num_samples} samples in x, but {count} in {name}; make them equal",
        )
    names = samples.class_names
    require(
        names is None or len({*names}) == len(names) > 1,
        f"{dataset_name}: the classes are called {names}; it takes two at least, and each its own name",
    )


def _client_names(samples: Samples, partition: Partition, parts: list[np.ndarray]) -> list[str]:
    """Names of the owners where clients are owners, else numbers."""
    if not isinstance(partition, Natural) or samples.owner is None:
        return [str(client_id) for client_id in range(len(parts))]
    owners = [int(samples.owner[part[0]]) for part in parts]
    return [str(owner) if samples.names is None else samples.names[owner] for owner in owners]


def _set_aside(clients: Population, samples: Samples) -> tuple[Population, Population | None]:
    """Keep the clients that the data set names unseen out of the training."""
    if not samples.unseen:
        return clients, None
    chosen = np.array([name in samples.unseen for name in clients.names])
    require(not chosen.all(), "all clients are named as unseen ones; leave one at least to be trained")
    return select_clients(clients, np.flatnonzero(~chosen)), select_clients(clients, np.flatnonzero(chosen))


def _hold_out(
    seen: Population, unseen: Population | None, fraction: float, seed: int
) -> tuple[Population, Population | None]:
    """Choose the unseen clients at random, without replacement."""
    if fraction == 0:
        return seen, unseen
    num_clients = len(seen.names)
    require(
        unseen is None,
        f"unseen_fraction = {fraction}, but the data set brings its own unseen clients; leave unseen_fraction at 0",
    )
    require(num_clients >= 2, f"unseen_fraction = {fraction} needs at least 2 clients, and there is one; leave it at 0")
    num_unseen = max(1, min(whole_part(fraction, num_clients), num_clients - 1))
    chosen = np.zeros(num_clients, dtype=bool)
    chosen[generator(seed, 0, 0, "unseen").choice(num_clients, num_unseen, replace=False)] = True
    return select_clients(seen, np.flatnonzero(~chosen)), select_clients(seen, np.flatnonzero(chosen))
