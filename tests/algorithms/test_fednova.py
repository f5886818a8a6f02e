import numpy as np
import pytest
import torch
from combination import refuse
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_context,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from local_norm import local_norm
from normalised import NormalisedMLP
from references.fednova_numpy import fednova_round, step_weights
from references.logistic import predict

from lit_fed.algorithms import FedAvg, FedNova, FedProx
from lit_fed.algorithms.fednova import largest_pull
from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Batch, ClientData, ModelState, Split
from lit_fed.errors import ConfigError

SOLVERS = [
    {"lr": 0.5},
    {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.3, "momentum": 0.5, "nesterov": True},
]


# ---------------------------------------------------------------------- against the reference
def compare_with_the_reference(federation, cohorts, **options):
    """Rounds of both; returns the norms ‖a_i‖₁ of all rounds."""
    theta, solver, norms = federation.weights[0].numpy(), federation.solver, []
    for cohort in cohorts:
        theta, found = fednova_round(
            theta, as_arrays(federation.train), batch_orders(federation), cohort=cohort, lr=solver.lr,
            momentum=solver.momentum, nesterov=solver.nesterov, weight_decay=solver.weight_decay, **options,
        )  # fmt: skip
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
        norms.append(found)
    return norms


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("effective_steps", [None, 2.5])
def test_rounds_are_those_of_the_reference(solver, effective_steps, client_trainer):
    train = make_clients([5, 2, 8])
    federation = Federation(
        FedNova(effective_steps=effective_steps), train, solver=LocalSolver(local_epochs=2, **solver),
        trainer=client_trainer, batch_size=2,
    )  # fmt: skip
    (norms, *_) = compare_with_the_reference(federation, [None] * 3, effective_steps=effective_steps)
    assert len(set(norms)) == 3
    theta = federation.weights[0].numpy()
    for prediction, (x, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(prediction.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_sampled_rounds_are_those_of_the_reference(weighting, momentum, client_trainer):
    options = {"weighting": weighting, "batch_size": 2, "trainer": client_trainer}
    solver = LocalSolver(lr=0.3, momentum=momentum)
    federation = Federation(FedNova(), make_clients([5, 2, 8]), solver=solver, **options)
    cohorts = [[0, 2], [1], [1, 2], [0, 1], [0, 0, 2]]
    compare_with_the_reference(federation, cohorts, uniform=weighting == "uniform")


@pytest.mark.parametrize(
    ("solver", "prox_weight"),
    [
        ({"lr": 0.5}, 0.3),
        ({"lr": 0.5}, 2.0),
        ({"lr": 0.4, "momentum": 0.5}, 0.2),
        ({"lr": 0.4, "momentum": 0.5, "nesterov": True}, 0.25),
    ],
    ids=str,
)
def test_proximal_rounds_are_those_of_the_reference(solver, prox_weight, client_trainer):
    solver = LocalSolver(local_epochs=2, **solver)
    options = {"solver": solver, "trainer": client_trainer, "batch_size": 2}
    federation = Federation(FedNova(prox_weight), make_clients([5, 2, 8]), **options)
    compare_with_the_reference(federation, [None, [0, 2], [1, 2]], prox_weight=prox_weight)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_stragglers_are_those_of_the_reference(momentum, client_trainer):
    solver = LocalSolver(lr=0.2, momentum=momentum, local_steps=7, straggler_fraction=0.8)
    federation = Federation(FedNova(), make_clients([5, 2, 8, 4]), solver=solver, trainer=client_trainer)
    norms = compare_with_the_reference(federation, [None, [0, 3], [1, 2, 3]])
    assert len({float(one) for found in norms for one in found}) > 3


# ---------------------------------------------------------------------- ‖a_i‖₁
def norm_of(steps, solver, prox_weight=0.0):
    """‖a_i‖₁ that a client sends after some steps."""
    algorithm, ctx = FedNova(prox_weight), make_context(solver=solver)
    shared, train = algorithm.shared_init(ctx), make_clients([4])
    data = ClientData(train.x, train.y, None, torch.ones(4), torch.tensor(0))
    work = algorithm.client_init(ctx, shared, (), data, None)
    for _ in range(steps):
        work = algorithm.client_step(ctx, shared, work, Batch(train.x, train.y, torch.arange(4), torch.ones(4)))
    return float(algorithm.client_final(ctx, shared, work, data).message.value.norm)


@pytest.mark.parametrize("steps", [0, 1, 2, 9])
def test_the_norms_are_those_of_the_paper(steps):
    """Section 4, written as sums."""
    rho, mu, lr = 0.8, 0.6, 0.5
    momentum = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    proximal = (1 - (1 - lr * mu) ** steps) / (lr * mu)
    assert norm_of(steps, LocalSolver(lr=lr)) == steps
    assert norm_of(steps, LocalSolver(lr=lr, momentum=rho)) == pytest.approx(momentum, abs=1e-12)
    assert norm_of(steps, LocalSolver(lr=lr), mu) == pytest.approx(proximal, abs=1e-12)
    assert norm_of(steps, LocalSolver(lr=0.0), mu) == steps


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.1, 0.5, 0.9])
def test_weights_are_positive_up_to_the_largest_pull_and_not_beyond(momentum, nesterov):
    largest = largest_pull(LocalSolver(lr=0.2, momentum=momentum, nesterov=nesterov))
    options = {"lr": 0.2, "momentum": momentum, "nesterov": nesterov}
    assert step_weights(120, prox_weight=largest * (1 - 1e-9), **options).min() > 0
    assert step_weights(120, prox_weight=largest * 1.5, **options).min() < 0


def test_without_momentum_the_pull_ends_at_the_global_model():
    assert largest_pull(LocalSolver(lr=0.2)) == pytest.approx(5)
    assert largest_pull(LocalSolver(lr=0.0)) == float("inf")
    assert norm_of(6, LocalSolver(lr=0.25), 4.0) == 1


# ---------------------------------------------------------------------- two quadratics
def after_a_round(algorithm, start=0.0, **solver):
    """½(w − 0)² with one sample and ½(w − 4)² in three equal ones: one local step against three, and equal weights."""
    one, three = quadratics([1.0], [0.0]), quadratics([1.0] * 3, [4.0] * 3)
    train = Split(torch.cat([one.x, three.x]), torch.cat([one.y, three.y]), torch.tensor([0, 1, 4]))
    task = make_task(REGRESSION, num_features=1, network=Scale)
    federation = Federation(
        algorithm, train, task, LocalSolver(**{"lr": 0.01} | solver), batch_size=1, weighting="uniform"
    )
    federation.shared = tree.map_leaves(lambda leaf: torch.full_like(leaf, start), federation.shared)
    federation.round()
    return float(federation.weights)


def test_by_hand():
    """From 0 with rate 0.01: the first client rests, the second moves 4(1 − 0.99³) in its three steps."""
    moved = 4 * (1 - 0.99**3)
    assert after_a_round(FedAvg()) == pytest.approx(moved / 2, abs=1e-12)
    assert after_a_round(FedNova()) == pytest.approx((1 + 3) / 2 * moved / 3 / 2, abs=1e-12)
    assert after_a_round(FedNova(effective_steps=5.0)) == pytest.approx(5 * moved / 3 / 2, abs=1e-12)


def test_stragglers_leave_the_minimiser_where_it_is():
    """Least squares, each client taking one to five whole-batch steps: FedAvg leaves the minimum with every round."""
    train, lr = make_clients([10, 2, 2], num_features=2, target=REGRESSION), 1e-5
    x = torch.cat([train.x, torch.ones(14, 1)], dim=1)
    share = torch.tensor([0.1] * 10 + [0.5] * 4, dtype=torch.float64)[:, None]
    optimum = torch.linalg.solve(x.T @ (share * x), x.T @ (share * train.y[:, None]))[:, 0]
    solver, moved = LocalSolver(lr=lr, local_steps=5, straggler_fraction=1.0), {}
    for algorithm in (FedNova(), FedAvg()):
        task = make_task(REGRESSION, num_features=2)
        federation = Federation(algorithm, train, task, solver, batch_size=0, weighting="uniform")
        start = ModelState({"linear.weight": optimum[None, None, :2], "linear.bias": optimum[None, 2:]}, {})
        for round_idx in range(5):
            federation.round_idx, federation.shared = round_idx, GlobalModels(start)
            federation.round()
            way = float((federation.weights[0] - optimum).norm()) / lr
            moved[type(algorithm)] = max(way, moved.get(type(algorithm), 0.0))
    assert moved[FedNova] < 1e-3
    assert moved[FedAvg] > 0.1


# ---------------------------------------------------------------------- identities
def test_equal_steps_with_a_proximal_term_are_fedprox(client_trainer):
    options = {"train": make_clients([5, 2, 8]), "solver": LocalSolver(lr=0.3, local_steps=3)}
    nova, prox = (run_rounds(one, client_trainer, **options) for one in (FedNova(0.4), FedProx(0.4)))
    assert distance(nova.shared, prox.shared) < 1e-12


def test_running_statistics_are_averaged_as_in_fedavg():
    options = {"train": make_clients([5, 2, 8]), "task": make_task(network=NormalisedMLP), "rounds": 1}
    plain, nova, long = (run_rounds(one, None, **options) for one in (FedAvg(), FedNova(), FedNova(0.0, 9.0)))
    assert same_bits(plain.shared.models.buffers, nova.shared.models.buffers)
    assert same_bits(plain.shared.models.buffers, long.shared.models.buffers)
    assert distance(plain.shared.models.parameters, nova.shared.models.parameters) > 1e-4


def test_ones_own_normalisation_leaves_the_others_normalised():
    """FedBN around it: with equal steps it is FedBN around FedAvg."""
    options = {
        "train": make_clients([6, 9, 3]), "task": make_task(network=NormalisedMLP), "batch_size": 3,
        "solver": LocalSolver(lr=0.2, local_steps=3),
    }  # fmt: skip
    nova, plain = (run_rounds(local_norm(one), None, **options) for one in (FedNova(), FedAvg()))
    assert distance((nova.shared, nova.states), (plain.shared, plain.states)) < 1e-12


# ---------------------------------------------------------------------- who takes part
def test_float32_loses_nothing_over_many_steps(client_trainer):
    """The change is divided, and not the model: with 300 steps the average keeps its digits."""
    solver = LocalSolver(lr=1e-3, local_steps=300)
    narrow, wide = (
        run_rounds(
            one, client_trainer, make_clients([5, 2, 8], dtype=torch.float32), solver=solver, rounds=1,
            task=make_task(dtype=torch.float32),
        )
        for one in (FedNova(), FedAvg())
    )  # fmt: skip
    assert distance(narrow.shared, wide.shared) < 2e-7


# ---------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(("factor", "most"), [(1.9, 2.632), (4.0, 1.25)])
def test_the_limit_is_that_of_the_fastest_client(factor, most):
    solver, factors = LocalSolver(lr=0.2), torch.tensor([0.5, factor], dtype=torch.float64)
    with pytest.raises(ConfigError, match=rf"at most {most}, at a client whose .*client_lr is {factor:g}; give"):
        Federation(FedNova(4.0), make_clients([5, 2]), solver=solver, of_clients={"client_lr": factors})
    Federation(
        FedNova(4.0), make_clients([5, 2]), solver=solver, of_clients={"client_lr": torch.ones(2, dtype=torch.float64)}
    )


@pytest.mark.parametrize(
    ("algorithm", "solver", "message"),
    [
        (FedNova(), {"optimizer": "adam"}, r"--model\.solver\.optimizer is adam; give sgd, since FedNova takes only"),
        (
            FedNova(),
            {"momentum": 0.9, "persist_optimizer": True},
            r"--model\.solver\.persist_optimizer is True; give false, since FedNova divides by the steps of one round",
        ),
        (FedNova(0.1), {"clip_norm": 1.0}, r"clip_norm is 1\.0; give null, or --model\.algorithm\.prox_weight 0: Fed"),
        (FedNova(11.0), {"lr": 0.1}, r"prox_weight is 11\.0, .* at most 10; give that, or a smaller --model\.solver"),
        (FedNova(3.0), {"lr": 0.1, "momentum": 0.25}, r"prox_weight is 3\.0, .* at most 2\.5;"),
        (FedNova(2.0), {"lr": 0.1, "momentum": 0.6, "nesterov": True}, r"prox_weight is 2\.0, .* at most 0\.625;"),
    ],
)
def test_solvers_that_it_cannot_take_are_named_before_training(algorithm, solver, message):
    with pytest.raises(ConfigError, match=message):
        Federation(algorithm, make_clients([5, 2]), solver=LocalSolver(**solver))


def test_clipping_alone_is_taken():
    train, solver = make_clients([5, 2, 8]), LocalSolver(clip_norm=0.1, local_steps=3)
    nova, plain = (run_rounds(one, None, train, solver=solver) for one in (FedNova(), FedAvg()))
    assert distance(nova.shared, plain.shared) < 1e-12


def test_absent_clients_are_not_filled_in():
    with pytest.raises(ConfigError, match="stale_fill"):
        refuse(FedNova(), aggregation="stale_fill")
