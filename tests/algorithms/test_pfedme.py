import numpy as np
import pytest
import torch
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
)
from references.logistic import predict
from references.pfedme_numpy import local_updates, pfedme_round

from lit_fed.algorithms import PFedMe
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.solvers.newton import minimise
from lit_fed.core.types import Batch, LocalWork

SIZES = [6, 1, 9, 3]


def exact(prox_weight, **fields):
    return PFedMe(prox_weight, local_solve="exact", **fields)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.05}, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("warm_start", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("local_solve", ["gradient", "exact"])
def test_rounds_are_those_of_the_reference(local_solve, warm_start, options, client_trainer):
    train, test = make_clients([5, 3, 8]), make_clients([4, 2, 3], seed=1)
    inner = {"prox_weight": 2.0, "inner_steps": 3, "inner_lr": 0.2, "warm_start": warm_start}
    algorithm = PFedMe(**inner, local_solve=local_solve, server_mix=1.5)
    solver = LocalSolver(local_epochs=2 if local_solve == "gradient" else 1, **options)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    w = federation.weights[0].numpy()
    personals = [w] * 3
    for present in (None, [0, 2], [1]):
        w, personals = pfedme_round(
            w, personals, as_arrays(train), batch_orders(federation), present=present,
            server_mix=1.5, exact=local_solve == "exact", **inner, **options,
        )  # fmt: skip
        federation.round(present)
        np.testing.assert_allclose(federation.weights[0].numpy(), w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.states.parameters).numpy(), personals, rtol=0, atol=1e-10)
    for found, theta, (x, _) in zip(federation.predictions(test), personals, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


def test_a_batch_is_solved_like_the_data_that_it_holds():
    task, client = make_task(MULTICLASS), make_clients([9], target=MULTICLASS).client(0)
    models = task.init(1, 0)
    penalty = Penalty(0.5, models.parameters)
    assert same_bits(minimise(task, models, client.batch, penalty), minimise(task, models, client, penalty))
    index = torch.tensor([4, 2, 0, 0])
    padded = Batch(client.x[index], client.y[index], index, torch.tensor([1.0, 1, 0, 0]))
    plain = Batch(*(part[:2] for part in padded))
    assert distance(minimise(task, models, padded, penalty), minimise(task, models, plain, penalty)) < 1e-12
    assert distance(minimise(task, models, plain, penalty), minimise(task, models, client, penalty)) > 1e-3


# ---------------------------------------------------------------------- two quadratics
# many exact solves, which the vectorized client trainer makes for all clients at once
# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0, 2.0])
def test_the_server_mixes_the_average_into_its_model(mix, client_trainer):
    train = make_clients(SIZES)
    start = run_rounds(PFedMe(), client_trainer, train, rounds=0).weights
    whole = run_rounds(PFedMe(), client_trainer, train, rounds=1).weights
    mixed = run_rounds(PFedMe(server_mix=mix), client_trainer, train, rounds=1).weights
    assert distance(mixed, start + mix * (whole - start)) < 1e-12
    assert mix != 1 or same_bits(mixed, whole)


def test_clients_are_weighted_alike_unless_asked_otherwise(client_trainer):
    train = make_clients([1, 9])
    runs = [run_rounds(PFedMe(), client_trainer, train, rounds=1, weighting=rule) for rule in (None, "samples")]
    alone = [run_rounds(PFedMe(), client_trainer, train, rounds=1, cohorts=[[one]]).weights for one in (0, 1)]
    assert distance(runs[0].weights, (alone[0] + alone[1]) / 2) < 1e-12
    assert distance(runs[1].weights, (alone[0] + 9 * alone[1]) / 10) < 1e-12


# ---------------------------------------------------------------------- clients


def test_clients_are_served_by_their_own_or_by_the_global_model(client_trainer):
    train, unseen = make_clients(SIZES), make_clients([5, 2], seed=4, first_id=4)
    own, common = (run_rounds(PFedMe(serve=which), client_trainer, train) for which in ("personal", "global"))
    assert same_bits((own.shared, own.states), (common.shared, common.states))
    assert same_bits(common.serve(), common.states)
    for data, seen in ((train, True), (unseen, False)):
        clients = as_arrays(data)
        for found, (x, _) in zip(common.predictions(data, seen=seen), clients, strict=True):
            expected = predict(common.weights[0].numpy(), x)
            np.testing.assert_allclose(found.exp().numpy(), expected, rtol=0, atol=1e-12)
        assert distance(own.predictions(data, seen=seen), common.predictions(data, seen=seen)) > 1e-3


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_takes_local_updates_from_the_global_model(epochs, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=4)
    solver = LocalSolver(lr=0.05, momentum=0.5, local_epochs=epochs)
    federation = run_rounds(PFedMe(), client_trainer, train, solver=solver)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    settings = {"prox_weight": 15.0, "inner_steps": 5, "inner_lr": 0.05, "exact": False, "warm_start": True}
    w = federation.weights[0].numpy()
    expected = [
        local_updates(w, x, y, own, lr=0.05, momentum=0.5, **settings)[1]
        for (x, y), own in zip(as_arrays(unseen), orders, strict=True)
    ]
    found = flat(federation.serve(unseen, seen=False).parameters)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)
