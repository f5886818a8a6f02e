import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    flat,
    make_clients,
    make_context,
    make_task,
    quadratics,
)
from references.easgd_numpy import asynchronous_round, synchronous_round
from references.logistic import predict

from lit_fed.algorithms import EASGD
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator

MODES = ["synchronous", "asynchronous"]
COHORTS = [[0, 1, 2], [2, 0], [1, 2], [0, 1, 2]]


def quadratic_federation(algorithm, curvatures=(1.0, 3.0), centres=(0.0, 4.0), **fields):
    task = make_task(REGRESSION, 1, Scale)
    return Federation(algorithm, quadratics(list(curvatures), list(centres)), task, batch_size=0, **fields)


def positions(federation):
    return federation.states.models.parameters["weight"].flatten()


def place(federation, positions, centre):
    """Put the workers and the centre of a federation with one parameter at these values."""
    models = federation.states.models._replace(
        parameters={"weight": torch.tensor(positions, dtype=torch.float64).view(-1, 1, 1)}
    )
    federation.states = federation.states._replace(models=models)
    federation.shared = federation.shared._replace(
        models=federation.shared.models._replace(parameters={"weight": torch.tensor([[centre]], dtype=torch.float64)})
    )


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_rounds_are_those_of_the_reference(mode, options, client_trainer):
    train, test = make_clients([5, 5, 5]), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(lr=0.3, local_steps=4, weight_decay=options.get("weight_decay", 0.0))
    algorithm = EASGD(0.6, mode, momentum=options.get("momentum", 0.0))
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    models, centre, velocities = [federation.weights[0].numpy()] * 3, federation.weights[0].numpy(), [np.zeros(5)] * 3
    settings = {"lr": 0.3, "elasticity": 0.2, "delta": algorithm.momentum, "weight_decay": solver.weight_decay}
    for round_idx, cohort in enumerate(COHORTS):
        arguments = models, centre, velocities, as_arrays(train), batch_orders(federation)
        if mode == "synchronous":
            models, centre, velocities = synchronous_round(*arguments, present=cohort, **settings)
        else:
            order = generator(0, round_idx, 0, "easgd").permutation(sorted(cohort)).tolist()
            models, centre, velocities = asynchronous_round(*arguments, order, **settings)
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), centre, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.states.models).numpy(), np.stack(models), rtol=0, atol=1e-10)
    for serve, served in (("centre", [centre] * 3), ("personal", models)):
        federation.algorithm = EASGD(0.6, mode, momentum=algorithm.momentum, serve=serve)
        for found, theta, (x, _) in zip(federation.predictions(test), served, as_arrays(test), strict=True):
            np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_one_step_by_hand(momentum, client_trainer):
    """Worker, centre and gradient all move from the old values."""
    federation = quadratic_federation(
        EASGD(0.4, momentum=momentum), solver=LocalSolver(lr=0.1, local_steps=1), trainer=client_trainer
    )
    place(federation, [1.0, 6.0], 2.0)
    federation.round()
    # worker 1: 1 - 0.1·(1 - 0) - 0.2·(1 - 2); worker 2: 6 - 0.1·3·(6 - 4) - 0.2·(6 - 2)
    torch.testing.assert_close(positions(federation), torch.tensor([1.1, 4.6], dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(federation.weights[0]) == pytest.approx(2 + 0.2 * (1 - 2) + 0.2 * (6 - 2), abs=1e-12)
    if momentum:
        federation.round()
        # v = (-0.1, -0.6), centre 2.6: looks ahead by 0.7v, and the elastic force is not part of v
        first = 1.1 - 0.07 - 0.1 * (1.1 - 0.07) - 0.2 * (1.1 - 2.6)
        second = 4.6 - 0.42 - 0.3 * (4.6 - 0.42 - 4) - 0.2 * (4.6 - 2.6)
        torch.testing.assert_close(
            positions(federation), torch.tensor([first, second], dtype=torch.float64), rtol=0, atol=1e-12
        )


# ---------------------------------------------------------------------- identities
def test_one_exchange_in_a_round():
    """τ = 3: the force of the exchange acts once, with the first of the steps."""
    federation = quadratic_federation(EASGD(0.4), solver=LocalSolver(lr=0.1, local_steps=3))
    place(federation, [1.0, 6.0], 2.0)
    federation.round()
    expected = []
    for x, after_first in ((1.0, 1.1), (6.0, 4.6)):
        a, c = (1.0, 0.0) if x == 1 else (3.0, 4.0)
        expected.append(c + (1 - 0.1 * a) ** 2 * (after_first - c))
    torch.testing.assert_close(positions(federation), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_worker_without_steps_feels_the_force(client_trainer):
    federation = quadratic_federation(EASGD(0.4), solver=LocalSolver(local_epochs=0), trainer=client_trainer)
    place(federation, [1.0, 6.0], 2.0)
    federation.round()
    torch.testing.assert_close(positions(federation), torch.tensor([1.2, 5.2], dtype=torch.float64), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- taking turns
def test_asynchronous_workers_come_once_each_in_an_order_drawn_anew():
    algorithm, ids = EASGD(mode="asynchronous"), torch.arange(10)
    orders = []
    for round_idx in range(3):
        phases = algorithm.phases(make_context(round_idx=round_idx), ids)
        orders.append([phase.client_ids.item() for phase in phases])
        again = algorithm.phases(make_context(round_idx=round_idx), ids.flip(0))
        assert [phase.client_ids.item() for phase in again] == orders[-1]
    assert all(sorted(order) == ids.tolist() for order in orders)
    assert orders[0] != orders[1] != orders[2]
