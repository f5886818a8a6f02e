import numpy as np
import pytest
import torch
from federated_round import MULTICLASS, as_arrays, batch_orders, flat, make_task
from few_classes import HEAVY, close, samples, started, unseen_samples
from references.fedproto_numpy import fedproto_round, nearest, train, training_loss
from references.two_layers import log_softmax, outputs
from torch import Tensor

from lit_fed.algorithms import FedProto
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError
from lit_fed.models import Network


def compare(federation, own, prototypes):
    close(flat(federation.states), own)
    known = [one is not None for one in prototypes]
    assert federation.shared.known.tolist() == known
    close(federation.shared.prototypes, [np.zeros(5) if one is None else one for one in prototypes])


@pytest.mark.parametrize("distance", ["class_means", "samples"])
def test_rounds_are_those_of_the_reference(distance, client_trainer):
    """The first cohort lacks the class 1; the last one lacks a class that has a prototype, which stays."""
    data = samples()
    data.y[5:7], data.y[7:] = 2, data.y.new_tensor([0, 0, 2, 1, 1, 1, 2, 0])
    data.y[:5] = data.y.new_tensor([0, 0, 2, 2, 0])
    federation, clients = started(FedProto(0.6, distance), client_trainer, train=data, epochs=2)
    start = flat(federation.shared.models.parameters)[0].numpy()
    own, prototypes, settings = [start] * 3, [None] * 3, {"weight": 0.6, "distance": distance} | HEAVY
    for cohort in ([0, 1], [0, 2], [1]):
        orders = batch_orders(federation)
        own, prototypes = fedproto_round(own, prototypes, clients, orders, present=cohort, **settings)
        federation.round(cohort)
        compare(federation, own, prototypes)
    test = samples([4, 2, 3], seed=1)
    for found, theta, (x, _) in zip(federation.predictions(test), own, as_arrays(test), strict=True):
        close(found.exp(), nearest(theta, x, prototypes))
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_samples())
    unseen = [(x, y.astype(int)) for x, y in as_arrays(unseen_samples())]
    fitted = [train(start, x, y, own, prototypes, **settings) for own, (x, y) in zip(orders, unseen, strict=True)]
    close(flat(federation.serve(unseen_samples(), seen=False)), fitted)


def test_predictions_without_prototypes():
    """Before the first round the last layer predicts; afterwards a class without a prototype nearly never is."""
    data = samples()
    data.y[data.y == 1] = 0
    federation, clients = started(FedProto(), train=data)
    start = flat(federation.shared.models.parameters)[0].numpy()
    for found, (x, _) in zip(federation.predictions(), clients, strict=True):
        close(found, log_softmax(outputs(start, x)))
    federation.round()
    chances = torch.cat(federation.predictions()).exp()
    assert 0 < float(chances[:, 1].max()) < 1e-300
    head, _ = started(FedProto(predict="head"), train=data)
    head.round()
    for found, theta, (x, _) in zip(head.predictions(), flat(head.states).numpy(), clients, strict=True):
        close(found, log_softmax(outputs(theta, x)))


def test_the_loss_compares_the_classes_of_a_batch_only():
    """The second client has none of two classes that have prototypes."""
    data = samples()
    data.y[5:7] = 2
    federation, clients = started(FedProto(0.6), train=data, batch_size=0)
    federation.round()
    assert federation.shared.known.all()
    prototypes, own = list(federation.shared.prototypes.numpy()), flat(federation.states).numpy()
    federation.round([1])
    assert federation.metrics["loss"] == pytest.approx(
        training_loss(own[1], *clients[1], prototypes, 0.6, "class_means"), abs=1e-10
    )


def test_only_sums_and_counts_travel():
    """Float64 sums of five features and a count, for three classes; prototypes, and a byte for each class."""
    federation, _ = started(FedProto())
    federation.round([0, 2])
    assert federation.bits.tolist() == [2 * 64 * 3 * (5 + 1), 2 * 3 * (64 * 5 + 8)]


class Bare(Network):
    """A network whose last part is a function."""

    def __init__(self, shape, num_outputs) -> None:
        super().__init__()
        self.only = torch.nn.Linear(*shape, num_outputs)

    def split(self):
        return torch.tanh, lambda f: self.only(f)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(torch.tanh(x))


def test_networks_whose_features_cannot_be_counted_are_refused():
    with pytest.raises(
        ConfigError, match=r"the last layer of Bare is no nn\.Linear, .*; choose another --model.network"
    ):
        started(FedProto(), task=make_task(MULTICLASS, network=Bare))
