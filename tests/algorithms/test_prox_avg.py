import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from references.logistic import probability
from references.prox_avg_numpy import prox_avg_round, prox_sgd

from lit_fed.algorithms import Local, ProxAvg
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork
from lit_fed.errors import ClientError, ConfigError
from lit_fed.models import MLP

SIZES = [5, 2, 8]
COHORTS = [[0, 1, 2], [1], [0, 2], [2, 1]]


def q2(algorithm, trainer=None, rounds=1, **fields):
    """Two clients with the losses ½x² and ½·3·(x − 4)², from 0."""
    fields = {"task": make_task(REGRESSION, 1, Scale), "batch_size": 0} | fields
    return run_rounds(algorithm, trainer, quadratics([1.0, 3.0], [0.0, 4.0]), rounds=rounds, **fields)


def own(federation):
    """The clients' models as rows, [T, d]."""
    return flat(federation.states.models.parameters)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
@pytest.mark.parametrize("prox_weight", [0.3, 1.0])
def test_rounds_are_those_of_the_reference(options, aggregation, prox_weight, client_trainer):
    """With `stale_fill` the average is that of all personal models, also of those that were not trained."""
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    fields = {"trainer": client_trainer, "batch_size": 2, "aggregation": aggregation}
    federation = Federation(ProxAvg(prox_weight), train, solver=solver, **fields)
    z = federation.weights[0].numpy()
    models = [z] * 3
    for cohort in COHORTS:
        orders = batch_orders(federation)
        everyone = aggregation == "stale_fill"
        models, z = prox_avg_round(
            models, z, as_arrays(train), orders, cohort, everyone, prox_weight=prox_weight, **options
        )
        federation.round(cohort)
        np.testing.assert_allclose(own(federation).numpy(), np.stack(models), rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.weights[0].numpy(), z, rtol=0, atol=1e-10)
    for found, model, (x, _) in zip(federation.predictions(test), models, as_arrays(test), strict=True):
        np.testing.assert_allclose(found[:, 1].exp().numpy(), probability(model, x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- known solutions
def test_the_first_exact_round_is_known(client_trainer):
    """From z = 0 the proximal points are 0 and 12/4, and their mean is that of FedProx."""
    federation = q2(ProxAvg(1.0, "exact"), client_trainer)
    assert own(federation)[:, 0].tolist() == pytest.approx([0, 3], abs=1e-12)
    assert float(federation.weights) == pytest.approx(1.5, abs=1e-12)
    assert federation.metrics["loss"] == pytest.approx(12, abs=1e-12)


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("options", [{"lr": 0.4}, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_without_a_pull_it_is_local(options, client_trainer):
    run = {"solver": LocalSolver(local_epochs=2, **options), "cohorts": [[0, 1, 2], [1], [0, 2]]}
    ours, alone = (run_rounds(one, client_trainer, make_clients(SIZES), **run) for one in (ProxAvg(0.0), Local()))
    assert same_bits(ours.states.models, alone.states.models)
    assert same_bits(ours.predictions(), alone.predictions())
    assert ours.metrics == alone.metrics


def test_the_average_is_that_of_the_samples_or_of_the_clients(client_trainer):
    train = make_clients(SIZES)
    by_samples = run_rounds(ProxAvg(), client_trainer, train)
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    assert distance(by_samples.weights[0], sizes @ own(by_samples) / sizes.sum()) < 1e-14
    alike = run_rounds(ProxAvg(), client_trainer, train, weighting="uniform")
    assert distance(alike.weights[0], own(alike).mean(0)) < 1e-14
    assert distance(by_samples.weights, alike.weights) > 1e-3


# ---------------------------------------------------------------------- who takes part


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_trains_from_and_towards_the_average(epochs, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(ProxAvg(0.7), client_trainer, train, solver=LocalSolver(local_epochs=epochs))
    z = federation.weights[0].numpy()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    expected = [prox_sgd(z, z, x, y, own, 0.7, 0.1) for own, (x, y) in zip(orders, as_arrays(unseen), strict=True)]
    np.testing.assert_allclose(
        flat(federation.serve(unseen, seen=False)).numpy(), np.stack(expected), rtol=0, atol=1e-10
    )


def test_an_unseen_client_solves_exactly_if_the_others_do(client_trainer):
    federation = q2(ProxAvg(1.0, "exact"), client_trainer, rounds=25)
    unseen = quadratics([2.0], [-1.0])
    unseen = type(unseen)(unseen.x, unseen.y, unseen.offsets, first_id=2)
    assert float(flat(federation.serve(unseen, seen=False))) == pytest.approx((-2 + 2.4) / 3, abs=1e-9)


# ---------------------------------------------------------------------- wrong values


def test_an_exact_solve_of_a_large_network_is_refused():
    task = make_task(network=lambda shape, outputs: MLP(shape, outputs, (600,)))
    with pytest.raises((ConfigError, ClientError), match="2048"):
        run_rounds(ProxAvg(1.0, "exact"), None, make_clients(SIZES), task=task)
