import numpy as np
from federated_round import Federation, as_arrays, batch_orders, distance, make_clients, run_rounds
from references.logistic import predict, sgd
from references.reptile_numpy import reptile_round

from lit_fed.algorithms import FedAvg, FedAvgPlus, Reptile
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork

SIZES = [5, 2, 8]


def test_rounds_are_those_of_the_reference(client_trainer):
    solver = {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}
    options = {"solver": LocalSolver(local_epochs=2, **solver), "trainer": client_trainer, "batch_size": 2}
    federation = Federation(Reptile(0.6, 3), make_clients(SIZES), **options)
    phi, clients = federation.weights[0].numpy(), as_arrays(federation.train)
    for cohort in ([0, 1, 2], [0, 2], [1]):
        phi = reptile_round(phi, clients, batch_orders(federation), outer_lr=0.6, present=cohort, **solver)
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), phi, rtol=0, atol=1e-10)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=3))
    for found, order, (x, y) in zip(federation.predictions(), orders, clients, strict=True):
        tuned = sgd(phi, x, y, order, **solver)
        np.testing.assert_allclose(found.exp().numpy(), predict(tuned, x), rtol=0, atol=1e-10)


def test_whole_steps_are_fedavg_that_is_tuned(client_trainer):
    options = {"train": make_clients(SIZES), "weighting": "uniform"}
    ours, plain, tuned = (run_rounds(one, client_trainer, **options) for one in (Reptile(), FedAvg(), FedAvgPlus()))
    assert np.abs((ours.weights - plain.weights).numpy()).max() < 1e-14
    for found, other in zip(ours.predictions(), tuned.predictions(), strict=True):
        np.testing.assert_allclose(found.numpy(), other.numpy(), rtol=0, atol=1e-12)


def test_unseen_clients_are_tuned_as_seen_ones():
    train = make_clients(SIZES)
    federation = run_rounds(Reptile(), None, train, batch_size=0)
    same = make_clients(SIZES, first_id=3)
    assert distance(federation.predictions(), federation.predictions(same, seen=False)) < 1e-12
