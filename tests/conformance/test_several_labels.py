"""Every algorithm on samples with several labels, and some on vectors as labels: learned, or refused by name."""

import pytest
import torch
from federated_round import make_clients
from test_algorithms import SMALL, after_rounds, all_algorithms

from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import MultiLabel, VectorRegression
from lit_fed.errors import ConfigError

pytestmark = pytest.mark.every_combination

REFUSED = {
    "MixedEffects",
    "MOCHA",
    "SharingADMM",
    "FedNTD",
    "FedLC",
    "FedProto",
    "FedGen",
    "FedRoD",
    "FedAS",
    "FedPAC",
    "GPFL",
    "PFedFDA",
    "KNNPer",
}
"""Algorithms whose mathematics is that of one label."""


CASES = [(cls, MultiLabel(2)) for cls in all_algorithms()]
CASES += [(cls, VectorRegression(2)) for cls in all_algorithms() if cls.__name__ in REFUSED | {"FedAvg", "FedEM"}]


@pytest.mark.parametrize(("cls", "target"), CASES, ids=lambda one: getattr(one, "name", None) or one.__name__)
def test_several_labels(cls, target):
    train = make_clients([5, 1, 3], target=target)
    algorithm = cls(**SMALL.get(cls.__name__, {}))
    options = {"rounds": 1, "target": target, "solver": LocalSolver(lr=0.05)}
    if cls.__name__ in REFUSED:
        with pytest.raises(ConfigError, match=f"labels, and these are {target.name}; give another"):
            after_rounds(algorithm, train, **options)
        return
    one, other = (
        after_rounds(algorithm, train, trainer=trainer(), **options)
        for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    assert all(leaf.isfinite().all() for _, leaf in tree.items(one.shared) if leaf.is_floating_point())
    for here, there in zip(tree.leaves(one.shared), tree.leaves(other.shared), strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=1e-10)
