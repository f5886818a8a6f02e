"""Algorithms that are the same in a limit: every identity holds for all trainers, solvers and networks named here."""

import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    Federation,
    distance,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
)

from lit_fed.algorithms import FedAvg, FedAvgPlus, FedEM, Local, OfficialFedEM, ResponsibilityFedEM
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split
from lit_fed.models import Linear

SIZES = [6, 1, 9, 3]
COHORTS = [[0, 1, 2, 3], [2, 0], [1, 3, 3]]
MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2}
PLAIN = {"local_epochs": 2}


@pytest.fixture(params=[(BINARY, Linear), (MULTICLASS, small_mlp)], ids=["linear", "mlp"])
def problem(request):
    target, network = request.param
    return {"train": make_clients(SIZES, target=target), "task": make_task(target, network=network)}


@pytest.mark.parametrize(
    "solver", [PLAIN, MOMENTUM, {"optimizer": "adam", "lr": 0.01}], ids=["sgd", "momentum", "adam"]
)
@pytest.mark.parametrize(
    ("algorithm", "aggregation"),
    [
        (FedEM(1), "renormalised"),
        (FedEM(1), "stale_fill"),
        (OfficialFedEM(1, refresh_mixture_at_eval=False), "stale_fill"),
        (ResponsibilityFedEM(1), "renormalised"),
    ],
    ids=["FedEM", "stale", "official", "by use"],
)
def test_fedem_with_one_component_is_fedavg(problem, trainer, solver, algorithm, aggregation):
    options = {**problem, "cohorts": COHORTS, "solver": LocalSolver(**solver), "aggregation": aggregation}
    mixed, plain = (run_rounds(one, trainer, **options) for one in (algorithm, FedAvg()))
    assert same_bits(mixed.shared, plain.shared)
    assert same_bits(mixed.predictions(), plain.predictions())


def test_fedem_with_one_component_is_fedavg_with_kept_momentum(problem, trainer):
    options = {**problem, "cohorts": COHORTS, "solver": LocalSolver(**MOMENTUM, persist_optimizer=True)}
    mixed, plain = (run_rounds(one, trainer, **options) for one in (FedEM(1), FedAvg()))
    assert same_bits((mixed.shared, mixed.optimizers), (plain.shared, plain.optimizers))
    assert mixed.bits.tolist() == plain.bits.tolist()


@pytest.mark.parametrize("cohorts", [None, [[0, 1, 2, 3], [2, 0], [1, 3]]], ids=["all", "sampled"])
def test_fedem_with_one_hot_weights_is_stale_fill_fedavg_for_each_component(problem, trainer, cohorts):
    groups = [0, 1, 1, 0]
    mixed = Federation(FedEM(2), trainer=trainer, aggregation="stale_fill", solver=LocalSolver(**PLAIN), **problem)
    mixed.states = mixed.states._replace(mixture=torch.eye(2, dtype=torch.float64)[groups])
    start, cohorts = mixed.shared, cohorts or [[0, 1, 2, 3]] * 3
    for cohort in cohorts:
        mixed.round(cohort)
    for m in range(2):
        own = Federation(FedAvg(), trainer=trainer, aggregation="stale_fill", solver=LocalSolver(**PLAIN), **problem)
        own.shared = tree.index(start, slice(m, m + 1))
        for cohort in cohorts:
            members = [one for one in cohort if groups[one] == m]
            own.round(members) if members else None
        assert distance(tree.index(mixed.shared, slice(m, m + 1)), own.shared) < 1e-12


@pytest.mark.parametrize("tuning", [{"fine_tune_lr": 0.0}, {"fine_tune_epochs": 0}], ids=str)
def test_fedavg_plus_without_tuning_is_fedavg(problem, trainer, tuning):
    options = {**problem, "cohorts": COHORTS, "solver": LocalSolver(**MOMENTUM)}
    tuned, plain = (run_rounds(one, trainer, **options) for one in (FedAvgPlus(**tuning), FedAvg()))
    assert same_bits(tuned.shared, plain.shared)
    assert distance(tuned.predictions(), plain.predictions()) < 1e-12


def test_fedavg_plus_before_the_first_round_is_local_for_an_epoch(problem, trainer):
    options = {**problem, "solver": LocalSolver(momentum=0.9), "batch_size": 0}
    tuned = run_rounds(FedAvgPlus(), trainer, rounds=0, **options)
    alone = run_rounds(Local(), trainer, rounds=1, **options)
    assert distance(tuned.serve().models, alone.states.models) < 1e-12


def test_fedavg_of_one_full_batch_step_is_gradient_descent_on_all_samples(problem, trainer):
    train = problem["train"]
    union = Split(train.x, train.y, torch.tensor([0, len(train.y)]))
    options = {"task": problem["task"], "solver": LocalSolver(lr=0.5), "batch_size": 0}
    one, other = (run_rounds(FedAvg(), trainer, data, **options) for data in (train, union))
    assert distance(one.shared, other.shared) < 1e-12


def test_local_is_fedavg_of_each_client_alone(problem, trainer):
    options = {**problem, "solver": LocalSolver(**MOMENTUM)}
    alone = run_rounds(Local(), trainer, **options)
    for one in range(len(SIZES)):
        single = run_rounds(FedAvg(), trainer, cohorts=[[one]] * 3, **options)
        assert distance(tree.index(alone.states.models, one), single.shared.models) < 1e-12


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM()], ids=["FedAvg", "FedEM"])
def test_stale_fill_of_all_clients_is_renormalised(problem, trainer, algorithm):
    one, other = (
        run_rounds(algorithm, trainer, aggregation=rule, **problem) for rule in ("renormalised", "stale_fill")
    )
    assert distance(one.shared, other.shared) < 1e-12


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM()], ids=["FedAvg", "FedEM"])
def test_weights_by_samples_are_uniform_where_clients_are_equal(trainer, algorithm):
    train = make_clients([5, 5, 5])
    one, other = (run_rounds(algorithm, trainer, train, weighting=rule) for rule in ("samples", "uniform"))
    assert distance(one.shared, other.shared) < 1e-12
