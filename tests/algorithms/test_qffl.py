import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    REGRESSION,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
    two_quadratics,
)
from local_norm import local_norm
from normalised import NormalisedMLP
from references.logistic import predict
from references.qffl_numpy import q_fedavg_round, q_fedsgd_round

from lit_fed.algorithms import FedAvg, QFedAvg, QFedSGD
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split
from lit_fed.models import Linear

SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}]
both_classes = pytest.mark.parametrize("kind", [QFedAvg, QFedSGD])


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize(("q", "lipschitz"), [(0.0, None), (0.1, 7.0), (1.0, None), (5.0, None)])
def test_rounds_are_those_of_the_reference(solver, q, lipschitz, client_trainer):
    train = make_clients([5, 2, 8])
    options = {"solver": LocalSolver(local_epochs=2, **solver), "trainer": client_trainer, "batch_size": 2}
    federation = Federation(QFedAvg(q, lipschitz), train, **options)
    theta = federation.weights[0].numpy()
    for cohort in ([0, 1, 2], [0, 2], [1]):
        theta = q_fedavg_round(
            theta, as_arrays(train), batch_orders(federation), q=q, lipschitz=lipschitz, present=cohort, **solver
        )
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
    for prediction, (x, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(prediction.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("q", "lipschitz"), [(0.0, None), (0.1, 7.0), (1.0, None), (5.0, None)])
def test_rounds_of_gradients_are_those_of_the_reference(q, lipschitz, client_trainer):
    """The solver's epochs and momentum have no say."""
    train = make_clients([5, 2, 8])
    solver = LocalSolver(lr=0.3, local_epochs=4, momentum=0.9)
    federation = Federation(QFedSGD(q, lipschitz), train, solver=solver, trainer=client_trainer, batch_size=2)
    theta = federation.weights[0].numpy()
    for cohort in ([0, 1, 2], [0, 2], [1]):
        theta = q_fedsgd_round(theta, as_arrays(train), q=q, lipschitz=lipschitz or 1 / 0.3, present=cohort)
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- two quadratics
def on_quadratics(algorithm, rounds):
    """½(w − 0)² and ½·3(w − 4)², from 0, with rate 0.1 and one step."""
    setting = two_quadratics(solver=LocalSolver(lr=0.1, local_steps=1))
    return float(run_rounds(algorithm, rounds=rounds, **setting).weights)


@both_classes
def test_first_step_on_two_quadratics(kind):
    """0.75 but for the floor under the losses, of which one is 0."""
    assert on_quadratics(kind(), 1) == pytest.approx(0.7499999999992, abs=1e-13)


@both_classes
def test_fixed_point_on_two_quadratics(kind):
    expected = 4 * 9 ** (1 / 3) / (1 + 9 ** (1 / 3))
    assert expected == pytest.approx(2.7013340449, abs=1e-10)
    assert on_quadratics(kind(), 100) == pytest.approx(expected, abs=1e-9)


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("solver", [*SOLVERS, {"optimizer": "adam", "lr": 0.05}], ids=str)
@pytest.mark.parametrize(("target", "network"), [(BINARY, Linear), (MULTICLASS, small_mlp)], ids=["linear", "mlp"])
def test_without_fairness_it_is_fedavg_with_equal_weights(dtype, solver, target, network, client_trainer):
    train = make_clients([5, 2, 8], target=target, dtype=dtype)
    options = {
        "solver": LocalSolver(local_epochs=2, **solver), "cohorts": [[0, 1, 2], [0, 2], [1]], "weighting": "uniform",
        "task": make_task(target, network=network, dtype=dtype),
    }  # fmt: skip
    fair, plain = (run_rounds(one, client_trainer, train, **options) for one in (QFedAvg(0.0), FedAvg()))
    assert same_bits(fair.shared, plain.shared)
    assert same_bits(fair.predictions(), plain.predictions())


# ---------------------------------------------------------------------- details
def test_the_loss_is_that_of_the_received_model(client_trainer):
    """Not of the trained one, as in a known wrong version."""
    train = make_clients([5, 2, 8])
    federation = Federation(QFedAvg(), train, solver=LocalSolver(lr=2.0), trainer=client_trainer)
    sums = federation.evaluate()
    federation.round()
    assert federation.metrics["loss"] == pytest.approx(float((sums[:, 1] / sums[:, 0]).mean()), abs=1e-12)


def test_large_powers_neither_overflow_nor_vanish():
    task = make_task(REGRESSION, dtype=torch.float32)
    for scale in (1e-4, 1e3):
        some = make_clients([5, 2, 8], target=REGRESSION, dtype=torch.float32)
        train = Split(some.x, some.y * scale, some.offsets)
        federation = Federation(QFedAvg(15.0), train, task)
        federation.shared = tree.zeros_like(federation.shared)
        federation.round()
        assert 0 < float(federation.weights.abs().max()) < 10 * scale


@both_classes
@pytest.mark.parametrize("solver", [{"lr": 0.0}, {"lr": 0.1}], ids=str)
def test_a_perfect_model_stays(kind, solver, client_trainer):
    """All losses and gradients are 0: the floor keeps 0/0 away."""
    train = make_clients([5, 2], target=REGRESSION)
    train = Split(train.x, torch.zeros_like(train.y), train.offsets)
    options = {"solver": LocalSolver(**solver), "trainer": client_trainer}
    federation = Federation(kind(0.1), train, make_task(REGRESSION), **options)
    federation.shared = tree.zeros_like(federation.shared)
    federation.round()
    assert float(federation.weights.abs().max()) == 0.0


def test_a_client_keeps_its_own_normalisation(client_trainer):
    """What it keeps is its own, not the multiple that the server sums; in round 1 it is that of FedAvg's client."""
    options = {"task": make_task(network=NormalisedMLP), "rounds": 1, "batch_size": 3}
    train = make_clients([6, 9, 3])
    fair, plain = (run_rounds(local_norm(one), client_trainer, train, **options) for one in (QFedAvg(), FedAvg()))
    assert same_bits(fair.states.personal, plain.states.personal)
    assert distance(fair.shared.inner.models, plain.shared.inner.models) > 1e-4
    assert not fair.shared.inner.models.buffers


def test_whole_numbers_among_the_buffers_stay_whole():
    options = {"task": make_task(network=NormalisedMLP), "rounds": 1, "batch_size": 3, "weighting": "uniform"}
    fair, plain = (run_rounds(one, None, make_clients([6, 6]), **options) for one in (QFedAvg(2.0), FedAvg()))
    (name,) = (name for name in fair.shared.models.buffers if "num_batches" in name)
    assert torch.equal(fair.shared.models.buffers[name], plain.shared.models.buffers[name])
