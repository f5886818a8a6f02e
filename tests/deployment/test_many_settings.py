"""Whatever goes around an algorithm, clients or network: nodes give the numbers of the simulation, bit for bit."""

from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch
from in_process import make_nodes, node_folders
from normalised import NormalisedMLP
from test_conformance import equal_sides, nodes_serve_alone, sides
from torch import nn

from lit_fed import FederatedModule
from lit_fed.algorithms import SCAFFOLD, UCFL, Ditto, FedEM, FedFOMO, MixtureADMM
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.local_solver import LocalSolver
from lit_fed.deployment.node_pool import LostNodesError
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.models import MLP
from lit_fed.wrappers.compression.codecs import QSGD, TopK
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.robust.attacks import Gaussian
from lit_fed.wrappers.robust.rules import CenteredClipping

BUDGET = {"noise_multiplier": 0.5, "clip_norm": 0.1, "delta": 1e-3, "noise_seed": 0}
LOST = Faults(0.4, "after", on_bad_client="drop")

ENCODED = {"compression_scope": "whole", "compression": TopK(0.1)}


class Case(NamedTuple):
    """A training that nodes and a simulation have to agree on."""

    algorithm: Algorithm
    settings: dict = MappingProxyType({})
    solver: dict = MappingProxyType({})
    facts: dict = MappingProxyType({})
    cohorts: tuple = ([0, 2, 3], [0, 1, 2, 3])
    per_block: int = 2


class Forgetful(MLP):
    """A hidden layer with dropout, whose draws hang on the client and the round."""

    def __init__(self, input_shape, num_outputs):
        super().__init__(input_shape, num_outputs, (7,))

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.3, self.training))


def noisy_steps(**more):
    return ExamplePrivacy(**BUDGET, sample_rate=0.5, mixture_noise=1.0, **more)


CASES = {
    # wrappers
    "a bound that moves": Case(
        FedEM(2), {"privacy": ClientPrivacy(0.5, delta=1e-3, adaptive=True, clip_count_noise=5.0, noise_seed=0)}
    ),
    "noise at clients": Case(FedEM(2), {"privacy": LocalPrivacy(**BUDGET)}),
    "noisy steps": Case(FedEM(2), {"privacy": noisy_steps()}),
    "codecs both ways": Case(FedEM(2), ENCODED | {"downlink_compression": QSGD()}),
    "EF21": Case(FedEM(2), ENCODED | {"compression_feedback": "ef21"}),
    "an attack": Case(
        FedEM(2),
        {"robust_aggregation": CenteredClipping(0.1, 2), "attack": Gaussian()},
        facts={"attackers": torch.tensor([1])},
    ),
    "FedBN": Case(FedEM(2), {"batch_norm": "local", "network": NormalisedMLP}),
    "averaged statistics": Case(FedEM(2), {"network": NormalisedMLP}),
    "weights by chances": Case(FedEM(2), {"faults": Faults(0.4, "after", average="importance", commits="always")}),
    "too many are asked": Case(FedEM(2), {"faults": Faults(over_selection=0.3, compute_mean=1.0, deadline=2.0)}),
    "three at once": Case(
        SCAFFOLD(),
        ENCODED
        | {"compression": None, "downlink_compression": QSGD(), "privacy": LocalPrivacy(**BUDGET), "faults": LOST},
    ),
    "two phases": Case(UCFL(warmup_rounds=0), {"faults": LOST}),
    "models of others": Case(FedFOMO(num_neighbours=1), {"faults": LOST}),
    "turns": Case(MixtureADMM(form="gauss_seidel"), ENCODED, per_block=1),
    # clients
    "drawn by size": Case(FedEM(2), cohorts=([2, 0, 2, 2], [3, 3, 1, 3]), facts={"sampling_probability": 0.5}),
    "stragglers": Case(FedEM(2), solver={"straggler_fraction": 0.6, "local_epochs": 3}),
    "rates that fall": Case(SCAFFOLD(), solver={"schedule": "cosine", "adapt_lr": 0.3}),
    "a block for each": Case(FedFOMO(), per_block=1, solver={"optimizer": "adam", "momentum": 0.0}),
    # networks
    "hidden layers": Case(UCFL(warmup_rounds=0), {"network": Forgetful}),
    "frozen layers": Case(FedEM(2), {"network": partial(MLP, hidden_sizes=(7,)), "trainable": "head"}),
    "adapters": Case(FedEM(2), {"network": partial(MLP, hidden_sizes=(7,)), "lora_rank": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes_equal_the_simulation_whatever_goes_around(name, folders, tmp_path):
    check(CASES[name], folders, tmp_path)


@pytest.mark.parametrize(
    "case", [Case(FedEM(2), {"network": partial(MLP, hidden_sizes=(11,))}), Case(Ditto())], ids=["samples", "states"]
)
def test_numbers_may_begin_at_any_address(case, tmp_path):
    """Rows of 20 bytes lie elsewhere among those of all clients than among those of a node."""
    check(case, node_folders(tmp_path / "files", num_features=5, classes=10, least=40), tmp_path)


def test_models_that_begin_elsewhere_are_refused(folders, tmp_path):
    settings = FederatedModule(FedEM(2), client_trainer="sequential").settings
    both = sides(folders, tmp_path, settings)
    both.transport.nodes = make_nodes(folders, tmp_path / "other", settings=settings._replace(init_seeds=[7, 8]))
    with pytest.raises(LostNodesError, match="anna says: the models that clients start from are others here"):
        both.remote.round(both.remote_populations[0].train, [0, 1])


def check(case, folders, states):
    solver = LocalSolver(**{"lr": 0.1, "momentum": 0.9, "persist_optimizer": True} | case.solver)
    given = {"client_trainer": "sequential", "weighting": "uniform"} | case.settings
    settings = FederatedModule(case.algorithm, solver, **given).settings
    both = sides(folders, states, settings, **case.facts)
    equal_sides(both, case.cohorts, case.per_block)
    nodes_serve_alone(both, folders, states, settings)


def test_a_number_that_was_cut_out_of_a_table_goes_as_its_bytes():
    """It is contiguous, and keeps the stride of the table: so do the weights of masked messages."""
    number = torch.arange(206.0).view(2, 103)[1:, 5]
    assert (number.shape, number.stride(), number.is_contiguous()) == ((1,), (103,), True)
    assert from_bytes(to_bytes(Packet({}, {"one": [number]}))).trees["one"][0].tolist() == [108.0]
