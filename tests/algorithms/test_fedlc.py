import numpy as np
import pytest
from federated_round import batch_orders
from few_classes import COHORTS, HEAVY, close, samples, started
from references.fedlc_numpy import fedlc_round

from lit_fed.algorithms import FedLC


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_rounds_are_those_of_the_reference(denominator, client_trainer):
    """One client has no sample of one class; with the others alone in the denominator every client has all."""
    train = samples([6, 6, 8], seed=4)
    if denominator == "others":
        train.y[:6], train.y[6:12] = (train.y.new_tensor([0, 1, 2, 2, 2, 1]) for _ in range(2))
    federation, clients = started(FedLC(1.5, denominator), client_trainer, train=train)
    counts = np.array([np.bincount(y, minlength=3) for _, y in clients])
    assert (counts.min() == 0) == (denominator == "all")
    w, with_true = federation.weights[0].numpy(), denominator == "all"
    for cohort in COHORTS:
        orders = batch_orders(federation)
        w = fedlc_round(w, clients, orders, tau=1.5, with_true=with_true, present=cohort, **HEAVY)
        federation.round(cohort)
        close(federation.weights, [w])
