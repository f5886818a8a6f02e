import numpy as np
import pytest
import torch
from combination import refuse
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_context,
    make_task,
    run_rounds,
    same_bits,
)
from local_norm import local_norm
from references.logistic import predict
from references.oracle_numpy import closest_group, oracle_round

from lit_fed.algorithms import FedAvg, Oracle
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError

SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}]
SIZES = [5, 2, 8, 6, 4, 3]
GROUPS = torch.tensor([0, 2, 0, 1, 2, 0])
COHORTS = [[0, 1, 2, 3, 4, 5], [5, 1, 3], [0, 2, 4]]  # the second group is not in the last


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS, ids=str)
def test_rounds_are_those_of_the_reference(options, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1, 2, 2], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(Oracle(), train, solver=solver, trainer=client_trainer, batch_size=2, groups=GROUPS)
    thetas = list(federation.weights.numpy())
    for cohort in COHORTS:
        orders = batch_orders(federation)
        thetas = oracle_round(thetas, GROUPS.tolist(), as_arrays(train), orders, present=cohort, **options)
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights.numpy(), np.stack(thetas), rtol=0, atol=1e-10)
    for found, group, (x, _) in zip(federation.predictions(test), GROUPS.tolist(), as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(thetas[group], x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- one FedAvg for each group
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_every_group_is_a_run_of_fedavg(weighting, client_trainer):
    train = make_clients(SIZES)
    options = {"weighting": weighting, "solver": LocalSolver(momentum=0.9)}
    federation = run_rounds(Oracle(), client_trainer, train, cohorts=COHORTS, groups=GROUPS, **options)
    for g in range(3):
        alone = Federation(FedAvg(), train, trainer=client_trainer, num_rounds=3, **options)
        for cohort in COHORTS:
            members = [i for i in cohort if GROUPS[i] == g]
            if members:
                alone.round(members)
            else:
                alone.round_idx += 1
        assert distance(federation.weights[g], alone.weights[0]) < 1e-12


def test_clients_of_other_groups_do_not_count_for_a_group():
    """Not even with the model that absent clients were last sent: it is that of another group."""
    with pytest.raises(ConfigError, match="stale_fill, and Oracle says itself"):
        refuse(Oracle(), aggregation="stale_fill")


# ---------------------------------------------------------------------- state, serving, traffic
def test_groups_start_from_one_model():
    federation = Federation(Oracle(), make_clients(SIZES), groups=GROUPS)
    plain = Federation(FedAvg(), make_clients(SIZES))
    assert federation.weights.shape[0] == 3
    for g in range(3):
        assert same_bits(tree.index(federation.shared, slice(g, g + 1)), plain.shared)
    assert federation.states.group.tolist() == GROUPS.tolist()


def test_seen_clients_are_served_by_their_group():
    federation = run_rounds(Oracle(), None, make_clients(SIZES), groups=GROUPS, cohorts=COHORTS)
    assert same_bits(federation.serve(), federation.states)
    assert federation.states.group.tolist() == GROUPS.tolist()


def test_unseen_clients_go_to_the_group_of_the_lowest_loss(client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3, 0, 7, 5], seed=2, first_id=6)
    federation = run_rounds(Oracle(), client_trainer, train, groups=GROUPS, solver=LocalSolver(lr=1.0))
    thetas = federation.weights.numpy()
    expected = [closest_group(thetas, x, y) if len(y) else 0 for x, y in as_arrays(unseen)]
    assert len(set(expected)) > 1
    assert federation.serve(unseen, seen=False).group.tolist() == expected
    for found, g, (x, _) in zip(federation.predictions(unseen, seen=False), expected, as_arrays(unseen), strict=True):
        if len(x):
            np.testing.assert_allclose(found.exp().numpy(), predict(thetas[g], x), rtol=0, atol=1e-10)


def test_one_model_goes_each_way():
    task = make_task(dtype=torch.float32)
    train = make_clients(SIZES, dtype=torch.float32)
    federation = run_rounds(Oracle(), None, train, rounds=1, task=task, groups=GROUPS, cohorts=[[0, 1, 3]])
    assert federation.bits.tolist() == [3 * 5 * 32] * 2


def test_data_without_groups_are_refused():
    with pytest.raises(ConfigError, match=r"Oracle .* known groups, such as --data\.dataset Synthetic"):
        Oracle().shared_init(make_context())


def normalised(shape, outputs):
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, outputs))


def test_clients_may_keep_their_normalisation(client_trainer):
    """With FedBN around it, every group is still a run of FedAvg with FedBN around it."""
    sizes, task = [5, 4, 8, 6, 4, 3], make_task(network=normalised)
    train = make_clients(sizes)
    federation = run_rounds(local_norm(Oracle()), client_trainer, train, groups=GROUPS, task=task)
    for g in range(3):
        members = [i for i in range(6) if GROUPS[i] == g]
        alone = run_rounds(local_norm(FedAvg()), client_trainer, train, task=task, cohorts=[members] * 3)
        assert distance(tree.index(federation.shared, slice(g, g + 1)), alone.shared) < 1e-12
        for i in members:
            assert distance(federation.predictions()[i], alone.predictions()[i]) < 1e-12
    assert all(one.isfinite().all() for one in federation.predictions(make_clients([4], first_id=6), seen=False))
