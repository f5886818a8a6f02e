"""Data sets, partitions into clients, splits, and blocks of clients."""

import importlib
from typing import Any

from lit_fed.core.blocks import cohort_size, draw_cohort, split_by_work
from lit_fed.data import data_sets, partitions
from lit_fed.data.data_sets.base import ClientDataSet, DataSet, Normalisation, PooledDataSet, Samples
from lit_fed.data.partitions.base import Partition
from lit_fed.data.populations.build import build_populations, infer_target, select_clients
from lit_fed.data.populations.checks import check_labels, fingerprint
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.data.populations.splits import split_counts

_FOUND = {name: room for room in (data_sets, partitions) for name in room.__all__}
_OF_SYNTHETIC = ("synthetic_clients", "synthetic_parameters")


def __getattr__(name: str) -> Any:
    """A data set, a partition, or a function of the synthetic data."""
    if name in _OF_SYNTHETIC:
        return getattr(importlib.import_module("lit_fed.data.data_sets.synthetic"), name)
    if name not in _FOUND:
        raise AttributeError(f"module 'lit_fed.data' has no attribute {name!r}")
    return getattr(_FOUND[name], name)


__all__ = [
    *_FOUND,
    *_OF_SYNTHETIC,
    "ClientDataSet",
    "DataSet",
    "DrawnSplit",
    "Normalisation",
    "Partition",
    "PooledDataSet",
    "Samples",
    "build_populations",
    "check_labels",
    "cohort_size",
    "draw_cohort",
    "fingerprint",
    "infer_target",
    "select_clients",
    "split_by_work",
    "split_counts",
]
