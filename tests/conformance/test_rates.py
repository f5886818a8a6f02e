"""Rates of clients: a factor on all of them is another rate, in every algorithm and for every rate of its own."""

import pytest
import torch
from federated_round import BINARY, MULTICLASS, distance, make_clients, small_mlp
from test_algorithms import SMALL, after_rounds, all_algorithms

from lit_fed.algorithms import FedAlt
from lit_fed.core.local_solver import LocalSolver
from lit_fed.models import Linear

pytestmark = pytest.mark.every_combination

OWN = {
    "Ditto": "personal_lr", "FedAlt": "personal_lr", "FedAS": "align_lr", "FedAvgPlus": "fine_tune_lr",
    "FedPAC": "head_lr", "FedSim": "personal_lr", "PerFedAvg": "inner_lr", "PFedMe": "inner_lr",
}  # fmt: skip
"""Rates with which clients move models, beside that of the solver."""

ALL = {
    cls.__name__: cls for cls in all_algorithms()
    if "client_lr" not in cls().incompatible and cls().participation.divided_by == "samples"
}  # fmt: skip
BINARY_ALONE = ("MixedEffects", "MOCHA")


def a_round_of(name, trainer, own_rate=None, **options):
    """A round of two clients: the shared state, the clients' states, and predictions."""
    settings = SMALL.get(name, {}) | ({OWN[name]: own_rate} if name in OWN and own_rate else {})
    options |= {"network": Linear} if name in BINARY_ALONE else {"network": small_mlp, "target": MULTICLASS}
    train = make_clients([5, 7], target=options.get("target", BINARY))
    found = after_rounds(ALL[name](**settings), train, 1, trainer=trainer, **options)
    return found.shared, found.states, found.predictions()


@pytest.mark.parametrize("name", ALL)
def test_a_factor_on_all_clients_is_another_rate(name, client_trainer):
    half = torch.full((2,), 0.5, dtype=torch.float64)
    a = a_round_of(name, client_trainer, 0.08, solver=LocalSolver(lr=0.4), of_clients={"client_lr": half})
    b = a_round_of(name, client_trainer, 0.04, solver=LocalSolver(lr=0.2))
    assert distance(a, b) < 1e-13
    if name in OWN:
        other = a_round_of(name, client_trainer, 0.08, solver=LocalSolver(lr=0.2))
        assert distance(a, other) > 1e-6, "the rate of its own matters"


@pytest.mark.parametrize("name", ALL)
def test_the_rate_of_a_round_is_that_of_its_schedule(name, client_trainer):
    """1/(t + 1) in round 1 is half of the rate; adaptation has one of its own."""
    options = {"round_idx": 1, "num_rounds": 4}
    solvers = LocalSolver(lr=0.4, schedule="linear", adapt_lr=0.1), LocalSolver(lr=0.2, adapt_lr=0.1)
    a, b = (a_round_of(name, client_trainer, solver=solver, **options) for solver in solvers)
    assert distance(a, b) < 1e-13


def test_a_factor_is_on_a_rate_beside_one_of_zero(client_trainer):
    train, half = make_clients([5, 7]), torch.full((2,), 0.5, dtype=torch.float64)
    terms = {"trainer": client_trainer, "solver": LocalSolver(lr=0.0), "network": Linear}
    a = after_rounds(FedAlt(personal_lr=0.4), train, 2, of_clients={"client_lr": half}, **terms)
    b = after_rounds(FedAlt(personal_lr=0.2), train, 2, **terms)
    assert distance(a.states, b.states) == 0
    assert distance(a.states, after_rounds(FedAlt(personal_lr=0.4), train, 2, **terms).states) > 1e-6
