import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, distance, make_clients, make_context, run_rounds
from references.fedasync_numpy import one_step
from references.logistic import predict

from lit_fed.algorithms import FedAsync, FedBuff
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8, 3, 4]


@pytest.mark.parametrize(("kind", "rho"), [("constant", 0.0), ("polynomial", 0.3), ("hinge", 0.0)])
def test_rounds_are_those_of_the_reference(kind, rho, client_trainer):
    train, solver = make_clients(SIZES), {"lr": 0.5, "momentum": 0.9}
    algorithm = FedAsync(0.7, kind, 0.8, 3.0, 1, rho, 4, compute_spread=1.0)
    options = {"trainer": client_trainer, "solver": LocalSolver(local_epochs=2, **solver), "batch_size": 2}
    federation = Federation(algorithm, train, **options)
    versions, ages, clients = [federation.weights[0].numpy()], set(), as_arrays(train)
    a = {"constant": None, "polynomial": 0.8, "hinge": 3.0}[kind]
    for round_idx in range(9):
        found, orders = algorithm.arrivals(federation.context("train")), batch_orders(federation)
        client, age = int(found.client_ids), int(found.staleness)
        versions.append(
            one_step(
                versions, *clients[client], orders[client], round_idx - age, alpha=0.7, kind=kind, a=a, b=1, rho=rho,
                **solver,
            )
        )  # fmt: skip
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), versions[-1], rtol=0, atol=1e-10)
        assert federation.metrics["staleness"] == age
        ages.add(age)
    assert ages >= {0, 2, 3}
    for found, (x, _) in zip(federation.predictions(), clients, strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(versions[-1], x), rtol=0, atol=1e-10)


def test_workers_come_in_as_for_fedbuff():
    ctx = make_context(num_clients=5, round_idx=30)
    one, other = FedAsync(concurrency=4).arrivals(ctx), FedBuff(1, 4).arrivals(ctx)
    assert (one.client_ids.tolist(), one.staleness.tolist()) == (other.client_ids.tolist(), other.staleness.tolist())


def test_one_worker_at_a_time_that_is_taken_whole_is_fedbuff(client_trainer):
    """Without staleness the mixture of whole weight is the model that comes in."""
    options = {"solver": LocalSolver(lr=0.3), "rounds": 5, "weighting": "uniform"}
    algorithms = FedAsync(1.0, concurrency=1), FedBuff(1, 1)
    one, other = (run_rounds(algorithm, client_trainer, make_clients(SIZES), **options) for algorithm in algorithms)
    assert distance(one.shared.models, other.shared.models) < 1e-12


def test_more_than_all_clients_are_refused():
    with pytest.raises(ConfigError, match=r"concurrency is 6, and there are 5 clients"):
        Federation(FedAsync(concurrency=6), make_clients(SIZES))
