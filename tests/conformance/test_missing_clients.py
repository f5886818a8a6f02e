"""Clients that fail, for every algorithm: a run without them is the run of those that came, bit for bit."""

import functools

import numpy as np
import pytest
import torch
from federated_round import distance, make_clients, same_bits
from test_algorithms import SMALL, all_algorithms, federation_of

from lit_fed.algorithms import EASGD
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.wrappers.faults.wrapper import Faults, drops_out

pytestmark = pytest.mark.every_combination

SIZES = [6, 3, 9, 4, 5]
SHARE = 0.4
ALL = [*(cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()), EASGD(mode="asynchronous")]
TAKEN = [one for one in ALL if not one.participation.needs_all_clients]
AVERAGED = [one for one in TAKEN if one.message[:3] in (("models", "sum", True), ("changes", "sum", True))]
AVERAGED = [one for one in AVERAGED if not one.message.accumulates and "privacy" not in one.incompatible]


def name_of(algorithm):
    return "_".join([type(algorithm).__name__, *filter(None, [getattr(algorithm, "mode", None)])])


def came(round_idx):
    ids = np.arange(len(SIZES))
    return ids[~drops_out(0, round_idx, ids, np.full(len(SIZES), SHARE))].tolist()


COHORTS = [came(0), came(1)]


def after(algorithm, cohorts=(None, None), trainer=SequentialTrainer, faults=None, dtype=torch.float32, **options):
    keeps = "FedNova" not in repr(algorithm)
    solver = LocalSolver(lr=0.2, momentum=0.5, persist_optimizer=keeps)
    train = make_clients(SIZES, dtype=dtype)
    wrapped = algorithm if faults is None else faults.around(algorithm)
    options = {"num_rounds": len(cohorts), "dtype": dtype, "solver": solver} | options
    federation = federation_of(wrapped, train, trainer=trainer(), **options)
    for cohort in cohorts:
        federation.round(cohort)
    return federation


def kept(federation):
    return federation.shared, federation.states, federation.optimizers


@functools.cache
def of_those_who_came(algorithm):
    return after(algorithm, COHORTS)


@functools.cache
def of_all(algorithm):
    return kept(after(algorithm))


def test_some_came_and_some_did_not():
    assert all(0 < len(cohort) < len(SIZES) for cohort in COHORTS)
    assert COHORTS[0] != COHORTS[1]


ORDERED = [one for one in TAKEN if name_of(one) != "EASGD_asynchronous"]
"""Without those whose clients come in an order that depends on who was drawn."""


@pytest.mark.parametrize("algorithm", ORDERED, ids=name_of)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_round_is_that_of_those_who_came(algorithm, when):
    found = after(algorithm, faults=Faults(dropout=SHARE, when=when))
    assert same_bits(kept(found), kept(of_those_who_came(algorithm)))
    up, down = found.bits.tolist()
    assert up == of_those_who_came(algorithm).bits[0]
    assert down >= of_those_who_came(algorithm).bits[1]


@pytest.mark.parametrize("algorithm", TAKEN, ids=name_of)
def test_clients_at_once_and_in_blocks(algorithm):
    faults = Faults(dropout=SHARE, when="after", commits="always")
    options = {"faults": faults, "dtype": torch.float64}
    runs = [after(algorithm, trainer=one, **options) for one in (SequentialTrainer, VectorizedTrainer)]
    assert distance(*map(kept, runs)) < 1e-9
    cut = after(algorithm, clients_per_block=1, **options)
    assert same_bits(kept(cut), kept(runs[0]))


@pytest.mark.parametrize("algorithm", TAKEN, ids=name_of)
@pytest.mark.parametrize(
    "faults", [Faults(), Faults(deadline=float("inf"), compute_mean=1.0, when="after", on_bad_client="drop")]
)
def test_nobody_fails(algorithm, faults):
    assert same_bits(kept(after(algorithm, faults=faults)), of_all(algorithm))
