import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from references.logistic import probability
from references.mean_regularized_mtl_numpy import mtl_round, unseen_client

from lit_fed.algorithms import Local, MeanRegularizedMTL, ProxAvg
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork

SIZES = [5, 2, 8]
COHORTS = [[0, 1, 2], [1], [0, 2], [2, 1]]


def own(federation):
    """The clients' models as rows, [T, d]."""
    return flat(federation.states.models.parameters)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("mean_weight", [0.4, 1.5])
def test_rounds_are_those_of_the_reference(options, mean_weight, client_trainer):
    """The reference differentiates the trace with the centring matrix, column by column."""
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    algorithm = MeanRegularizedMTL(mean_weight)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    columns = np.stack([federation.weights[0].numpy()] * 3, axis=1)
    for cohort in COHORTS:
        columns = mtl_round(columns, as_arrays(train), batch_orders(federation), mean_weight, cohort, **options)
        federation.round(cohort)
        np.testing.assert_allclose(own(federation).numpy(), columns.T, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.weights[0].numpy(), columns.mean(1), rtol=0, atol=1e-10)
    for found, column, (x, _) in zip(federation.predictions(test), columns.T, as_arrays(test), strict=True):
        np.testing.assert_allclose(found[:, 1].exp().numpy(), probability(column, x), rtol=0, atol=1e-10)


def test_the_gradient_is_that_of_the_trace():
    """By autograd: λ/2·tr(W Ω Wᵀ) with respect to one column, the others frozen."""
    columns = torch.randn(4, 3, dtype=torch.float64)
    omega = torch.eye(3).double() - 1 / 3
    column = columns[:, 1].clone().requires_grad_()
    whole = torch.stack([columns[:, 0], column, columns[:, 2]], dim=1)
    (gradient,) = torch.autograd.grad(0.5 * torch.trace(whole @ omega @ whole.T), column)
    assert distance(gradient, columns[:, 1] - columns.mean(1)) < 1e-14


# ---------------------------------------------------------------------- known solutions
@pytest.mark.parametrize("steps", [1, 3])
def test_it_reaches_the_mixture_solution(steps, client_trainer):
    """Two clients with the losses ½x² and ½·3·(x − 4)² and λ = 1: (1.2, 3.6) with the mean 2.4."""
    run = {"task": make_task(REGRESSION, 1, Scale), "batch_size": 0, "solver": LocalSolver(lr=0.2, local_steps=steps)}
    train = quadratics([1.0, 3.0], [0.0, 4.0])
    federation = run_rounds(MeanRegularizedMTL(1.0), client_trainer, train, rounds=75 if steps == 1 else 30, **run)
    assert own(federation)[:, 0].tolist() == pytest.approx([1.2, 3.6], abs=1e-9)
    assert float(federation.weights) == pytest.approx(2.4, abs=1e-9)


def test_two_steps_by_hand(client_trainer):
    """One client at 4 with curvature 3, one at 0, rate 0.1 and λ = 1: the own mean follows by a half."""
    run = {"task": make_task(REGRESSION, 1, Scale), "batch_size": 0, "solver": LocalSolver(lr=0.1, local_steps=2)}
    train = quadratics([1.0, 3.0], [0.0, 4.0])
    federation = run_rounds(MeanRegularizedMTL(1.0), client_trainer, train, rounds=1, **run)
    first = 0.1 * 12
    second = first - 0.1 * (3 * (first - 4) + (first - first / 2))
    assert own(federation)[:, 0].tolist() == pytest.approx([0, second], abs=1e-12)


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("options", [{"lr": 0.4}, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_without_regulariser_it_is_local(options, client_trainer):
    run = {"solver": LocalSolver(local_epochs=2, **options), "cohorts": [[0, 1, 2], [1], [0, 2]]}
    pair = (MeanRegularizedMTL(0.0), Local())
    ours, alone = (run_rounds(one, client_trainer, make_clients(SIZES), **run) for one in pair)
    assert same_bits(ours.states.models, alone.states.models)
    assert same_bits(ours.predictions(), alone.predictions())


def test_a_single_client_is_local(client_trainer):
    """The only column is its own mean."""
    pair = (MeanRegularizedMTL(5.0), Local())
    ours, alone = (run_rounds(one, client_trainer, make_clients([7])) for one in pair)
    assert distance(ours.states.models, alone.states.models) < 1e-12


def test_it_differs_from_prox_avg_in_the_anchor_that_moves(client_trainer):
    """With one local step the anchors are the same; with more, ProxAvg's rests."""
    gaps = []
    for steps in (1, 3):
        run = {"solver": LocalSolver(lr=0.4, local_steps=steps), "weighting": "uniform"}
        pair = (MeanRegularizedMTL(1.0), ProxAvg(1.0))
        ours, other = (run_rounds(one, client_trainer, make_clients(SIZES), **run) for one in pair)
        gaps.append(distance((ours.shared, ours.states.models), (other.shared, other.states.models)))
    assert gaps[0] < 1e-12
    assert gaps[1] > 1e-3


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_mean_is_that_of_all_columns(weighting, client_trainer):
    run = {"weighting": weighting, "rounds": 4, "cohorts": COHORTS}
    federation = run_rounds(MeanRegularizedMTL(), client_trainer, make_clients(SIZES), **run)
    weight = torch.tensor(SIZES if weighting == "samples" else [1, 1, 1], dtype=torch.float64)
    assert distance(federation.weights[0], weight @ own(federation) / weight.sum()) < 1e-12


def test_weights_by_samples_reach_the_weighted_solution():
    """∇f_i(w_i) + λ·(w_i − w̄) = 0 with w̄ = Σ p_i w_i, here p = (¼, ¾)."""
    x = torch.ones(4, 1, dtype=torch.float64)
    y = torch.tensor([0.0, 4.0, 4.0, 4.0], dtype=torch.float64)
    train = type(make_clients([1]))(x, y, torch.tensor([0, 1, 4]))
    run = {"task": make_task(REGRESSION, 1, Scale), "batch_size": 0, "weighting": "samples"}
    federation = run_rounds(
        MeanRegularizedMTL(1.0), None, train, rounds=90, solver=LocalSolver(lr=0.3, local_steps=2), **run
    )
    # w_i = (c_i + w̄)/2, so w̄ = (0 + 3)/2 + w̄/2 = 3
    assert own(federation)[:, 0].tolist() == pytest.approx([1.5, 3.5], abs=1e-9)
    assert float(federation.weights) == pytest.approx(3.0, abs=1e-9)


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_trains_from_the_mean(epochs, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(MeanRegularizedMTL(0.7, unseen_epochs=epochs), client_trainer, train)
    mean = federation.weights[0].numpy()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    expected = [unseen_client(mean, x, y, own, 0.7, 0.1) for own, (x, y) in zip(orders, as_arrays(unseen), strict=True)]
    served = flat(federation.serve(unseen, seen=False)).numpy()
    np.testing.assert_allclose(served, np.stack(expected), rtol=0, atol=1e-10)
