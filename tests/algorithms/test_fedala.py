import numpy as np
import pytest
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    run_rounds,
    small_mlp,
)
from references.fedala_numpy import fedala_round
from references.logistic import predict, sgd

from lit_fed.algorithms import FedALA, FedAvg
from lit_fed.algorithms.fedala import _drawn
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8]


def drawn_samples(federation, fraction):
    """Which samples of each client count for its weights in the coming round."""
    ctx = federation.context("train")
    return [_drawn(ctx, federation.train.client(one), fraction).numpy() for one in range(federation.train.num_clients)]


def test_rounds_are_those_of_the_reference(client_trainer):
    """Three passes over the weights in round 1, one afterwards; an absent client keeps its model and weights."""
    solver = {"lr": 0.4, "momentum": 0.5, "weight_decay": 0.05}
    algorithm = FedALA(weight_lr=3.0, sample_fraction=0.6, start_passes=3)
    fields = {"solver": LocalSolver(local_epochs=2, **solver), "trainer": client_trainer, "batch_size": 2}
    federation = Federation(algorithm, make_clients(SIZES), **fields)
    model = federation.weights[0].numpy()
    owns, weights, clients = [model] * 3, [np.ones(5)] * 3, as_arrays(federation.train)
    for cohort, passes in (([0, 1, 2], 0), ([0, 2], 3), ([0, 1, 2], 1), ([1, 2], 1)):
        ala, train = (
            batch_orders(federation, "train", LocalWork(epochs=epochs), stage=stage if passes else "")
            for stage, epochs in (("ala", passes), ("train", 2))
        )
        model, owns, weights = fedala_round(
            model, owns, weights, clients, ala, train, drawn_samples(federation, 0.6), eta=3.0, present=cohort, **solver
        )
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), model, rtol=0, atol=1e-10)
        np.testing.assert_allclose(
            flat(federation.states.models.parameters).numpy(), np.stack(owns), rtol=0, atol=1e-10
        )
        np.testing.assert_allclose(flat(federation.states.weights).numpy(), np.stack(weights), rtol=0, atol=1e-9)
    assert len(np.unique(np.round(weights, 6))) > 4
    for found, own, (x, _) in zip(federation.predictions(), owns, clients, strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(own, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", [FedALA(weight_lr=0.0), FedALA()], ids=["no rate", "round 0"])
def test_without_learning_weights_it_is_fedavg(algorithm, client_trainer):
    """Batches of round 0 are the same; later ones are those of a stage."""
    options = {"train": make_clients(SIZES), "rounds": 2 if algorithm.weight_lr == 0 else 1, "batch_size": 0}
    ours, plain = (run_rounds(one, client_trainer, **options) for one in (algorithm, FedAvg()))
    assert distance(ours.shared.models, plain.shared.models) < 1e-14


def test_weights_lower_the_loss_of_the_start(client_trainer):
    """A client far from the others takes less of the global model."""
    options = {"rounds": 4, "solver": LocalSolver(lr=0.5), "batch_size": 0}
    federation = run_rounds(FedALA(sample_fraction=1.0), client_trainer, make_clients([8, 8, 8]), **options)
    weights = flat(federation.states.weights)
    assert float(weights.min()) >= 0
    assert float(weights.max()) <= 1
    assert float(weights.mean()) < 0.99


def test_layers_below_are_the_global_ones():
    task, train = make_task(network=small_mlp), make_clients(SIZES)
    federation = run_rounds(FedALA(), None, train, task=task, rounds=2)
    assert {name.rpartition(".")[0] for name in federation.states.weights} == {
        list(federation.shared.models.parameters)[-1].rpartition(".")[0]
    }
    with pytest.raises(ConfigError, match=r"num_layers is 3, .* has 2 layers"):
        run_rounds(FedALA(3), None, train, task=task, rounds=1)


def test_an_unseen_client_trains_from_the_global_model(client_trainer):
    unseen = make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(FedALA(), client_trainer, make_clients(SIZES), rounds=2, solver=LocalSolver(local_epochs=2))
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen)
    theta, found = federation.weights[0].numpy(), flat(federation.serve(unseen, seen=False).models.parameters)
    for own, order, (x, y) in zip(found, orders, as_arrays(unseen), strict=True):
        np.testing.assert_allclose(own.numpy(), sgd(theta, x, y, order, 0.1), rtol=0, atol=1e-10)


def test_a_share_of_the_samples_is_drawn_anew():
    federation, counts = Federation(FedALA(), make_clients([10, 1])), []
    for _ in range(3):
        some, one = drawn_samples(federation, 0.35)
        counts.append(tuple(some.nonzero()[0].tolist()))
        assert (some.sum(), one.sum()) == (3, 1)
        federation.round()
    assert len(set(counts)) > 1
