import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    NormalisedLinear,
    as_arrays,
    batch_orders,
    distance,
    flat,
    least_squares,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    two_quadratics,
)
from references.consensus_admm_numpy import consensus_admm_round
from references.logistic import predict

from lit_fed.algorithms import ConsensusADMM
from lit_fed.clients import VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver

SIZES = [5, 2, 8]
EXACT = {"local_solve": "exact"}


def run_reference(federation, cohorts, solver=None, **options):
    """Rounds of federation and reference side by side."""
    algorithm, num = federation.algorithm, federation.train.num_clients
    z = federation.weights[0].numpy()
    xs, duals, sent = [z] * num, [np.zeros_like(z)] * num, [z] * num
    for cohort in cohorts:
        z, xs, duals, sent = consensus_admm_round(
            z, xs, duals, sent, as_arrays(federation.train), batch_orders(federation),
            rho=algorithm.penalty_weight, alpha=algorithm.over_relaxation, present=cohort, solver=solver, **options,
        )  # fmt: skip
        federation.round(cohort)
        for found, expected in (
            (federation.weights, z[None]),
            (flat(federation.states.models.parameters), xs),
            (flat(federation.states.dual), duals),
        ):
            np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=0, atol=1e-9)
    return z, xs


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.3}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_inexact_rounds_are_those_of_the_reference(options, weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(
        ConsensusADMM(0.7), train, solver=solver, trainer=client_trainer, batch_size=2, weighting=weighting
    )
    z, _ = run_reference(federation, [None] * 3, options, samples=weighting == "samples")
    for found, (x, _) in zip(federation.predictions(test), as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(z, x), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("rho", "alpha", "weighting"), [(0.5, 1.0, "uniform"), (2.0, 1.6, "samples")])
def test_exact_rounds_are_those_of_the_reference(rho, alpha, weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    algorithm = ConsensusADMM(rho, over_relaxation=alpha, serve="personal", **EXACT)
    federation = Federation(algorithm, train, trainer=client_trainer, weighting=weighting)
    _, xs = run_reference(federation, [None] * 3, samples=weighting == "samples")
    for found, own, (x, _) in zip(federation.predictions(test), xs, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(own, x), rtol=0, atol=1e-9)


def test_the_shipped_solver_ends_where_the_slope_vanishes(shipped_newton):
    """Wide inputs and a weak pull, so that Newton's full steps go too far: seven of the sixteen do not get there."""
    train = make_clients(SIZES)
    train.x.mul_(40)
    federation = Federation(ConsensusADMM(0.01, **EXACT), train)
    start = federation.weights[0].numpy()
    federation.round()
    for (x, y), found in zip(as_arrays(train), flat(federation.states.models.parameters).numpy(), strict=True):
        features = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        residual = 1 / (1 + np.exp(-features @ found)) - y
        slope = features.T @ residual / len(y) + 0.01 * (found - start)
        np.testing.assert_allclose(slope, 0, atol=1e-9)


@pytest.mark.parametrize("solver", [None, {"lr": 0.3}])
def test_sampled_rounds_are_those_of_the_reference(solver, client_trainer):
    algorithm = ConsensusADMM(0.7, "exact" if solver is None else "inexact", over_relaxation=1.5)
    federation = Federation(
        algorithm, make_clients(SIZES), solver=LocalSolver(**(solver or {})), trainer=client_trainer, batch_size=2
    )
    run_reference(federation, [[0, 2], [1], [1, 2], [0]], solver)


# ---------------------------------------------------------------------- two quadratics
def on_quadratics(rounds, rho=1.0, **options):
    """½x² and ½·3(x − 4)², from 0."""
    solver = LocalSolver(lr=0.2, local_steps=1)
    return run_rounds(ConsensusADMM(rho, **options), rounds=rounds, **two_quadratics(solver=solver))


@pytest.mark.parametrize(
    ("rounds", "x", "z", "dual"),
    [(1, (0, 3), 1.5, (-1.5, 1.5)), (2, (1.5, 3), 2.25, (-2.25, 2.25)), (3, (2.25, 3), 2.625, (-2.625, 2.625))],
)
def test_first_rounds_on_two_quadratics(rounds, x, z, dual):
    federation = on_quadratics(rounds, **EXACT)
    assert flat(federation.states.models.parameters)[:, 0].tolist() == pytest.approx(list(x), abs=1e-12)
    assert flat(federation.states.dual)[:, 0].tolist() == pytest.approx(list(dual), abs=1e-12)
    assert float(federation.weights) == pytest.approx(z, abs=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.6])
def test_the_limit_on_two_quadratics(alpha, newton_step):
    federation = on_quadratics(50, over_relaxation=alpha, **EXACT)
    assert float(federation.weights) == pytest.approx(3, abs=1e-12)
    assert flat(federation.states.models.parameters)[:, 0].tolist() == pytest.approx([3, 3], abs=1e-12)
    assert flat(federation.states.dual)[:, 0].tolist() == pytest.approx([-3, 3], abs=1e-12)
    assert federation.metrics["primal_residual"] < 1e-12


# ---------------------------------------------------------------------- the optimum
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_quadratics_reach_the_optimum_of_the_sum(weighting, newton_step):
    train = make_clients([6, 9, 12, 5], num_features=3, target=REGRESSION)
    task = make_task(REGRESSION, num_features=3)
    federation = run_rounds(
        ConsensusADMM(1.0, **EXACT), VectorizedTrainer(), train, rounds=38, task=task, weighting=weighting
    )
    weights = [len(y) if weighting == "samples" else 1 for _, y in as_arrays(train)]
    np.testing.assert_allclose(federation.weights[0].numpy(), least_squares(train, weights), rtol=0, atol=1e-5)


# ---------------------------------------------------------------------- cohorts, traffic, serving
def test_running_statistics_are_averaged_over_all_clients(client_trainer):
    train, task = make_clients([6, 4, 8]), make_task(network=NormalisedLinear)
    federation = Federation(ConsensusADMM(), train, task, trainer=client_trainer, batch_size=0)
    for cohort in ([0, 1, 2], [2], [0, 1]):
        federation.round(cohort)
        for name in ("norm.running_mean", "norm.running_var"):
            kept = federation.states.models.buffers[name]
            assert distance(federation.shared.models.buffers[name], kept.mean(0)) < 1e-12
            assert distance(kept[0], kept[1]) > 1e-3


def test_a_client_drawn_twice_counts_once(client_trainer):
    once, twice = (
        run_rounds(ConsensusADMM(), client_trainer, make_clients(SIZES), rounds=2, cohorts=[cohort] * 2)
        for cohort in ([0, 1], [0, 1, 0])
    )
    assert same_bits((once.shared, once.states), (twice.shared, twice.states))


@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
def test_one_model_up_and_one_down(local_solve, client_trainer):
    task = make_task(dtype=torch.float32)
    train = make_clients(SIZES, dtype=torch.float32)
    federation = Federation(ConsensusADMM(1.0, local_solve), train, task, trainer=client_trainer)
    model = 5 * 32
    for cohort, up, down in (([0, 1, 2], 3, 3), ([0, 1], 2, 2), ([1, 2], 2, 3), ([0, 1, 2], 3, 4)):
        federation.round(cohort)  # a client that missed a round fetches z before it starts
        assert federation.bits.tolist() == [up * model, down * model]


@pytest.mark.parametrize("serve", ["consensus", "personal"])
def test_clients_are_served_by_z_or_by_their_own(serve, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(ConsensusADMM(serve=serve, **EXACT), client_trainer, train)
    z, xs = federation.weights[0].numpy(), flat(federation.states.models.parameters).numpy()
    for row, (found, (x, _)) in enumerate(zip(federation.predictions(), as_arrays(train), strict=True)):
        theta = z if serve == "consensus" else xs[row]
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-12)
    for found, (x, _) in zip(federation.predictions(unseen, seen=False), as_arrays(unseen), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(z, x), rtol=0, atol=1e-12)


def test_metrics_are_loss_and_primal_residual(client_trainer):
    federation = run_rounds(ConsensusADMM(0.5, **EXACT), client_trainer, make_clients(SIZES))
    apart = flat(federation.states.models.parameters) - federation.weights
    assert federation.metrics["primal_residual"] == pytest.approx(float(apart.norm(dim=1).mean()), abs=1e-12)
    scores = federation.evaluate(states=federation.states)
    own = run_rounds(ConsensusADMM(0.5, serve="personal", **EXACT), client_trainer, make_clients(SIZES)).evaluate()
    assert federation.metrics["loss"] == pytest.approx(float((own[:, 1] / own[:, 0]).mean()), abs=1e-12)
    assert abs(float((scores[:, 1] / scores[:, 0]).mean()) - federation.metrics["loss"]) > 1e-4
