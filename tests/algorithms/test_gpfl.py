import pytest
import torch
from federated_round import MULTICLASS, as_arrays, batch_orders, flat, make_task
from few_classes import HEAVY, close, samples, started, unseen_samples
from references.gpfl_numpy import GUIDES, gpfl_round, predicted, shares, train
from references.two_layers import BODY, log_softmax

from lit_fed.algorithms import GPFL
from lit_fed.core.partial_models import OWN
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError
from lit_fed.models import Network


def served_as(federation, data, seen, labels, heads, sent):
    for found, y, phi, (x, _) in zip(
        federation.predictions(data, seen=seen), labels, heads, as_arrays(data), strict=True
    ):
        close(found, log_softmax(predicted(sent, phi, x, y)))


def test_rounds_are_those_of_the_reference(client_trainer):
    """One client lacks a class."""
    data = samples()
    data.y[:5] = data.y.new_tensor([0, 0, 2, 2, 0])
    federation, clients = started(GPFL(0.3, 0.2), client_trainer, train=data)
    settings = {"pull": 0.3, "mu": 0.2} | HEAVY
    sent, start = federation.weights[0].numpy(), flat(federation.states.own.parameters)[0].numpy()
    assert len(sent) == BODY + GUIDES
    labels, heads = [y for _, y in clients], [start] * 3
    for cohort in ([0], [1, 0]):
        orders = batch_orders(federation)
        sent, heads = gpfl_round(sent, heads, clients, orders, present=cohort, **settings)
        federation.round(cohort)
        close(federation.weights, [sent])
        close(flat(federation.states.own.parameters), heads)
        close(federation.states.shares, [shares(y) for y in labels])
    served_as(federation, samples([4, 2, 3], seed=1), True, labels, heads, sent)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=1), unseen_samples(), stage=OWN)
    unseen = [(x, y.astype(int)) for x, y in as_arrays(unseen_samples())]
    fitted = [
        train(sent[:BODY], start, sent[BODY:], x, y, own, rests=True, **settings)[1]
        for own, (x, y) in zip(orders, unseen, strict=True)
    ]
    served_as(federation, unseen_samples(), False, [y for _, y in unseen], fitted, sent)


class Guided(Network):
    """A network with a part of the name that GPFL gives to its own."""

    def __init__(self, shape, num_outputs) -> None:
        super().__init__()
        self.guides, self.last = torch.nn.Linear(*shape, 5), torch.nn.Linear(5, num_outputs)

    def forward(self, x):
        return self.last(torch.relu(self.guides(x)))


def test_networks_that_have_a_part_of_the_same_name_are_refused():
    with pytest.raises(ConfigError, match="keeps a module 'guides' beside the network, which has one; rename that"):
        started(GPFL(), task=make_task(MULTICLASS, network=Guided))
