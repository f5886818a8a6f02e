import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, distance, run_rounds, same_bits
from partial_models import SOLVERS, arrays, settings, unseen_clients
from references.fedper_numpy import probability
from references.lg_fedavg_numpy import lg_fedavg_round, newcomer

from lit_fed.algorithms import FedAvg, LGFedAvg, Local
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_rounds_are_those_of_the_reference(solver, client_trainer):
    options = settings(epochs=2, **solver)
    federation = Federation(LGFedAvg(), trainer=client_trainer, **options)
    top, first = arrays(federation.shared.models), arrays(federation.states.own, 0)
    bodies = [first] * 3
    for _ in range(3):
        top, bodies = lg_fedavg_round(top, bodies, as_arrays(options["train"]), batch_orders(federation), **solver)
        federation.round()
        found = [arrays(federation.shared.models), *(arrays(federation.states.own, one) for one in range(3))]
        for ours, theirs in zip(found, [top, *bodies], strict=True):
            for leaf, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(leaf, expected, rtol=0, atol=1e-12)
    assert federation.bits.tolist() == [3 * 64 * 4] * 2  # V and c
    unseen = unseen_clients()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen, stage="personal")
    for prediction, own, (x, y) in zip(
        federation.predictions(unseen, seen=False), orders, as_arrays(unseen), strict=True
    ):
        body = newcomer(top, first, x, y, own, **solver)
        np.testing.assert_allclose(prediction[:, 1].exp().numpy(), probability(body, top, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layers", "other"), [(2, FedAvg()), (0, Local())], ids=["FedAvg", "Local"])
def test_its_limits(layers, other, client_trainer):
    options = settings(epochs=2, lr=0.3, momentum=0.9) | {"cohorts": [[0, 1, 2], [1, 2], [0]]}
    ours, theirs = (run_rounds(one, client_trainer, **options) for one in (LGFedAvg(layers), other))
    found = ours.shared.models if layers else ours.states.own
    assert same_bits(found, theirs.shared.models if layers else theirs.states.models)
    assert (ours.bits.tolist(), ours.metrics) == (theirs.bits.tolist(), theirs.metrics)
    assert distance(ours.predictions(), theirs.predictions()) < 1e-14


def test_more_layers_than_there_are_are_refused():
    with pytest.raises(ConfigError, match=r"shared_layers is 3, and MLP has 2 layers"):
        run_rounds(LGFedAvg(3), **settings())
