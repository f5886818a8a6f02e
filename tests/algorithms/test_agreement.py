"""Six roads to one solution: the algorithms for min Σ_i f_i(x_i) + λ/2·Σ_i ‖x_i − x̄‖² on the same random quadratics.

The solution is known in closed form: x_i = (H_i + λI)^-1 (H_i c_i + λz) with z the mean of all x_i.
"""

import numpy as np
import pytest
import torch
from federated_round import REGRESSION, Federation, as_arrays, flat, make_clients, make_task, run_rounds
from references.fedu_numpy import fixed_point
from references.mixture_admm_numpy import mixture_solution

from lit_fed.algorithms import EASGD, L2GD, FedU, MixtureADMM, PFedMe, ProxAvg
from lit_fed.clients import VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator
from lit_fed.core.solvers.newton import minimise

N, PULL = 6, 0.7

EXACT = {
    "PFedMe": (PFedMe(PULL, local_solve="exact"), 50),  # R = 1 and ηλ = 1, below
    "ProxAvg": (ProxAvg(PULL, local_solve="exact"), 50),
    "MixtureADMM": (MixtureADMM(PULL, local_solve="exact"), 50),  # its other forms are in `test_mixture_admm`
}


@pytest.fixture
def setting():
    """Training samples and task of six regressions in three features and a bias; steps take all local samples."""
    train = make_clients([5, 9, 7, 6, 12, 8], num_features=3, target=REGRESSION, seed=4)
    task = make_task(REGRESSION, num_features=3)
    return {"train": train, "task": task, "trainer": VectorizedTrainer(), "batch_size": 0, "weighting": "uniform"}


@pytest.fixture
def solution(setting):
    """x_i as rows [N, d], and z."""
    x, z = mixture_solution(as_arrays(setting["train"]), PULL)
    assert np.abs(x - z).max() > 0.1  # neither one model for all
    alone, _ = mixture_solution(as_arrays(setting["train"]), 0.0)
    assert np.abs(x - alone).max() > 0.1  # nor each for itself
    np.testing.assert_allclose(x.mean(axis=0), z, rtol=0, atol=1e-12)
    return x, z


def models_of(federation):
    """The personal models as rows, [N, d]."""
    models = getattr(federation.states, "models", federation.states)
    return flat(models.parameters).numpy()


@pytest.mark.parametrize("name", EXACT)
def test_exact_local_solves_lead_there(name, setting, solution, monkeypatch):
    monkeypatch.setitem(minimise.__kwdefaults__, "iterations", 1)  # which is exact for quadratics
    algorithm, rounds = EXACT[name]
    solver = LocalSolver(lr=1 / PULL, local_steps=1)
    federation = run_rounds(algorithm, rounds=rounds, solver=solver, **setting)
    np.testing.assert_allclose(models_of(federation), solution[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(federation.weights[0].numpy(), solution[1], rtol=0, atol=1e-4)


def test_elastic_averaging_leads_there(setting, solution):
    """The strength of the elastic force is ρ = β/(Nη)."""
    lr = 0.15
    algorithm = EASGD(moving_rate=N * lr * PULL)
    federation = run_rounds(algorithm, rounds=150, solver=LocalSolver(lr=lr, local_steps=1), **setting)
    np.testing.assert_allclose(models_of(federation), solution[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(federation.weights[0].numpy(), solution[1], rtol=0, atol=1e-4)


def test_the_laplacian_of_the_complete_graph_leads_there(setting, solution):
    """With η = λ/N: over all pairs of clients, once each, Σ ‖x_i − x_j‖² is N times the sum of all ‖x_i − x̄‖².

    Local and Laplacian steps take turns, which leaves an error of the order of the learning rate.
    """
    lr = 0.15
    federation = run_rounds(FedU(PULL / N), rounds=150, solver=LocalSolver(lr=lr, local_steps=1), **setting)
    each = [(np.hstack([x, np.ones((len(x), 1))]), y) for x, y in as_arrays(setting["train"])]
    quadratic = [x.T @ x / len(y) for x, y in each], [x.T @ y / len(y) for x, y in each], 1 - np.eye(N)
    rest, limit = (fixed_point(*quadratic, PULL / N * step, step) for step in (lr, 1e-7))
    np.testing.assert_allclose(flat(federation.shared.parameters).numpy(), rest, rtol=0, atol=1e-4)
    np.testing.assert_allclose(limit, solution[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("scaling", ["paper", "slides"])
def test_random_steps_stay_there_on_average(scaling, setting, solution):
    """For quadratics the mean over all coins, here of two flips, has the solution as its fixed point; a run circles."""
    lr = 0.04 * (N if scaling == "paper" else 1)
    algorithm = L2GD(0.5, PULL, flips_per_round=2, scaling=scaling)
    x, z = map(torch.from_numpy, solution)
    ends = {}
    for seed in range(30):
        coins = tuple(generator(seed, 1, 0, "l2gd").random(2) < 0.5)
        if coins not in ends:
            solver = LocalSolver(lr=lr)
            federation = Federation(algorithm, solver=solver, seed=seed, round_idx=1, num_rounds=2, **setting)
            own, mean = federation.states.models, federation.shared.models
            own = own._replace(parameters={"linear.weight": x[:, None, None, :3], "linear.bias": x[:, None, 3:]})
            mean = mean._replace(parameters={"linear.weight": z[None, None, :3], "linear.bias": z[None, 3:]})
            federation.states, federation.shared = (
                federation.states._replace(models=own), federation.shared._replace(models=mean)
            )  # fmt: skip
            federation.round()
            ends[coins] = models_of(federation)
    assert len(ends) == 4
    np.testing.assert_allclose(sum(ends.values()) / 4, solution[0], rtol=0, atol=1e-12)
    assert max(np.abs(end - solution[0]).max() for end in ends.values()) > 0.02
