import numpy as np
from federated_round import as_arrays, batch_orders, flat
from few_classes import HEAVY, close, samples, started, unseen_samples
from references.feddbe_numpy import feddbe_round, predicted, train
from references.two_layers import log_softmax

from lit_fed.algorithms import FedDBE
from lit_fed.core.types import LocalWork


def served_as(federation, data, seen, biases, theta):
    for found, bias, (x, _) in zip(federation.predictions(data, seen=seen), biases, as_arrays(data), strict=True):
        close(found, log_softmax(predicted(theta, bias, x)))


def test_rounds_are_those_of_the_reference(client_trainer):
    """The first round with clients is without biases and gives the global mean."""
    federation, clients = started(FedDBE(3.0, 0.7), client_trainer, epochs=2)
    theta, biases, wanted = federation.weights[0].numpy(), [np.zeros(5)] * 3, None
    settings = {"kappa": 3.0, "mu": 0.7} | HEAVY
    federation.round([])
    for cohort in ([0, 1], [0, 2], [2, 1]):
        orders = batch_orders(federation)
        theta, biases, wanted = feddbe_round(theta, biases, wanted, clients, orders, present=cohort, **settings)
        federation.round(cohort)
        close(federation.weights, [theta])
        close(flat(federation.states), biases)
        close(federation.shared.mean, wanted)
    served_as(federation, samples([4, 2, 3], seed=1), True, biases, theta)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_samples())
    unseen = [(x, y.astype(int)) for x, y in as_arrays(unseen_samples())]
    fitted = [
        train(theta, np.zeros(5), x, y, own, wanted, rests=True, **settings)[1]
        for own, (x, y) in zip(orders, unseen, strict=True)
    ]
    close(flat(federation.serve(unseen_samples(), seen=False)), fitted)
    served_as(federation, unseen_samples(), False, fitted, theta)
