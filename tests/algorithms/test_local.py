import numpy as np
import pytest
import torch
from federated_round import Federation, as_arrays, batch_orders, distance, flat, make_clients, run_rounds, same_bits
from references.local_numpy import local_round
from references.logistic import predict

from lit_fed.algorithms import Local
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_rounds_are_those_of_the_reference(options, client_trainer):
    train, test = make_clients([5, 5, 5]), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(Local(), train, solver=solver, trainer=client_trainer, batch_size=2)
    thetas = [federation.weights[0].numpy()] * 3
    for _ in range(3):
        thetas = local_round(thetas, as_arrays(train), batch_orders(federation), **options)
        federation.round()
        np.testing.assert_allclose(flat(federation.states).numpy(), np.stack(thetas), rtol=0, atol=1e-10)
    for found, theta, (x, _) in zip(federation.predictions(test), thetas, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- nothing is shared
def test_other_clients_change_nothing(client_trainer):
    train = make_clients([5, 2, 8])
    together = run_rounds(Local(), client_trainer, train)
    alone = run_rounds(Local(), client_trainer, train, cohorts=[[1]] * 3)
    assert distance(tree.index(together.states, 1), tree.index(alone.states, 1)) < 1e-14


def test_the_common_start_never_changes(client_trainer):
    train = make_clients([5, 2, 8])
    federation = Federation(Local(), train, trainer=client_trainer)
    start = federation.shared
    assert all(same_bits(tree.index(federation.states.models, one), start.models) for one in range(3))
    federation.round()
    assert same_bits(federation.shared, start)


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_trains_from_the_common_start(epochs, client_trainer):
    train, unseen = make_clients([5, 2, 8]), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(Local(), client_trainer, train, solver=LocalSolver(local_epochs=epochs))
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    expected = local_round([federation.weights[0].numpy()] * 2, as_arrays(unseen), orders, lr=0.1)
    np.testing.assert_allclose(flat(federation.serve(unseen, seen=False)).numpy(), expected, rtol=0, atol=1e-10)


def test_an_unseen_client_without_samples_gets_the_start(client_trainer):
    federation = run_rounds(Local(), client_trainer, make_clients([5, 2]))
    states = federation.serve(make_clients([0], first_id=2), seen=False)
    assert same_bits(tree.index(states.models, 0), federation.shared.models)


def test_states_have_their_own_memory():
    federation = Federation(Local(), make_clients([5, 2]))
    pointers = {leaf.data_ptr() for leaf in tree.leaves((federation.shared, federation.states))}
    assert len(pointers) == 4
    assert isinstance(federation.states.models.parameters["linear.weight"], torch.Tensor)
