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
    make_clients,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
    two_quadratics,
)
from references.logistic import predict
from references.mixture_admm_numpy import Solver, mixture_admm_round, mixture_solution, start

from lit_fed.algorithms import MixtureADMM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.solvers.newton import minimise
from lit_fed.core.types import LocalWork
from lit_fed.errors import ClientError, ConfigError

SIZES = [5, 2, 8]
FORMS = ["alternating_prox", "jacobi", "gauss_seidel"]
CONSTRAINED = FORMS[1:]


def exact(form, lam=0.7, **options):
    return MixtureADMM(lam, form, local_solve="exact", **options)


def orders_of(federation):
    """Batches of the coming round; in form gauss_seidel all clients but the last train in phases of their own name."""
    last = batch_orders(federation)[-1:]
    if federation.algorithm.form != "gauss_seidel":
        return batch_orders(federation)
    return batch_orders(federation, "turn")[:-1] + last


def run_reference(federation, cohorts, weights, sgd=None, samples=False):
    """Rounds of federation and reference side by side."""
    algorithm, clients = federation.algorithm, as_arrays(federation.train)
    state = start(federation.weights[0].numpy(), len(clients))
    for cohort in cohorts:
        solve = Solver(clients, orders_of(federation), samples, sgd)
        state = mixture_admm_round(
            state, solve, form=algorithm.form, lam=algorithm.prox_weight, present=cohort, **weights
        )
        federation.round(cohort)
        pairs = [(flat(federation.states.models.parameters), state["x"]), (federation.weights, [state["z"]])]
        pairs += [(flat(federation.shared.dual), [state["y"]])] if algorithm.form != "alternating_prox" else []
        for found, expected in pairs:
            np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=0, atol=1e-9)
    return state


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_exact_rounds_are_those_of_the_reference(form, weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    weights = {"rho": 0.9, "beta": 0.6}
    algorithm = exact(form, penalty_weight=0.9, dual_step=0.6)
    federation = Federation(algorithm, train, trainer=client_trainer, weighting=weighting)
    state = run_reference(federation, [None] * 3, weights, samples=weighting == "samples")
    for found, own, (x, _) in zip(federation.predictions(test), state["x"], as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(own, x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_inexact_rounds_are_those_of_the_reference(form, options, client_trainer):
    """With the weights that null stands for."""
    weights = {"rho": 10 * 0.7 / 3, "beta": 10 * 0.7 / 3}
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(
        MixtureADMM(0.7, form), make_clients(SIZES), solver=solver, trainer=client_trainer, batch_size=2
    )
    run_reference(federation, [None] * 3, weights, options)


@pytest.mark.parametrize("form", FORMS)
def test_sampled_rounds_are_those_of_the_reference(form, client_trainer):
    weights = {"rho": 0.9, "beta": 0.9}
    algorithm = MixtureADMM(0.7, form, penalty_weight=0.9)
    solver = LocalSolver(lr=0.1, local_steps=2)
    federation = Federation(algorithm, make_clients(SIZES), solver=solver, trainer=client_trainer, batch_size=0)
    run_reference(federation, [[0, 2], [1], [1, 2]], weights, {"lr": 0.1})


# ---------------------------------------------------------------------- the mixture solution
class WithoutBias(torch.nn.Module):
    """A linear model through the origin."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(*shape, outputs, bias=False)

    def forward(self, x):
        return self.linear(x)


def six_regressions(network=None):
    """Training samples and task of N = 6 random quadratics in d = 3 (and a bias)."""
    train = make_clients([5, 9, 7, 6, 12, 8], num_features=3, target=REGRESSION, seed=4)
    options = {} if network is None else {"network": network}
    return {"train": train, "task": make_task(REGRESSION, num_features=3, **options), "trainer": VectorizedTrainer()}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_finds_the_mixture_solution(form, bias, newton_step):
    setting = six_regressions(None if bias else WithoutBias)
    weights, rounds = {
        "alternating_prox": ({}, 18),
        "jacobi": ({}, 30),
        "gauss_seidel": ({"penalty_weight": 0.4}, 20),
    }[form]
    federation = run_rounds(exact(form, **weights), rounds=rounds, **setting)
    x, z = mixture_solution(as_arrays(setting["train"]), 0.7, bias=bias)
    np.testing.assert_allclose(flat(federation.states.models.parameters).numpy(), x, rtol=0, atol=1e-4)
    np.testing.assert_allclose(federation.weights[0].numpy(), z, rtol=0, atol=1e-4)
    assert np.abs(x - z).max() > 0.1


@pytest.mark.parametrize("form", CONSTRAINED)
@pytest.mark.parametrize("penalty_weight", [0.7 / 6, 0.1])
def test_a_penalty_without_a_minimum_is_refused(form, penalty_weight):
    with pytest.raises(ConfigError, match=rf"penalty_weight is {penalty_weight:g}, and 6 clients .* prox_weight 0\.7;"):
        run_rounds(exact(form, penalty_weight=penalty_weight), rounds=0, **six_regressions())


def on_quadratics(form, rounds, lam=1.0, **options):
    """½x² and ½·3(x − 4)², from 0."""
    return run_rounds(exact(form, lam, **options), rounds=rounds, **two_quadratics())


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("form", FORMS)
def test_without_a_pull_all_find_their_own_minimum(form, newton_step):
    federation = on_quadratics(form, 1 if form == "alternating_prox" else 22, lam=0.0, penalty_weight=0.3)
    x = flat(federation.states.models.parameters)[:, 0]
    assert x.tolist() == pytest.approx([0, 4], abs=1e-3)


def test_a_strong_pull_brings_all_to_the_consensus(newton_step):
    federation = on_quadratics("gauss_seidel", 60, lam=500.0, penalty_weight=300.0)
    x = flat(federation.states.models.parameters)[:, 0]
    assert x.tolist() == pytest.approx([3, 3], abs=0.02)
    assert float(x[1] - x[0]) > 1e-4
    exactly = mixture_solution(as_arrays(quadratics([1.0, 3.0], [0.0, 4.0])), 500.0, bias=False)[0][:, 0]
    assert exactly.tolist() == pytest.approx([3, 3], abs=0.02)


def test_alternating_prox_takes_proximal_points_of_the_mean():
    train = make_clients(SIZES)
    federation = run_rounds(exact("alternating_prox"), None, train, rounds=2)
    before = run_rounds(exact("alternating_prox"), None, train, rounds=1, num_rounds=2)
    z = before.shared.models
    for one in range(3):
        expected = minimise(make_task(), z, train.client(one), Penalty(0.7, z.parameters))
        assert distance(tree.index(federation.states.models, one), expected) < 1e-12
    assert distance(federation.weights[0], flat(federation.states.models.parameters).mean(0)) < 1e-13


def test_gauss_seidel_gives_every_client_a_turn():
    phases = MixtureADMM(form="gauss_seidel").phases(Federation(MixtureADMM(), make_clients(SIZES)).context("plan"),
                                                    torch.tensor([2, 0, 1, 0]))  # fmt: skip
    assert [(phase.name, phase.client_ids.tolist()) for phase in phases] == [
        ("turn", [0]),
        ("turn", [1]),
        ("train", [2]),
    ]


# ---------------------------------------------------------------------- the same numbers, whoever computes them
@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
@pytest.mark.parametrize("form", FORMS)
def test_sequential_is_vectorized_in_every_form(form, local_solve):
    options = {"cohorts": [[0, 1, 2], [0, 2], [1]], "solver": LocalSolver(lr=0.05, momentum=0.5)}
    one, other = (
        run_rounds(MixtureADMM(0.7, form, local_solve=local_solve), trainer(), make_clients([30, 1, 9]), **options)
        for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-10


# ---------------------------------------------------------------------- cohorts, traffic, serving
def test_running_statistics_are_averaged_over_all_clients(client_trainer):
    train, task = make_clients([6, 4, 8]), make_task(network=NormalisedLinear)
    federation = Federation(MixtureADMM(form="jacobi"), train, task, trainer=client_trainer, batch_size=0)
    for cohort in ([0, 1, 2], [2], [0, 1]):
        federation.round(cohort)
        for name in ("norm.running_mean", "norm.running_var"):
            kept = federation.states.models.buffers[name]
            assert distance(federation.shared.models.buffers[name], kept.mean(0)) < 1e-12
            assert distance(kept[0], kept[1]) > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_an_unseen_client_takes_the_proximal_point_of_z(form, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(exact(form), client_trainer, train, rounds=1)
    served, z = federation.serve(unseen, seen=False), federation.shared.models
    for row in range(2):
        expected = minimise(make_task(), z, unseen.client(3 + row), Penalty(0.7, z.parameters))
        assert distance(tree.index(served.models, row), expected) < 1e-11
    assert same_bits(federation.serve(), federation.states)


@pytest.mark.parametrize("epochs", [0, 2])
def test_an_inexact_unseen_client_trains_towards_it(epochs, client_trainer):
    unseen = make_clients([6, 3], seed=2, first_id=3)
    algorithm = MixtureADMM(0.7, "jacobi")
    solver = LocalSolver(local_epochs=epochs)
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES), rounds=1, solver=solver)
    z, clients = federation.weights[0].numpy(), as_arrays(unseen)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    solve = Solver(clients, orders, sgd={"lr": 0.1})
    expected = [solve(one, z, [(0.7, z)]) for one in range(2)]
    found = flat(federation.serve(unseen, seen=False).models.parameters)
    np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=0, atol=1e-10)


def test_a_loss_without_a_minimum_is_blamed_on_its_client():
    """λ = 0, and inputs on which no weight has an effect: the curvature is 0 on every processor."""
    task, train = make_task(REGRESSION), make_clients([1], target=REGRESSION)
    train.x.zero_()
    with pytest.raises(ClientError, match="client 0, round 0, client_final"):
        run_rounds(exact("alternating_prox", 0.0), None, train, task=task)
