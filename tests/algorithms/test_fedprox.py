import numpy as np
import pytest
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
from references.fedprox_numpy import exact_solve, fedprox_round, inexact_solve
from references.logistic import gradient

from lit_fed.algorithms import FedAvg, FedProx
from lit_fed.core.local_solver import LocalSolver
from lit_fed.models import Linear

SIZES = [5, 2, 8]
SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize("inexactness", [None, 0.6])
@pytest.mark.parametrize("straggler_fraction", [0.0, 0.7])
def test_rounds_are_those_of_the_reference(options, inexactness, straggler_fraction, client_trainer):
    train = make_clients(SIZES)
    solver = LocalSolver(local_epochs=4, straggler_fraction=straggler_fraction, **options)
    algorithm = FedProx(0.4, inexactness)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    theta, taken, planned = federation.weights[0].numpy(), [], []
    for _ in range(3):
        orders = batch_orders(federation)
        theta, steps = fedprox_round(
            theta, as_arrays(train), orders, prox_weight=0.4, inexactness=inexactness, **options
        )
        taken += steps
        planned += [len(order) for order in orders]
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
    assert (taken == planned) == (inexactness is None)  # the stop rule has stopped somebody
    assert (planned == [12, 4, 16] * 3) == (not straggler_fraction)  # somebody has straggled
    assert min(taken) >= 1


def test_the_papers_sampling(client_trainer):
    """Draws with replacement, each counting alike: `data.client_sampling: size` and `model.weighting: uniform`."""
    train = make_clients(SIZES)
    federation = Federation(FedProx(1.0), train, trainer=client_trainer, batch_size=2, weighting="uniform")
    theta = federation.weights[0].numpy()
    for cohort in ([2, 0, 2], [1, 1]):
        orders = batch_orders(federation)
        theta, _ = fedprox_round(theta, as_arrays(train), orders, cohort=cohort, uniform=True, lr=0.1, prox_weight=1.0)
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize("target", [(BINARY, Linear), (MULTICLASS, small_mlp)], ids=["linear", "mlp"])
@pytest.mark.parametrize(
    "options",
    [*SOLVERS, {"lr": 0.05, "optimizer": "adam"}, {"straggler_fraction": 0.5}, {"clip_norm": 0.1, "momentum": 0.9}],
    ids=str,
)
def test_without_a_proximal_term_it_is_fedavg(target, options, client_trainer):
    kind, network = target
    options = {"task": make_task(kind, network=network), "solver": LocalSolver(local_epochs=3, **options)}
    options["cohorts"] = [[0, 1, 2], [1], [2, 0]]
    train = make_clients(SIZES, target=kind)
    one, other = (run_rounds(algorithm, client_trainer, train, **options) for algorithm in (FedProx(0.0), FedAvg()))
    assert same_bits(one.shared, other.shared)
    assert one.metrics == other.metrics
    assert one.bits.tolist() == other.bits.tolist()


# ---------------------------------------------------------------------- exact solves
def on_quadratics(algorithm, rounds, trainer=None, steps=2):
    """½(w − 0)² and ½·3(w − 4)², from 0, with equal weights and rate 0.1."""
    setting = two_quadratics(solver=LocalSolver(lr=0.1, local_steps=steps), weighting="uniform")
    return float(run_rounds(algorithm, trainer, rounds=rounds, **setting).weights)


@pytest.mark.parametrize(("rounds", "expected"), [(1, 1.5), (25, 2.4)])
def test_exact_solves_of_two_quadratics(rounds, expected, client_trainer):
    algorithm = FedProx(1.0, local_solve="exact")
    assert on_quadratics(algorithm, rounds, client_trainer) == pytest.approx(expected, abs=1e-9)


def test_two_steps_on_two_quadratics(client_trainer):
    assert on_quadratics(FedProx(1.0), 65, client_trainer) == pytest.approx(2.9090909091, abs=1e-9)


def test_exact_solves_of_least_squares(client_trainer):
    """x_i = (H_i + μI)⁻¹(b_i + μθ) for f_i = ½ θᵀH_iθ − b_iᵀθ, averaged by samples."""
    train = make_clients([5, 3, 8], target=REGRESSION)
    task = make_task(REGRESSION)
    federation = Federation(FedProx(0.3, local_solve="exact"), train, task, trainer=client_trainer)
    theta = federation.weights[0].numpy()
    for present in ([0, 1, 2], [2, 1]):
        solved = []
        for x, y in (as_arrays(train)[one] for one in present):
            features = np.hstack([x, np.ones((len(x), 1))])
            hessian, b = features.T @ features / len(y), features.T @ y / len(y)
            solved.append(np.linalg.solve(hessian + 0.3 * np.eye(5), b + 0.3 * theta))
        theta = np.average(solved, axis=0, weights=[[5, 3, 8][one] for one in present])
        federation.round(present)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)


def test_exact_solves_of_logistic_regression(client_trainer):
    train = make_clients(SIZES)
    federation = Federation(FedProx(0.2, local_solve="exact"), train, trainer=client_trainer)
    theta = federation.weights[0].numpy()
    loss = float(federation.evaluate()[:, 1].sum()) / sum(SIZES)
    for _ in range(2):
        solved = [exact_solve(theta, x, y, 0.2) for x, y in as_arrays(train)]
        theta = np.average(solved, axis=0, weights=SIZES)
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
        assert federation.metrics["loss"] == pytest.approx(loss, abs=1e-12)
        loss = float(federation.evaluate()[:, 1].sum()) / sum(SIZES)


# ---------------------------------------------------------------------- inexact solves
def test_nobody_moves_where_the_start_is_good_enough(client_trainer):
    federation = Federation(FedProx(0.5, 1.0), make_clients(SIZES), trainer=client_trainer)
    start = federation.weights
    federation.round()
    assert distance(federation.weights, start) < 1e-15
    assert federation.metrics["loss"] == 0


def test_no_tolerance_takes_every_step(client_trainer):
    options = {"solver": LocalSolver(local_epochs=3, momentum=0.5)}
    one, other = (
        run_rounds(algorithm, client_trainer, make_clients(SIZES), **options)
        for algorithm in (FedProx(0.5, 0.0), FedProx(0.5))
    )
    assert same_bits(one.shared, other.shared)
    assert one.metrics == other.metrics


@pytest.mark.parametrize("inexactness", [0.05, 0.3])
def test_a_client_stops_at_its_first_inexact_solution(inexactness, client_trainer):
    """With its optimizer, so that only the steps taken count."""
    train = make_clients([8])
    solver = LocalSolver(lr=0.2, momentum=0.5, local_steps=400, persist_optimizer=True)
    federation = Federation(FedProx(0.5, inexactness), train, solver=solver, trainer=client_trainer, batch_size=0)
    theta, (x, y) = federation.weights[0].numpy(), as_arrays(train)[0]
    orders = batch_orders(federation)[0]
    federation.round()
    found = federation.weights[0].numpy()
    slope = np.linalg.norm(gradient(found, x, y) + 0.5 * (found - theta))
    assert slope <= inexactness * np.linalg.norm(gradient(theta, x, y))
    options = {"lr": 0.2, "momentum": 0.5, "prox_weight": 0.5, "inexactness": inexactness}
    expected, steps = inexact_solve(theta, x, y, orders, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    assert 0 < steps < 400
    assert federation.optimizers.step.tolist() == [steps]
    whole = run_rounds(FedProx(0.5), client_trainer, train, rounds=1, batch_size=0, solver=LocalSolver(
        lr=0.2, momentum=0.5, local_steps=steps))  # fmt: skip
    assert federation.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-12)


def test_the_stop_rule_looks_at_a_deep_network_too(client_trainer):
    task = make_task(MULTICLASS, network=small_mlp)
    train, solver = make_clients([9, 4, 2], target=MULTICLASS), LocalSolver(lr=0.5, local_epochs=20)
    loose, tight = (
        run_rounds(FedProx(0.5, inexactness), client_trainer, train, rounds=1, task=task, solver=solver)
        for inexactness in (0.9, 0.1)
    )
    start = Federation(FedProx(), train, task).weights
    assert 1e-3 < distance(loose.weights, start) < distance(tight.weights, start)


# ---------------------------------------------------------------------- unequal work
def test_stragglers_are_averaged_with_the_others(client_trainer):
    """Their partial work counts with the weight of all their samples."""
    train = make_clients([9, 9, 9, 9])
    solver = LocalSolver(lr=0.5, local_epochs=5, straggler_fraction=0.5)
    federation = Federation(FedProx(0.1), train, solver=solver, trainer=client_trainer, batch_size=3, seed=1)
    theta, orders = federation.weights[0].numpy(), batch_orders(federation)
    steps = [len(order) for order in orders]
    assert max(steps) == 15  # some do all their work and some a part, for this seed
    assert min(steps) < 15
    each = [inexact_solve(theta, *one, own, lr=0.5, prox_weight=0.1)[0] for one, own in zip(
        as_arrays(train), orders, strict=True)]  # fmt: skip
    federation.round()
    np.testing.assert_allclose(federation.weights[0].numpy(), np.mean(each, axis=0), rtol=0, atol=1e-12)
