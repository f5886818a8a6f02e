import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    two_quadratics,
)
from normalised import NormalisedMLP
from references.logistic import predict
from references.scaffold_numpy import scaffold_round

from lit_fed.algorithms import SCAFFOLD, FedAvg
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split

SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}]
both_options = pytest.mark.parametrize("option", ["I", "II"])


# ---------------------------------------------------------------------- against the reference
def compare_with_the_reference(federation, cohorts, **options):
    theta, control = federation.weights[0].numpy(), np.zeros(5)
    controls = [np.zeros(5)] * federation.train.num_clients
    solver = federation.solver
    for cohort in cohorts:
        theta, control, controls = scaffold_round(
            theta, control, controls, as_arrays(federation.train), batch_orders(federation), present=cohort,
            lr=solver.rate, momentum=solver.momentum, weight_decay=solver.weight_decay, **options,
        )  # fmt: skip
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.shared.control)[0].numpy(), control, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.states.control).numpy(), np.stack(controls), rtol=0, atol=1e-10)
    return theta


@both_options
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("server_lr", [1.0, 0.7])
def test_rounds_are_those_of_the_reference(option, solver, server_lr, client_trainer):
    train = make_clients([5, 2, 8])
    federation = Federation(
        SCAFFOLD(option, server_lr), train, solver=LocalSolver(local_epochs=2, **solver), trainer=client_trainer,
        batch_size=2,
    )  # fmt: skip
    theta = compare_with_the_reference(federation, [None] * 3, option=option, server_lr=server_lr)
    for prediction, (x, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(prediction.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@both_options
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_sampled_rounds_are_those_of_the_reference(option, aggregation, weighting, client_trainer):
    options = {"aggregation": aggregation, "weighting": weighting, "batch_size": 2, "trainer": client_trainer}
    federation = Federation(SCAFFOLD(option), make_clients([5, 2, 8]), **options)
    compare_with_the_reference(
        federation, [[0, 2], [1], [1, 2], [0, 1]],
        option=option, by_samples=weighting == "samples", stale_fill=aggregation == "stale_fill",
    )  # fmt: skip


# ---------------------------------------------------------------------- two quadratics
def on_quadratics(rounds, steps=2, algorithm=None):
    """½(w − 0)² and ½·3(w − 4)², from 0, with rate 0.1."""
    setting = two_quadratics(solver=LocalSolver(lr=0.1, local_steps=steps))
    federation = run_rounds(algorithm or SCAFFOLD(), rounds=rounds, **setting)
    return [
        float(federation.weights), float(federation.shared.control["weight"]),
        *federation.states.control["weight"].flatten().tolist(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "rounds", "expected"),
    [
        ("II", 1, [1.02, -5.1, 0, -10.2]),
        ("II", 2, [1.734, -3.57, 1.224, -8.364]),
        ("II", 90, [3, 0, 3, -3]),
        ("I", 1, [1.02, -6, 0, -12]),
        ("I", 2, [1.743, -3.96, 1.02, -8.94]),
        ("I", 90, [3, 0, 3, -3]),
    ],
)
def test_two_quadratics(option, rounds, expected):
    """The model, c, c_1 and c_2."""
    assert on_quadratics(rounds, algorithm=SCAFFOLD(option)) == pytest.approx(expected, abs=1e-9)


@both_options
def test_the_fixed_point_is_the_optimum_whatever_the_number_of_steps(option):
    assert on_quadratics(30, steps=5, algorithm=SCAFFOLD(option)) == pytest.approx([3, 0, 3, -3], abs=1e-9)


# ---------------------------------------------------------------------- identities
def test_one_whole_step_makes_the_options_alike_and_the_model_that_of_fedsgd(client_trainer):
    options = {"train": make_clients([5, 2, 8]), "batch_size": 0, "weighting": "uniform"}
    one, two, plain = (
        run_rounds(algorithm, client_trainer, **options) for algorithm in (SCAFFOLD("I"), SCAFFOLD("II"), FedAvg())
    )
    assert distance((one.shared, one.states), (two.shared, two.states)) < 1e-12
    assert distance(two.shared.models, plain.shared.models) < 1e-12


def test_the_server_step_scales_the_change_of_the_model_alone():
    train = make_clients([5, 2, 8])
    whole, half = (run_rounds(SCAFFOLD(server_lr=lr), None, train, rounds=1) for lr in (1.0, 0.5))
    start = Federation(SCAFFOLD(), train)
    torch.testing.assert_close(half.weights, (start.weights + whole.weights) / 2, rtol=0, atol=1e-15)
    assert same_bits((half.shared.control, half.states), (whole.shared.control, whole.states))


def test_running_statistics_are_averaged():
    """BatchNorm's: the plain average of the clients', whatever the server's step."""
    train = make_clients([5, 2, 8])
    task = make_task(network=NormalisedMLP)
    options = {"task": task, "rounds": 1, "weighting": "uniform"}
    plain, slow = (run_rounds(one, None, train, **options) for one in (FedAvg(), SCAFFOLD(server_lr=0.1)))
    assert same_bits(plain.shared.models.buffers, slow.shared.models.buffers)
    assert set(slow.shared.control) == set(plain.shared.models.parameters)


# ---------------------------------------------------------------------- who takes part


@pytest.mark.parametrize("solver", [{"local_epochs": 0}, {"lr": 0.0}], ids=str)
def test_clients_that_do_not_move_keep_their_controls(solver, client_trainer):
    train = make_clients([5, 2, 8])
    moved = run_rounds(SCAFFOLD(), client_trainer, train, rounds=2)
    after = Federation(SCAFFOLD(), train, solver=LocalSolver(**solver), trainer=client_trainer, shared=moved.shared)
    after.states = moved.states
    after.round()
    assert same_bits((after.shared.control, after.states), (moved.shared.control, moved.states))
    assert distance(after.shared.models, moved.shared.models) < 1e-15


def test_a_client_without_samples_keeps_its_control(client_trainer):
    some = make_clients([5, 4])
    train = Split(some.x, some.y, torch.tensor([0, 5, 5, 9]))
    federation = run_rounds(SCAFFOLD(), client_trainer, train)
    assert float(flat(federation.states.control)[1].abs().max()) == 0.0
    assert all(leaf.isfinite().all() for leaf in tree.leaves(federation.shared))


def test_stragglers_count_their_own_steps(client_trainer):
    """A constant gradient is its own mean however many steps a client takes."""
    options = {"solver": LocalSolver(lr=1e-9, local_steps=7, straggler_fraction=1.0), "batch_size": 0}
    federation = run_rounds(SCAFFOLD(), client_trainer, make_clients([5, 2, 8]), rounds=1, **options)
    exact = run_rounds(SCAFFOLD("I"), client_trainer, make_clients([5, 2, 8]), rounds=1, **options)
    assert distance(federation.states, exact.states) < 1e-6


# ---------------------------------------------------------------------- the rest
def test_unseen_clients_have_no_controls(client_trainer):
    federation = run_rounds(SCAFFOLD(), client_trainer, make_clients([5, 2, 8]))
    states = federation.serve(make_clients([6, 3], seed=2, first_id=3), seen=False)
    assert float(flat(states).abs().max()) == 0.0
