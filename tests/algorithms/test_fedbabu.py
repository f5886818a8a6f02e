import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, distance, make_clients, run_rounds, same_bits
from partial_models import SIZES, SOLVERS, arrays, frozen_but, settings, unseen_clients
from references.fedbabu_numpy import fedbabu_round, tuned
from references.fedper_numpy import probability

from lit_fed.algorithms import FedAvgPlus, FedBABU
from lit_fed.core import tree
from lit_fed.core.types import LocalWork


@pytest.mark.parametrize("tune", ["all", "head", "body"])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_rounds_and_tuning_are_those_of_the_reference(solver, tune, client_trainer):
    options = settings(epochs=2, **solver)
    federation = Federation(FedBABU(tune=tune, adapt_epochs=3), trainer=client_trainer, **options)
    leaves = [*arrays(federation.shared.models), *arrays(federation.states.own, 0)]
    for _ in range(3):
        leaves = fedbabu_round(leaves, as_arrays(options["train"]), batch_orders(federation), **solver)
        federation.round()
        for found, expected in zip(arrays(federation.shared.models), leaves, strict=False):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    for data, seen in ((options["train"], True), (unseen_clients(), False)):
        orders = batch_orders(federation, "adapt", LocalWork(epochs=3), data)
        for prediction, own, (x, y) in zip(
            federation.predictions(data, seen=seen), orders, as_arrays(data), strict=True
        ):
            model = tuned(leaves, x, y, own, tune=tune, **solver)
            found = prediction[:, 1].exp().numpy()
            np.testing.assert_allclose(found, probability(model[:2], model[2:], x), rtol=0, atol=1e-12)


def test_the_head_stays_at_its_start_and_is_never_sent(client_trainer):
    options = settings(lr=0.3, momentum=0.9, weight_decay=0.1)
    federation = run_rounds(FedBABU(), client_trainer, **options)
    start = options["task"].init(1, 0).parameters
    head = {"layers.3.weight", "layers.3.bias"}
    for name in head:
        assert all(bool((own == start[name]).all()) for own in federation.states.own.parameters[name])
    assert head.isdisjoint(federation.shared.models.parameters)
    body = 64 * (4 * 3 + 3)
    assert federation.bits.tolist() == [3 * body] * 2
    sent = federation.algorithm.sent(federation.context("train"), federation.shared, 1)
    assert not any(leaf.numel() for leaf in tree.leaves(sent.own))
    served = federation.serve().models
    assert distance(served.parameters["layers.3.weight"], start["layers.3.weight"].expand(3, 1, 1, 3)) > 1e-3


def test_it_is_fedavg_plus_on_a_frozen_head():
    """With the body alone tuned, bit for bit."""
    options = settings(epochs=2, lr=0.3, momentum=0.9, clip_norm=0.2)
    ours = run_rounds(FedBABU(tune="body", adapt_epochs=2), **options)
    theirs = run_rounds(FedAvgPlus(2), **options | {"task": frozen_but("layers.1")})
    assert same_bits(ours.shared.models, theirs.shared.models)
    assert (ours.bits.tolist(), ours.metrics) == (theirs.bits.tolist(), theirs.metrics)
    assert same_bits(ours.predictions(), theirs.predictions())
    unseen = make_clients(SIZES, seed=4, first_id=3)
    assert same_bits(*(one.predictions(unseen, seen=False) for one in (ours, theirs)))
