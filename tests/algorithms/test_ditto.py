import numpy as np
import pytest
from federated_round import (
    MULTICLASS,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
)
from references.ditto_numpy import ditto_round, train
from references.logistic import predict

from lit_fed.algorithms import Ditto, FedAvg, Local
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork

SIZES = [6, 1, 9, 3]
COHORTS = [[0, 1, 2, 3], [2, 0], [1]]
SOLVERS = [
    {"local_epochs": 2},
    {"momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2},
    {"optimizer": "adam", "lr": 0.01},
    {"momentum": 0.5, "nesterov": True, "clip_norm": 0.1},
]


@pytest.fixture(params=["linear", "mlp"])
def problem(request):
    if request.param == "linear":
        return {"train": make_clients(SIZES), "task": make_task()}
    return {"train": make_clients(SIZES, target=MULTICLASS), "task": make_task(MULTICLASS, network=small_mlp)}


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize(("personal_lr", "personal_steps"), [(None, 1), (0.2, 3)])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_rounds_are_those_of_the_reference(options, personal_lr, personal_steps, weighting, client_trainer):
    data, test = make_clients([5, 3, 8]), make_clients([4, 2, 3], seed=1)
    algorithm = Ditto(0.7, personal_lr, personal_steps)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(algorithm, data, solver=solver, trainer=client_trainer, batch_size=2, weighting=weighting)
    w = federation.weights[0].numpy()
    owns = [w] * 3
    for present in (None, [0, 2], [1]):
        w, owns = ditto_round(
            w, owns, as_arrays(data), batch_orders(federation), present=present, uniform=weighting == "uniform",
            personal_lr=personal_lr or options["lr"], prox_weight=0.7, personal_steps=personal_steps, **options,
        )  # fmt: skip
        federation.round(present)
        np.testing.assert_allclose(federation.weights[0].numpy(), w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.states.parameters).numpy(), owns, rtol=0, atol=1e-10)
    for found, own, (x, _) in zip(federation.predictions(test), owns, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(own, x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- the same as others
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("prox_weight", [0.0, 1.0, 30.0])
def test_the_global_model_is_that_of_fedavg(problem, solver, prox_weight, client_trainer):
    options = {**problem, "cohorts": COHORTS, "solver": LocalSolver(**solver)}
    ditto, plain = (run_rounds(one, client_trainer, **options) for one in (Ditto(prox_weight, 0.01), FedAvg()))
    assert same_bits(ditto.shared, plain.shared)
    assert ditto.bits.tolist() == plain.bits.tolist()


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_without_a_pull_the_personal_models_are_those_of_local(problem, solver, client_trainer):
    options = {**problem, "cohorts": COHORTS, "solver": LocalSolver(**solver)}
    ditto, alone = (run_rounds(one, client_trainer, **options) for one in (Ditto(0.0), Local()))
    assert same_bits(ditto.states, alone.states.models)
    assert same_bits(ditto.predictions(), alone.predictions())
    assert ditto.metrics["loss"] == alone.metrics["loss"]


def test_kept_optimizers_are_those_of_fedavg_and_local(client_trainer):
    options = {"solver": LocalSolver(momentum=0.9, persist_optimizer=True), "cohorts": COHORTS}
    data = make_clients(SIZES)
    ditto, plain, alone = (run_rounds(one, client_trainer, data, **options) for one in (Ditto(0.0), FedAvg(), Local()))
    assert same_bits(ditto.optimizers, (plain.optimizers, alone.optimizers))
    assert same_bits((ditto.shared, ditto.states), (plain.shared, alone.states.models))


# ---------------------------------------------------------------------- two quadratics
# ---------------------------------------------------------------------- clients


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_starts_from_the_global_model(epochs, client_trainer):
    data, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=4)
    solver = LocalSolver(momentum=0.5, local_epochs=epochs)
    federation = run_rounds(Ditto(2.0, 0.3), client_trainer, data, solver=solver)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    w = federation.weights[0].numpy()
    expected = [
        train(w, w, x, y, own, lr=0.1, personal_lr=0.3, prox_weight=2.0, momentum=0.5)[1]
        for (x, y), own in zip(as_arrays(unseen), orders, strict=True)
    ]
    found = flat(federation.serve(unseen, seen=False).parameters)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)


def test_the_personal_rate_is_that_of_the_round_unless_given(client_trainer):
    data = make_clients(SIZES)
    solver = LocalSolver(lr=0.4, schedule="sqrt")
    options = {"solver": solver, "rounds": 2}
    decayed = run_rounds(Ditto(0.0), client_trainer, data, **options)
    alone = run_rounds(Local(), client_trainer, data, **options)
    fixed = run_rounds(Ditto(0.0, 0.4), client_trainer, data, **options)
    constant = run_rounds(Local(), client_trainer, data, solver=LocalSolver(lr=0.4), rounds=2)
    assert same_bits(decayed.states, alone.states.models)
    assert same_bits(fixed.states, constant.states.models)
    assert distance(decayed.states, fixed.states) > 1e-3
