"""What a schedule of the learning rate does to clients that are served: nothing, with every algorithm.

Whoever trains before being served takes the rate of adaptation, however far training has decayed its own. An algorithm
either adapts or tunes by local steps of this rate, or `STEPS_WITHOUT_A_RATE` says why its steps have none, or it takes
none, and then no rate may count.
"""

from dataclasses import replace

import pytest
from federated_round import distance, make_clients, same_bits
from test_algorithms import SIZES, SMALL, after_rounds, all_algorithms, network_of, unseen_clients

from lit_fed.core.local_solver import LocalSolver

pytestmark = pytest.mark.every_combination

ROUNDS = 5
SOLVER = LocalSolver(lr=0.2, momentum=0.5)

STEPS_WITHOUT_A_RATE = {
    **dict.fromkeys(["PerFedAvg"], "its inner steps have the rate `inner_lr`"),
    "MOCHA": "coordinate ascent takes exact steps",
}


@pytest.fixture(params=all_algorithms(), ids=lambda one: one.__name__)
def algorithm(request):
    name = request.param.__name__
    return request.param(**SMALL.get(name, {}))


def served(federation):
    """What unseen clients are served with, and seen ones."""
    unseen = unseen_clients()
    return federation.predictions(unseen, seen=False), federation.predictions()


@pytest.mark.parametrize("schedule", ["multi_step", "cosine"])
def test_clients_are_served_as_with_a_constant_rate(algorithm, schedule):
    solver = replace(SOLVER, schedule=schedule)
    federation = after_rounds(algorithm, make_clients(SIZES), rounds=ROUNDS, num_rounds=ROUNDS, solver=solver)
    assert float(federation.context("train").lr) < 0.1 * SOLVER.lr
    decayed = served(federation)
    federation.solver = SOLVER
    assert same_bits(decayed, served(federation))


def test_steps_of_adaptation_are_of_its_rate(algorithm):
    federation = after_rounds(
        algorithm, make_clients(SIZES), rounds=2, num_rounds=2, solver=SOLVER, network=network_of(algorithm)
    )
    works = algorithm.adapt_work(federation.context("adapt"), seen=False), algorithm.tune_work
    steps = any(work is not None and work.trains for work in works)
    found = []
    for adapt_lr in (0.02, 0.4):
        federation.solver = replace(SOLVER, adapt_lr=adapt_lr)
        found.append(served(federation)[0])
    if type(algorithm).__name__ in STEPS_WITHOUT_A_RATE:
        assert steps, "a reason without steps to explain"
        assert same_bits(*found)
    elif steps:
        assert distance(*found) > 1e-4
    else:
        assert same_bits(*found)
