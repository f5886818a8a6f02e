import numpy as np
from federated_round import as_arrays, batch_orders, flat
from few_classes import COHORTS, HEAVY, close, samples, started, unseen_samples
from references.fedrod_numpy import fedrod_round, predicted, train
from references.two_layers import log_softmax

from lit_fed.algorithms import FedRoD
from lit_fed.core.types import LocalWork


def served_as(federation, data, seen, heads, theta):
    for found, phi, (x, _) in zip(federation.predictions(data, seen=seen), heads, as_arrays(data), strict=True):
        close(found, log_softmax(predicted(theta, phi, x)))


def test_rounds_are_those_of_the_reference(client_trainer):
    """One client lacks a class; its balanced softmax is over the others."""
    data = samples()
    data.y[:5] = data.y.new_tensor([0, 0, 2, 2, 0])
    federation, clients = started(FedRoD(0.8), client_trainer, train=data, epochs=2)
    theta, phis = federation.weights[0].numpy(), [np.zeros(18)] * 3
    for cohort in COHORTS:
        orders = batch_orders(federation)
        theta, phis = fedrod_round(theta, phis, clients, orders, gamma=0.8, present=cohort, **HEAVY)
        federation.round(cohort)
        close(federation.weights, [theta])
        close(flat(federation.states), phis)
    served_as(federation, samples([4, 2, 3], seed=1), True, phis, theta)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_samples())
    unseen = [(x, y.astype(int)) for x, y in as_arrays(unseen_samples())]
    fitted = [
        train(theta, np.zeros(18), x, y, own, gamma=0.8, rests=True, **HEAVY)[1]
        for own, (x, y) in zip(orders, unseen, strict=True)
    ]
    close(flat(federation.serve(unseen_samples(), seen=False)), fitted)
    served_as(federation, unseen_samples(), False, fitted, theta)
