"""Settings that decide alone how clients are served: training never reads them, and a checkpoint may be served so."""

import copy
from dataclasses import fields, replace

import pytest
from federated_round import make_clients, same_bits
from test_algorithms import SIZES, SMALL, after_rounds, all_algorithms, network_of, unseen_clients

from lit_fed.core.local_solver import LocalSolver

pytestmark = pytest.mark.every_combination

OTHER = {
    **dict.fromkeys(["unseen_steps", "em_steps", "adapt_steps", "adapt_epochs", "fine_tune_epochs"], 7),
    **dict.fromkeys(["refresh_mixture_at_eval", "serve_mean"], True),
    "fine_tune_lr": 0.05,
    "tune": "*.bias",
    "predict": "head",
    **{"neighbours": 1, "knn_weight": 0.9, "kernel": "squared", "capacity": 1},
}
"""A value that is not the default."""

OTHER_OF = {"FedBABU": {"tune": "body"}, "OfficialFedEM": {"refresh_mixture_at_eval": False}}
"""The same for a class whose field of that name has another default or takes something else."""

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]


@pytest.mark.parametrize("algorithm", ALL, ids=lambda one: type(one).__name__)
def test_every_such_field_is_declared(algorithm):
    there = {field.name for field in fields(algorithm)}
    assert set(algorithm.serving_settings) == there & set(OTHER)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(algorithm, name) for algorithm in ALL for name in algorithm.serving_settings],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_training_does_not_read_it(algorithm, name):
    value = OTHER_OF.get(type(algorithm).__name__, OTHER).get(name, OTHER[name])
    other, solver = replace(algorithm, **{name: value}), LocalSolver(lr=0.2, momentum=0.5)
    options = {"rounds": 2, "solver": solver, "network": network_of(algorithm)}
    one, another = (after_rounds(each, make_clients(SIZES), **options) for each in (algorithm, other))
    assert same_bits([one.shared, one.states], [another.shared, another.states])
    served = copy.copy(one)
    served.algorithm = other
    before, after, whole = (
        [each.predictions(), each.predictions(unseen_clients(), seen=False)] for each in (one, served, another)
    )
    assert same_bits(after, whole)
    assert not same_bits(before, after)
