"""Wrappers on nodes: privacy, codecs, faults, rules and sums give the numbers of the simulation, bit for bit."""

import pytest
import torch
from in_process import node_folders, same
from normalised import NormalisedMLP
from test_conformance import sides

from lit_fed import FederatedModule
from lit_fed.algorithms import SCAFFOLD, UCFL, FedEM, FedFOMO, MixtureADMM
from lit_fed.core import tree
from lit_fed.core.aggregation import CenteredClipping
from lit_fed.core.codecs import QSGD, TopK
from lit_fed.core.local_solver import LocalSolver
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.wrappers.client_privacy import ClientPrivacy
from lit_fed.wrappers.example_privacy import ExamplePrivacy
from lit_fed.wrappers.faults import Faults
from lit_fed.wrappers.local_privacy import LocalPrivacy
from lit_fed.wrappers.secure_sum import SecureSum

BUDGET = {"noise_multiplier": 0.5, "clip_norm": 0.1, "delta": 1e-3}
LOST = Faults(0.4, "after", on_bad_client="drop")

WRAPPED = {
    "a bound that moves": (FedEM(2), {"privacy": ClientPrivacy(0.5, delta=1e-3, adaptive=True, clip_count_noise=5.0)}),
    "noise at clients": (FedEM(2), {"privacy": LocalPrivacy(**BUDGET)}),
    "noisy steps": (FedEM(2), {"privacy": ExamplePrivacy(**BUDGET, sample_rate=0.5, mixture_noise=1.0)}),
    "codecs both ways": (
        FedEM(2),
        {"compression_scope": "whole", "compression": TopK(0.1), "downlink_compression": QSGD()},
    ),
    "EF21": (FedEM(2), {"compression_scope": "whole", "compression": TopK(0.1), "compression_feedback": "ef21"}),
    "masks": (FedEM(2), {"secure_aggregation": SecureSum(masks=True, dropout_fraction=0.3, threshold=0.3)}),
    "a rule": (FedEM(2), {"robust_aggregation": CenteredClipping(0.1, 2)}),
    "FedBN": (FedEM(2), {"batch_norm": "local", "network": NormalisedMLP}),
    "three at once": (
        SCAFFOLD(),
        {"compression_scope": "whole", "compression": TopK(0.1), "privacy": LocalPrivacy(**BUDGET), "faults": LOST},
    ),
    "two phases": (UCFL(warmup_rounds=0), {"faults": LOST}),
    "models of others": (FedFOMO(num_neighbours=1), {"faults": LOST}),
    "turns": (MixtureADMM(form="gauss_seidel"), {"compression_scope": "whole", "compression": QSGD()}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return node_folders(tmp_path_factory.mktemp("nodes"))


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_nodes_equal_the_simulation(name, folders, tmp_path):
    algorithm, options = WRAPPED[name]
    solver = LocalSolver(lr=0.1, momentum=0.9, persist_optimizer=True)
    settings = FederatedModule(algorithm, solver, client_trainer="sequential", weighting="uniform", **options).settings
    both = sides(folders, tmp_path, settings)
    for cohort in ([0, 2, 3], [0, 1, 2, 3]):
        records = [
            getattr(both, which).round(population[0].train, cohort, per_block=2)
            for which, population in (("simulated", both.populations), ("remote", both.remote_populations))
        ]
        assert same(tree.leaves(both.simulated.shared), tree.leaves(both.remote.shared))
        assert records[0]._replace(seconds=0, client_ids=0) == records[1]._replace(seconds=0, client_ids=0)
    for seen in (True, False):
        assert torch.equal(both.measured("simulated", seen), both.measured("remote", seen))


def test_a_number_that_was_cut_out_of_a_table_goes_as_its_bytes():
    """It is contiguous, and keeps the stride of the table: so do the weights of masked messages."""
    number = torch.arange(206.0).view(2, 103)[1:, 5]
    assert (number.shape, number.stride(), number.is_contiguous()) == ((1,), (103,), True)
    assert from_bytes(to_bytes(Packet({}, {"one": [number]}))).trees["one"][0].tolist() == [108.0]
