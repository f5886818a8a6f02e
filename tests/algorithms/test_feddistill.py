import numpy as np
import pytest
from federated_round import as_arrays, batch_orders, flat
from few_classes import HEAVY, close, samples, started, unseen_samples
from references.feddistill_numpy import feddistill_round, teachers, train
from references.two_layers import log_softmax, outputs

from lit_fed.algorithms import FedDistill
from lit_fed.core.types import LocalWork


@pytest.mark.parametrize("distance", ["cross_entropy", "mse"])
def test_rounds_are_those_of_the_reference(distance, client_trainer):
    """Clients that were away have nothing of their own in the sums; classes differ from client to client."""
    data = samples()
    data.y[:5], data.y[5:7] = data.y.new_tensor([0, 0, 2, 2, 0]), 2
    federation, clients = started(FedDistill(0.8, distance, unseen_epochs=2), client_trainer, train=data)
    start = flat(federation.shared.models.parameters)[0].numpy()
    own, told, settings = [start] * 3, [{}] * 3, {"weight": 0.8, "distance": distance} | HEAVY
    for cohort in ([0, 1], [0, 2], [2, 1], [0, 1, 2], [0, 1, 2]):
        orders = batch_orders(federation)
        own, told = feddistill_round(own, told, clients, orders, present=cohort, **settings)
        federation.round(cohort)
        close(flat(federation.states.models), own)
        close(federation.shared.counts, [len(one) for one in told])
        close(federation.shared.sums, [sum(one.values()) if one else np.zeros(3) for one in told])
    for found, theta, (x, _) in zip(federation.predictions(), own, clients, strict=True):
        close(found, log_softmax(outputs(theta, x)))
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_samples())
    unseen = [(x, y.astype(int)) for x, y in as_arrays(unseen_samples())]
    every = teachers(told, None)
    fitted = [train(start, x, y, own, every, **settings) for own, (x, y) in zip(orders, unseen, strict=True)]
    close(flat(federation.serve(unseen_samples(), seen=False).models), fitted)


def test_only_means_and_counts_travel():
    """Float64 means of three outputs and a mark, for three classes; sums, counts and rounds."""
    federation, _ = started(FedDistill())
    federation.round([0, 2])
    assert federation.bits.tolist() == [2 * 64 * 3 * (3 + 1), 2 * 64 * 3 * (3 + 1 + 1)]
