import numpy as np
import pytest
import torch
from federated_round import Federation, as_arrays, batch_orders, distance, make_clients, run_rounds, same_bits
from references.fedavg_plus_numpy import fedavg_plus_round, serve

from lit_fed.algorithms import FedAvgPlus
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize(("epochs", "fine_tune_lr"), [(1, None), (3, 0.2)])
def test_rounds_and_tuning_are_those_of_the_reference(options, epochs, fine_tune_lr, client_trainer):
    train, test = make_clients([5, 5, 5]), make_clients([4, 2, 3], seed=1)
    algorithm = FedAvgPlus(epochs, fine_tune_lr)
    federation = Federation(algorithm, train, solver=LocalSolver(**options), trainer=client_trainer, batch_size=2)
    theta = federation.weights[0].numpy()
    for _ in range(2):
        theta = fedavg_plus_round(theta, as_arrays(train), batch_orders(federation), **options)
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
    tuning = {**options, "lr": fine_tune_lr or options["lr"]}
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs))
    for found, own, (x, y), (x_test, _) in zip(
        federation.predictions(test), orders, as_arrays(train), as_arrays(test), strict=True
    ):
        np.testing.assert_allclose(found.exp().numpy(), serve(theta, x, y, own, x_test, **tuning), rtol=0, atol=1e-10)


def test_unseen_clients_are_tuned_alike(client_trainer):
    train, unseen = make_clients([5, 5, 5]), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(FedAvgPlus(), client_trainer, train, rounds=2)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=1), unseen)
    theta = federation.weights[0].numpy()
    for found, own, (x, y) in zip(federation.predictions(unseen, seen=False), orders, as_arrays(unseen), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), serve(theta, x, y, own, x, 0.1), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- limits
# ---------------------------------------------------------------------- the tuning
def test_the_tuned_copy_is_thrown_away(client_trainer):
    federation = run_rounds(FedAvgPlus(fine_tune_lr=5.0), client_trainer, make_clients([5, 2, 8]))
    before = tree.map_leaves(torch.clone, federation.shared)
    first = federation.serve()
    assert distance(tree.index(first, 0), tree.index(first, 1)) > 0.1
    assert same_bits(federation.shared, before)
    assert federation.states == ()
    assert same_bits(federation.serve(), first)


def test_tuning_takes_the_initial_rate_not_the_decayed():
    train = make_clients([5, 2, 8])
    solver = LocalSolver(lr=0.4, schedule="multi_step")
    late = run_rounds(FedAvgPlus(), None, train, rounds=4, solver=solver)
    named = run_rounds(FedAvgPlus(fine_tune_lr=0.4), None, train, rounds=4, solver=solver)
    decayed = run_rounds(FedAvgPlus(fine_tune_lr=0.004), None, train, rounds=4, solver=solver)
    assert same_bits(late.serve(), named.serve())
    assert distance(late.serve(), decayed.serve()) > 1e-3


def test_tuning_has_a_fresh_optimizer():
    train = make_clients([5, 2, 8])
    solvers = [LocalSolver(momentum=0.9, persist_optimizer=persist) for persist in (True, False)]
    kept = run_rounds(FedAvgPlus(), None, train, solver=solvers[0])
    fresh = run_rounds(FedAvgPlus(), None, train, rounds=0, solver=solvers[1])
    fresh.shared, fresh.round_idx, fresh.num_rounds = kept.shared, kept.round_idx, kept.num_rounds
    assert same_bits(kept.serve(), fresh.serve())
