import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    distance,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    two_quadratics,
)
from local_norm import local_norm
from normalised import NormalisedMLP
from references.afl_numpy import afl_round
from references.logistic import predict

from lit_fed.algorithms import AFL, FedAvg
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split

SIZES = [5, 2, 8]
WHOLE = {"batch_size": 0}


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("initial", ["uniform", "samples"])
@pytest.mark.parametrize(("server_lr", "lambda_lr"), [(None, 0.1), (0.7, 2.0), (0.3, 0.0)])
def test_rounds_are_those_of_the_reference(initial, server_lr, lambda_lr, client_trainer):
    """The solver's epochs, momentum and batches have no say."""
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(lr=0.4, local_epochs=3, momentum=0.9)
    algorithm = AFL(lambda_lr, server_lr, initial)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    theta, met = federation.weights[0].numpy(), []
    weights = np.array(SIZES) / 15 if initial == "samples" else np.full(3, 1 / 3)
    for _ in range(5):
        theta, weights = afl_round(theta, weights, as_arrays(train), model_lr=server_lr or 0.4, weight_lr=lambda_lr)
        met.append(theta)
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.shared.client_weight.numpy(), weights, rtol=0, atol=1e-10)
    for found, (x, _) in zip(federation.predictions(test), as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(np.mean(met, 0), x), rtol=0, atol=1e-10)


def test_weights_reach_the_border_and_come_back(client_trainer):
    """A client of weight 0 still tells its loss."""
    federation = Federation(AFL(5.0, 2.0), make_clients(SIZES), trainer=client_trainer)
    theta, weights = federation.weights[0].numpy(), np.full(3, 1 / 3)
    path = []
    for _ in range(12):
        theta, weights = afl_round(theta, weights, as_arrays(federation.train), model_lr=2.0, weight_lr=5.0)
        federation.round()
        np.testing.assert_allclose(federation.shared.client_weight.numpy(), weights, rtol=0, atol=1e-9)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-9)
        path.append(weights)
    zero = np.stack(path) < 1e-12
    assert (zero[:-1] & ~zero[1:]).any()


# ---------------------------------------------------------------------- two quadratics
OPTIMUM = 4 * 3**0.5 / (1 + 3**0.5)
WEIGHTS = [0.6339745962, 0.3660254038]


def on_quadratics(rounds, start=None, **options):
    """½(w − 0)² and ½·3(w − 4)², from 0, with rate 0.1."""
    federation = Federation(AFL(**options), **two_quadratics(solver=LocalSolver(lr=0.1)))
    if start is not None:
        models = tree.map_leaves(lambda leaf: torch.full_like(leaf, start[0]), federation.shared.models)
        weight = torch.tensor([start[1], 1 - start[1]], dtype=torch.float64)
        federation.shared = federation.shared._replace(models=models, client_weight=weight)
    for _ in range(rounds):
        federation.round()
    return federation


@pytest.fixture(scope="module")
def long_run():
    return on_quadratics(160, lambda_lr=0.01, server_lr=0.2, serve="last")


def test_two_quadratics_reach_the_minimax_point_with_equal_losses(long_run):
    assert pytest.approx(2.5358983849, abs=1e-10) == OPTIMUM
    federation = long_run
    assert float(federation.weights) == pytest.approx(OPTIMUM, abs=1e-9)
    assert federation.shared.client_weight.tolist() == pytest.approx(WEIGHTS, abs=1e-9)
    sums = federation.evaluate()
    assert float(sums[0, 1]) == pytest.approx(float(sums[1, 1]), abs=1e-9)


# ---------------------------------------------------------------------- limits
def test_clients_in_another_order(client_trainer):
    """Weights follow the clients; the model does not change. (The general check cannot permute the weights.)"""
    train, order = make_clients([6, 1, 9, 3]), torch.tensor([2, 0, 3, 1])
    rows = torch.cat([torch.arange(int(train.offsets[one]), int(train.offsets[one + 1])) for one in order.tolist()])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), train.sizes[order].cumsum(0)])
    for initial in ("uniform", "samples"):
        one, other = (
            run_rounds(AFL(initial=initial), client_trainer, data)
            for data in (train, Split(train.x[rows], train.y[rows], offsets))
        )
        assert distance(one.shared.models, other.shared.models) < 1e-12
        assert distance(one.shared.client_weight[order], other.shared.client_weight) < 1e-12


# ---------------------------------------------------------------------- who predicts
def test_the_average_is_that_of_all_models_but_the_first(client_trainer):
    federation = Federation(AFL(), make_clients(SIZES), trainer=client_trainer)
    assert same_bits(federation.shared.average, federation.shared.models)
    met = []
    for _ in range(4):
        federation.round()
        met.append(federation.shared.models)
    mean = tree.map_leaves(lambda *leaves: sum(leaves) / 4, *met)
    assert distance(federation.shared.average, mean) < 1e-14


def test_seen_and_unseen_clients_are_served_by_the_chosen_model(client_trainer):
    unseen = make_clients([6, 3], seed=2, first_id=3)
    average, last = (
        run_rounds(AFL(serve=serve), client_trainer, make_clients(SIZES), solver=LocalSolver(lr=2.0))
        for serve in ("average", "last")
    )
    assert same_bits(average.shared, last.shared)
    for federation, models in ((average, average.shared.average), (last, last.shared.models)):
        theta = torch.cat([leaf.flatten() for leaf in models.parameters.values()]).numpy()
        for seen, data in ((True, federation.train), (False, unseen)):
            for found, (x, _) in zip(federation.predictions(data, seen=seen), as_arrays(data), strict=True):
                np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)
    assert distance(average.predictions(), last.predictions()) > 1e-2


# ---------------------------------------------------------------------- the rest
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_of_messages_have_no_meaning(weighting):
    train = make_clients(SIZES)
    federation, plain = (run_rounds(AFL(), None, train, **options) for options in ({"weighting": weighting}, {}))
    assert same_bits(federation.shared, plain.shared)


def test_the_loss_is_that_of_the_received_model(client_trainer):
    federation = Federation(AFL(serve="last"), make_clients(SIZES), solver=LocalSolver(lr=2.0), trainer=client_trainer)
    sums = federation.evaluate()
    federation.round()
    assert federation.metrics["loss"] == pytest.approx(float((sums[:, 1] / sums[:, 0]).mean()), abs=1e-12)


def test_one_model_goes_each_way_and_a_number_up():
    """Of average and weights only its own weight λ, in float64, is sent to a client."""
    federation = Federation(AFL(), make_clients(SIZES, dtype=torch.float32), make_task(dtype=torch.float32))
    federation.round()
    assert federation.bits.tolist() == [3 * 6 * 32, 3 * (5 * 32 + 64)]


def test_a_client_keeps_its_own_normalisation():
    train, task = make_clients([6, 9, 3]), make_task(network=NormalisedMLP)
    options = {"task": task, "rounds": 1, **WHOLE}
    agnostic, plain = (run_rounds(local_norm(one), None, train, **options) for one in (AFL(), FedAvg()))
    assert same_bits(agnostic.states.personal, plain.states.personal)


def test_running_statistics_are_averaged_by_the_weights():
    train, task = make_clients([6, 9, 3]), make_task(network=NormalisedMLP)
    options = {"task": task, "rounds": 1, **WHOLE}
    agnostic, plain = (run_rounds(one, None, train, **options) for one in (AFL(initial="samples"), FedAvg()))
    assert distance(agnostic.shared.models, plain.shared.models) < 1e-12
