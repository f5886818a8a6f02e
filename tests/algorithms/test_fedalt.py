import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, distance, run_rounds
from partial_models import SOLVERS, arrays, settings, unseen_clients
from references.fedalt_numpy import fedalt_round, fedsim_round

from lit_fed.algorithms import FedAlt, FedSim
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError

GIVEN = {"personal_lr": 0.2, "server_lr": 0.7}


def orders_of(algorithm, federation):
    """The batches of each stage."""
    if not isinstance(algorithm, FedAlt):
        return [batch_orders(federation)]
    own = LocalWork(epochs=None if algorithm.personal_steps else 3, steps=algorithm.personal_steps)
    return [batch_orders(federation, work=work, stage=stage) for work, stage in ((own, "personal"), (None, "shared"))]


@pytest.mark.parametrize(
    ("algorithm", "reference"),
    [
        (FedAlt(personal_epochs=3, **GIVEN), fedalt_round),
        (FedAlt(personal_steps=2, **GIVEN), fedalt_round),
        (FedSim(**GIVEN), fedsim_round),
    ],
    ids=["FedAlt", "FedAlt-steps", "FedSim"],
)
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_rounds_are_those_of_the_reference(algorithm, reference, solver, client_trainer):
    options = settings(epochs=2, **solver)
    federation = Federation(algorithm, trainer=client_trainer, **options)
    u = arrays(federation.shared.models)
    personal = [arrays(federation.states.own, one) for one in range(3)]
    given = [GIVEN[name] for name in ("personal_lr", "server_lr")]
    rest = {name: value for name, value in solver.items() if name != "lr"}
    for _ in range(3):
        orders = orders_of(algorithm, federation)
        u, personal = reference(u, personal, as_arrays(options["train"]), *orders, solver["lr"], *given, **rest)
        federation.round()
        found = [arrays(federation.shared.models), *(arrays(federation.states.own, one) for one in range(3))]
        for ours, theirs in zip(found, [u, *personal], strict=True):
            for leaf, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(leaf, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", [FedAlt, FedSim])
def test_the_personal_rate_follows_the_schedule(algorithm):
    options = settings(lr=0.4, schedule="linear")
    one, other = (run_rounds(algorithm(personal_lr=lr), **options) for lr in (None, 0.4))
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-14


def test_clients_count_the_same():
    one, other = (run_rounds(FedAlt(), rounds=1, **settings(lr=0.5), **more) for more in ({}, {"weighting": "samples"}))
    assert distance(one.shared, other.shared) > 1e-3


def test_without_a_rate_of_the_shared_leaves_the_personal_ones_need_steps_of_their_own():
    with pytest.raises(ConfigError, match=r"solver\.lr is 0, .* personal_lr 0\.2; give a rate > 0, or FedAlt"):
        Federation(FedSim(personal_lr=0.2), **settings(lr=0.0))
    trained = run_rounds(FedAlt(personal_lr=0.2), **settings(lr=0.0))
    assert distance(trained.shared.models, Federation(FedAlt(), **settings(lr=0.0)).shared.models) == 0


def test_clients_that_adapt_at_rate_0_stay_as_they_are():
    federation = run_rounds(FedSim(personal_lr=0.2), rounds=1, **settings(lr=0.1, adapt_lr=0.0))
    served = federation.serve(unseen_clients(), seen=False)
    for one in range(2):
        for leaf, initial in zip(arrays(served.own, one), federation.shared.own[0].values(), strict=True):
            np.testing.assert_array_equal(leaf, initial[0])
