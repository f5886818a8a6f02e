"""Clients that do a part of their local work: the same for all client trainers."""

import pytest
import torch
from federated_round import (
    MULTICLASS,
    Federation,
    batch_orders,
    distance,
    make_clients,
    make_task,
    run_rounds,
    small_mlp,
)

from lit_fed.algorithms import FedAvg, FedEM, FedProx, Local, OfficialFedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.models import Linear

RAGGED = [30, 1, 17, 2, 12, 4, 5, 33]
ALGORITHMS = [FedAvg(), FedProx(0.5), FedProx(0.5, 0.5), FedEM(2), OfficialFedEM(2), Local()]


def run(algorithm, trainer, fraction, **options):
    solver = LocalSolver(lr=0.3, momentum=0.9, local_epochs=3, straggler_fraction=fraction, persist_optimizer=True)
    train = make_clients(RAGGED, target=MULTICLASS)
    return run_rounds(algorithm, trainer, train, rounds=2, solver=solver, **options)


def left_behind(federation):
    return federation.shared, federation.states, federation.optimizers, federation.predictions()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize("network", [Linear, small_mlp], ids=["linear", "mlp"])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_clients_at_once_equal_clients_one_by_one(algorithm, network, fraction):
    options = {"task": make_task(MULTICLASS, network=network), "cohorts": [[0, 1, 2, 3, 4, 5, 6, 7], [7, 2, 5, 1]]}
    one, other = (run(algorithm, trainer(), fraction, **options) for trainer in (SequentialTrainer, VectorizedTrainer))
    assert distance(left_behind(one), left_behind(other)) < 1e-10
    assert one.metrics == pytest.approx(other.metrics, abs=1e-10)


@pytest.mark.parametrize("chunk_bytes", [1, 4000])
def test_chunks_are_irrelevant(chunk_bytes):
    task = make_task(MULTICLASS)
    one, other = (run(FedAvg(), trainer, 0.7, task=task) for trainer in (
        VectorizedTrainer(), VectorizedTrainer(chunk_bytes)))  # fmt: skip
    assert distance(left_behind(one), left_behind(other)) < 1e-12


def test_each_takes_the_steps_of_its_plan(client_trainer):
    solver = LocalSolver(local_epochs=4, straggler_fraction=0.6, momentum=0.5, persist_optimizer=True)
    federation = Federation(Local(), make_clients(RAGGED), solver=solver, trainer=client_trainer)
    planned = torch.tensor([len(order) for order in batch_orders(federation)])
    whole = torch.tensor([4 * -(-size // 4) for size in RAGGED])
    assert ((planned >= 1) & (planned <= whole)).all()
    assert 0 < int((planned < whole).sum()) < len(RAGGED)
    federation.round()
    assert federation.optimizers.step.tolist() == planned.tolist()


def test_a_full_time_client_is_not_touched_by_stragglers(client_trainer):
    solvers = [LocalSolver(local_epochs=4, straggler_fraction=fraction) for fraction in (0.6, 0.0)]
    some, none = (Federation(Local(), make_clients(RAGGED), solver=one, trainer=client_trainer) for one in solvers)
    planned = [len(order) for order in batch_orders(some)]
    full = [row for row, size in enumerate(RAGGED) if planned[row] == 4 * -(-size // 4)]
    some.round()
    none.round()
    gaps = [distance(tree.index(some.states, row), tree.index(none.states, row)) for row in range(len(RAGGED))]
    assert all((gap < 1e-14) == (row in full) for row, gap in enumerate(gaps))
    assert 0 < len(full) < len(RAGGED)


def test_adaptation_before_serving_has_no_stragglers(client_trainer):
    solvers = [LocalSolver(local_epochs=3, straggler_fraction=fraction) for fraction in (1.0, 0.0)]
    unseen = make_clients(RAGGED, seed=3, first_id=8)
    one, other = (
        Federation(Local(), make_clients(RAGGED), solver=solver, trainer=client_trainer) for solver in solvers
    )
    assert distance(one.serve(unseen, seen=False), other.serve(unseen, seen=False)) == 0
