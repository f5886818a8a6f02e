"""Data sets, partitions into clients, splits, and blocks of clients."""

from typing import Any

from lit_fed.core.blocks import cohort_size, draw_cohort, make_blocks, split_by_work
from lit_fed.data import data_sets, partitions
from lit_fed.data.data_sets.base import ClientDataSet, DataSet, Normalisation, PooledDataSet, Samples
from lit_fed.data.data_sets.synthetic import synthetic_clients, synthetic_parameters
from lit_fed.data.partitions.base import Partition
from lit_fed.data.populations.build import build_populations, infer_target, select_clients
from lit_fed.data.populations.checks import check_labels, fingerprint
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.data.populations.splits import split_counts

_FOUND = {name: room for room in (data_sets, partitions) for name in room.__all__}


def __getattr__(name: str) -> Any:
    """A data set or a partition."""
    if name not in _FOUND:
        raise AttributeError(f"module 'lit_fed.data' has no attribute {name!r}")
    return getattr(_FOUND[name], name)


__all__ = [
    *_FOUND,
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
    "make_blocks",
    "select_clients",
    "split_by_work",
    "split_counts",
    "synthetic_clients",
    "synthetic_parameters",
]
