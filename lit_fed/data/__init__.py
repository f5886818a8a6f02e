"""Data sets, and how their samples become clients, splits and blocks."""

from lit_fed.data.blocks import cohort_size, draw_cohort, make_blocks, split_by_work
from lit_fed.data.checks import check_labels
from lit_fed.data.cifar import CIFAR10, CIFAR100
from lit_fed.data.client_folder import ClientFolder
from lit_fed.data.client_groups import LabelGroups, LabelPermutations, Rotations
from lit_fed.data.dataset import ClientDataSet, DataSet, Normalisation, PooledDataSet, Samples
from lit_fed.data.digits import Digits
from lit_fed.data.drawn import DrawnSplit
from lit_fed.data.emnist import EMNIST
from lit_fed.data.feature_blocks import FeatureBlocks
from lit_fed.data.femnist import FEMNIST
from lit_fed.data.mnist import MNIST
from lit_fed.data.office_home import OfficeHome
from lit_fed.data.pachinko import Pachinko
from lit_fed.data.partition import IID, Dirichlet, Natural, Partition
from lit_fed.data.population import (
    Target,
    build_populations,
    fingerprint,
    infer_target,
    select_clients,
    split_counts,
)
from lit_fed.data.quantity_skew import QuantitySkew
from lit_fed.data.shakespeare import Shakespeare
from lit_fed.data.shards import Shards
from lit_fed.data.sine import Sine
from lit_fed.data.synthetic import Synthetic, synthetic_clients, synthetic_parameters

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
