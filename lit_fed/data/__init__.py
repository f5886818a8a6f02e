"""Data sets, and how their samples become clients, splits and blocks."""

from lit_fed.core.blocks import cohort_size, draw_cohort, make_blocks, split_by_work
from lit_fed.data.data_sets.base import ClientDataSet, DataSet, Normalisation, PooledDataSet, Samples
from lit_fed.data.data_sets.cifar import CIFAR10, CIFAR100
from lit_fed.data.data_sets.client_folder import ClientFolder
from lit_fed.data.data_sets.digits import Digits
from lit_fed.data.data_sets.emnist import EMNIST
from lit_fed.data.data_sets.feature_blocks import FeatureBlocks
from lit_fed.data.data_sets.femnist import FEMNIST
from lit_fed.data.data_sets.mnist import MNIST
from lit_fed.data.data_sets.office_home import OfficeHome
from lit_fed.data.data_sets.shakespeare import Shakespeare
from lit_fed.data.data_sets.sine import Sine
from lit_fed.data.data_sets.synthetic import Synthetic, synthetic_clients, synthetic_parameters
from lit_fed.data.partitions.base import IID, Dirichlet, Natural, Partition
from lit_fed.data.partitions.client_groups import LabelGroups, LabelPermutations, Rotations
from lit_fed.data.partitions.pachinko import Pachinko
from lit_fed.data.partitions.quantity_skew import QuantitySkew
from lit_fed.data.partitions.shards import Shards
from lit_fed.data.populations.build import (
    build_populations,
    fingerprint,
    infer_target,
    select_clients,
    split_counts,
)
from lit_fed.data.populations.checks import check_labels
from lit_fed.data.populations.drawn_clients import DrawnSplit

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "EMNIST",
    "FEMNIST",
    "IID",
    "MNIST",
    "ClientDataSet",
    "ClientFolder",
    "DataSet",
    "Digits",
    "Dirichlet",
    "DrawnSplit",
    "FeatureBlocks",
    "LabelGroups",
    "LabelPermutations",
    "Natural",
    "Normalisation",
    "OfficeHome",
    "Pachinko",
    "Partition",
    "PooledDataSet",
    "QuantitySkew",
    "Rotations",
    "Samples",
    "Shakespeare",
    "Shards",
    "Sine",
    "Synthetic",
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
