"""Data sets, and how their samples become clients, splits and blocks."""

from lit_fed.data.blocks import cohort_size, draw_cohort, make_blocks, split_by_work
from lit_fed.data.client_folder import ClientFolder
from lit_fed.data.dataset import ClientDataSet, DataSet, PooledDataSet, Samples
from lit_fed.data.digits import Digits
from lit_fed.data.partition import IID, Dirichlet, Natural, Partition
from lit_fed.data.population import (
    Target,
    build_populations,
    check_labels,
    fingerprint,
    infer_target,
    select_clients,
    split_counts,
)
from lit_fed.data.synthetic import Synthetic, synthetic_clients, synthetic_parameters

__all__ = [
    "IID",
    "ClientDataSet",
    "ClientFolder",
    "DataSet",
    "Digits",
    "Dirichlet",
    "Natural",
    "Partition",
    "PooledDataSet",
    "Samples",
    "Synthetic",
    "Target",
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
