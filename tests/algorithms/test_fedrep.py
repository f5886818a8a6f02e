import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, distance, run_rounds
from partial_models import SOLVERS, arrays, settings, unseen_clients
from references.fedper_numpy import probability
from references.fedrep_numpy import fedrep_round, train_part

from lit_fed.algorithms import FedRep, Local
from lit_fed.core.types import LocalWork


@pytest.mark.parametrize("body_steps", [1, None])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_rounds_are_those_of_the_reference(solver, body_steps, client_trainer):
    options, lr = settings(epochs=2, **solver), solver["lr"]
    rest = {name: value for name, value in solver.items() if name != "lr"}
    algorithm = FedRep(head_epochs=3, body_steps=body_steps)
    federation = Federation(algorithm, trainer=client_trainer, **options)
    base, first = tuple(arrays(federation.shared.models)), tuple(arrays(federation.states.own, 0))
    heads = [first] * 3
    of_body = LocalWork(epochs=None if body_steps else 2, steps=body_steps)
    for _ in range(3):
        orders = [
            batch_orders(federation, work=work, stage=stage)
            for work, stage in ((LocalWork(epochs=3), "personal"), (of_body, "shared"))
        ]
        clients = as_arrays(options["train"])
        base, heads = fedrep_round(base, heads, clients, *orders, lr, lr, sizes=[1, 1, 1], **rest)
        federation.round()
        found = [arrays(federation.shared.models), *(arrays(federation.states.own, one) for one in range(3))]
        for ours, theirs in zip(found, [base, *heads], strict=True):
            for leaf, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(leaf, expected, rtol=0, atol=1e-12)
    unseen = unseen_clients()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=3), unseen, stage="personal")
    for prediction, own, (x, y) in zip(
        federation.predictions(unseen, seen=False), orders, as_arrays(unseen), strict=True
    ):
        _, head = train_part(base, first, x, y, own, lr, **rest, of_head=True)
        np.testing.assert_allclose(prediction[:, 1].exp().numpy(), probability(base, head, x), rtol=0, atol=1e-12)


def test_with_the_whole_network_as_head_it_is_local(client_trainer):
    """Up to the shuffles of its stage: here a batch is all samples."""
    options = settings(epochs=2, lr=0.3, momentum=0.9) | {"batch_size": 0}
    ours, alone = (run_rounds(one, client_trainer, **options) for one in (FedRep(("*",), head_epochs=2), Local()))
    assert distance(ours.states.own, alone.states.models) < 1e-14
    assert ours.bits.tolist() == [0, 0]
    assert distance(ours.predictions(), alone.predictions()) < 1e-14
