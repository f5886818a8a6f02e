import numpy as np
import torch
from federated_round import as_arrays, batch_orders, flat
from few_classes import COHORTS, HEAVY, close, samples, started, unseen_samples
from references.fedas_numpy import fedas_round, loss
from references.objectives_numpy import descend
from references.two_layers import BODY, log_softmax, outputs

from lit_fed.algorithms import FedAS
from lit_fed.core.types import LocalWork


def test_rounds_are_those_of_the_reference(client_trainer):
    """Cohorts that come back align the body with the features of their last model."""
    federation, clients = started(FedAS(2, 0.2), client_trainer, epochs=2)
    body = federation.weights[0].numpy()
    head = flat(federation.shared.head)[0].numpy()
    own = [np.concatenate([body, head])] * 3
    (phase,) = federation.algorithm.phases(federation.context("train"), torch.arange(3))
    for cohort in COHORTS:
        align, train, fisher = (batch_orders(federation, work=work, stage=name) for name, work in phase.work.by_stage)
        body, own = fedas_round(
            body, own, clients, align, train, fisher, align_lr=0.2, present=cohort, **HEAVY
        )  # fmt: skip
        federation.round(cohort)
        close(federation.weights, [body])
        close(flat(federation.states), own)
    test = samples([4, 2, 3], seed=1)
    for found, theta, (x, _) in zip(federation.predictions(test), own, as_arrays(test), strict=True):
        close(found, log_softmax(outputs(theta, x)))
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_samples())
    start = np.concatenate([body, head])
    for found, rows, (x, y) in zip(
        flat(federation.serve(unseen_samples(), seen=False)), orders, as_arrays(unseen_samples()), strict=True
    ):
        y = y.astype(int)
        close(found, descend(lambda one, rows, x=x, y=y: loss(one, x[rows], y[rows]), start, rows, **HEAVY))
    assert len(body) == BODY


def test_the_head_never_travels():
    """25 float64 numbers of the body; up with a trace."""
    federation, _ = started(FedAS())
    federation.round([0, 2])
    assert federation.bits.tolist() == [2 * 64 * (BODY + 1), 2 * 64 * BODY]
