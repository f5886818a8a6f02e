import numpy as np
import pytest
import torch
from federated_round import MULTICLASS, as_arrays, batch_orders, make_task
from few_classes import HEAVY, close, samples, started
from references.pfedfda_numpy import pfedfda_round, served_head
from references.two_layers import log_softmax, outputs

from lit_fed.algorithms import PFedFDA
from lit_fed.errors import ConfigError
from lit_fed.models import Network


def compare(federation, body, received):
    close(federation.weights, [body], atol=1e-8)
    for found, expected in zip(federation.shared.features, received, strict=True):
        close(found, expected, atol=1e-8)


@pytest.mark.parametrize("separate", [True, False])
def test_rounds_are_those_of_the_reference(separate, client_trainer):
    """One client has each class at most once; others lack a class."""
    data = samples([7, 2, 12])
    data.y[:9] = data.y.new_tensor([0, 0, 2, 2, 0, 2, 0, 1, 0])
    fits = {"ridge": 0.01, "separate": separate, "grid": 5}
    federation, clients = started(PFedFDA(**fits), client_trainer, train=data)
    body, received, seen = federation.weights[0].numpy(), [one.numpy() for one in federation.shared.features], set()
    assert (received[0] >= 0).all()
    for cohort in ([0, 1], [0, 2], [2, 1]):
        orders = batch_orders(federation)
        body, *received, beta = pfedfda_round(body, received, clients, orders, present=cohort, fits=fits, **HEAVY)
        federation.round(cohort)
        compare(federation, body, received)
        assert beta.pop(1, (0, 0)) == (0, 0)  # without a class with two samples
        seen |= set(beta.values())
    assert len(seen) > 1 + separate
    unseen = samples([6, 3], seed=2, first_id=3)
    own = [(x, y.astype(int)) for x, y in as_arrays(unseen)]
    for test, train, known in ((samples([4, 2, 3], seed=1), clients, True), (unseen, own, False)):
        for found, (x, _), (own_x, own_y) in zip(
            federation.predictions(test, seen=known), as_arrays(test), train, strict=True
        ):
            head = served_head(body, own_x, own_y, received, fits)
            close(found, log_softmax(outputs(np.concatenate([body, head]), x)), atol=1e-7)


class WithoutBias(Network):
    """A last layer that h does not fit into."""

    def __init__(self, shape, num_outputs) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(*shape, 5), torch.nn.Linear(5, num_outputs, bias=False)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def test_networks_whose_head_has_no_bias_are_refused():
    with pytest.raises(ConfigError, match="writes weights and biases of the last layer"):
        started(PFedFDA(), task=make_task(MULTICLASS, network=WithoutBias))
