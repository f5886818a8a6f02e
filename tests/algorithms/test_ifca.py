import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
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
    small_mlp,
)
from references.ifca_numpy import estimate, ifca_round
from references.logistic import predict

from lit_fed.algorithms import IFCA, FedAvg
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError

SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}]
SIZES = [5, 2, 8, 6, 4, 3]


def choices(federation):
    return federation.states.mixture.argmax(1).tolist()


def with_models(federation, rows):
    """The federation with these parameters of a network `Scale`."""
    parameters = {"weight": torch.tensor(rows, dtype=torch.float64).view(-1, 1)}
    federation.shared = federation.shared._replace(models=federation.shared.models._replace(parameters=parameters))
    return federation


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_are_those_of_the_reference(options, weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1, 2, 2], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(IFCA(3), train, solver=solver, trainer=client_trainer, batch_size=2, weighting=weighting)
    thetas = federation.weights.numpy()
    for _ in range(4):
        orders = batch_orders(federation)
        thetas, chosen = ifca_round(thetas, as_arrays(train), orders, by_samples=weighting == "samples", **options)
        federation.round()
        np.testing.assert_allclose(federation.weights.numpy(), thetas, rtol=0, atol=1e-10)
        assert choices(federation) == chosen
    assert len(set(chosen)) > 1
    served = [estimate(thetas, x, y) for x, y in as_arrays(train)]
    for found, j, (x, _) in zip(federation.predictions(test, federation.serve()), served, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(thetas[j], x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_gradient_averaging_is_that_of_the_reference(weighting, decay, client_trainer):
    train = make_clients(SIZES)
    solver = LocalSolver(lr=0.7, weight_decay=decay, local_epochs=3)
    federation = Federation(
        IFCA(3, "gradient"), train, solver=solver, trainer=client_trainer, batch_size=2, weighting=weighting
    )
    thetas = federation.weights.numpy()
    for _ in range(4):
        thetas, chosen = ifca_round(
            thetas, as_arrays(train), None, by_samples=weighting == "samples", gradients=True, lr=0.7,
            weight_decay=decay,
        )  # fmt: skip
        federation.round()
        np.testing.assert_allclose(federation.weights.numpy(), thetas, rtol=0, atol=1e-10)
        assert choices(federation) == chosen
    assert len(set(chosen)) > 1


# ---------------------------------------------------------------------- by hand
@pytest.mark.parametrize(
    ("averaging", "aggregation", "expected"),
    [
        ("model", "renormalised", [0.9, 3.2]),  # θ_0 − 0.1·1; mean of 3 + 0.1·1 and 3 + 0.1·3·1
        ("gradient", "renormalised", [1 - 0.1 / 3, 3 + 0.1 * (1 + 3) / 3]),
        ("model", "stale_fill", [1 - 0.1 / 4, 3 + (0.1 + 0.3) / 4]),
        ("gradient", "stale_fill", [1 - 0.1 / 4, 3 + (0.1 + 0.3) / 4]),
    ],
)
def test_a_round_by_hand(averaging, aggregation, expected, client_trainer):
    """Losses ½a(w − c)², of which one client takes no part; the third model is nobody's choice."""
    train = quadratics([1, 1, 3, 1], [0, 4, 4, 9])
    task = make_task(REGRESSION, 1, Scale)
    options = {"solver": LocalSolver(lr=0.1), "trainer": client_trainer, "aggregation": aggregation}
    federation = with_models(Federation(IFCA(3, averaging), train, task, **options), [1.0, 3.0, 100.0])
    federation.round([0, 1, 2])
    assert federation.weights[:, 0].tolist() == pytest.approx([*expected, 100.0], abs=1e-12)
    assert choices(federation)[:3] == [0, 1, 1]


def test_equal_models_go_to_the_first_cluster(client_trainer):
    task = make_task(init_seeds=(5, 5, 5))
    federation = run_rounds(IFCA(3), client_trainer, make_clients(SIZES), rounds=1, task=task)
    plain = run_rounds(FedAvg(), client_trainer, make_clients(SIZES), rounds=1, task=task, weighting="uniform")
    assert choices(federation) == [0] * len(SIZES)
    assert same_bits(tree.index(federation.shared.models, slice(0, 1)), plain.shared.models)
    untouched = slice(1, 3)
    assert same_bits(tree.index(federation.shared.models, untouched), tree.index(task.init(3, 0), untouched))


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
def test_one_cluster_is_fedavg_bit_for_bit(options, dtype, trainer, weighting, aggregation):
    train = make_clients([5, 2, 8, 1], dtype=dtype)
    options = {"solver": LocalSolver(**options, local_epochs=2), "task": make_task(dtype=dtype), "batch_size": 3}
    options |= {"weighting": weighting, "aggregation": aggregation, "cohorts": [[0, 1, 2, 3], [2, 0], [1, 3]]}
    one, plain = (run_rounds(algorithm, trainer(), train, **options) for algorithm in (IFCA(1), FedAvg()))
    assert same_bits(one.shared, plain.shared)
    assert same_bits(one.predictions(), plain.predictions())
    assert one.metrics == plain.metrics


def test_a_cluster_without_members_keeps_its_model(client_trainer):
    train = make_clients([5])
    federation = Federation(IFCA(3), train, trainer=client_trainer)
    start = federation.shared.models
    federation.round()
    (chosen,) = choices(federation)
    for j in range(3):
        same = same_bits(tree.index(federation.shared.models, j), tree.index(start, j))
        assert same == (j != chosen)


# ---------------------------------------------------------------------- layers that all clients share
def shared_layers(layers, trainer=None, **options):
    train = make_clients(SIZES, target=MULTICLASS)
    task = make_task(MULTICLASS, network=small_mlp)
    return Federation(IFCA(3, clustered_layers=layers), train, task, trainer=trainer or SequentialTrainer(), **options)


def test_without_clustered_layers_it_is_fedavg(client_trainer):
    federation = shared_layers(0, client_trainer, num_rounds=3)
    plain = Federation(
        FedAvg(), federation.train, federation.task, trainer=client_trainer, weighting="uniform", num_rounds=3
    )
    for cohort in ([0, 1, 2, 3, 4, 5], [3, 1], [2, 4, 5]):
        federation.round(cohort)
        plain.round(cohort)
    for j in range(3):
        assert distance(tree.index(federation.shared.models, j), tree.index(plain.shared.models, 0)) < 1e-12


@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
def test_shared_layers_are_averaged_over_all_clients(aggregation, client_trainer):
    federation = shared_layers(1, client_trainer, aggregation=aggregation)
    before = federation.shared.models
    cohort = [0, 2, 3, 5]
    federation.round(cohort)
    chosen = choices(federation)
    trained = []
    for i in cohort:  # each client's model: FedAvg with it alone
        one = Federation(FedAvg(), federation.train, federation.task, trainer=client_trainer)
        one.shared = one.shared._replace(models=tree.index(before, slice(chosen[i], chosen[i] + 1)))
        one.round([i])
        trained.append(one.shared.models.parameters)
    assert len({chosen[i] for i in cohort}) > 1
    first_layer = list(before.parameters)[:2]
    for name, leaf in federation.shared.models.parameters.items():
        rows = torch.cat([one[name] for one in trained])
        for j in range(3):
            members = torch.tensor([chosen[i] == j or name in first_layer for i in cohort])
            absent = (len(SIZES) if aggregation == "stale_fill" else max(int(members.sum()), 1)) - int(members.sum())
            expected = (rows[members].sum(0) + absent * before.parameters[name][j]) / (absent + int(members.sum()))
            assert distance(leaf[j], expected) < 1e-12, name


def test_shared_layers_start_alike_and_stay_alike(client_trainer):
    federation = shared_layers(1, client_trainer)
    names = list(federation.shared.models.parameters)
    for _ in range(2):
        for name in names:
            leaf = federation.shared.models.parameters[name]
            alike = torch.equal(leaf[0], leaf[1]) and torch.equal(leaf[0], leaf[2])
            assert alike == (name in names[:2])
        federation.round()


# ---------------------------------------------------------------------- state, serving, traffic
def test_absent_clients_keep_their_choice():
    train = make_clients([5, 2, 8])
    federation = run_rounds(IFCA(2), None, train, rounds=2, cohorts=[[0, 1], [1]])
    first = run_rounds(IFCA(2), None, train, rounds=1, cohorts=[[0, 1]])
    assert torch.equal(federation.states.mixture[0], first.states.mixture[0])
    assert federation.states.mixture[2].tolist() == [0.5, 0.5]


def test_everybody_chooses_anew_before_it_is_served(client_trainer):
    train, unseen = make_clients([5, 2, 8]), make_clients([6, 3, 4, 7], seed=2, first_id=3)
    federation = run_rounds(IFCA(4), client_trainer, train)
    thetas = federation.weights.numpy()
    for data, seen in ((train, True), (unseen, False)):
        served = federation.serve(data, seen=seen).mixture
        expected = [estimate(thetas, x, y) for x, y in as_arrays(data)]
        assert torch.equal(served, torch.eye(4, dtype=torch.float64)[expected])
        for found, j, (x, _) in zip(federation.predictions(data, seen=seen), expected, as_arrays(data), strict=True):
            np.testing.assert_allclose(found.exp().numpy(), predict(thetas[j], x), rtol=0, atol=1e-10)


def test_a_client_without_samples_gets_the_first_cluster(client_trainer):
    federation = run_rounds(IFCA(3), client_trainer, make_clients([5, 2]))
    served = federation.serve(make_clients([0, 4], first_id=2), seen=False)
    assert served.mixture[0].tolist() == [1, 0, 0]


@pytest.mark.parametrize(("clusters", "id_bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_traffic(clusters, id_bits):
    task = make_task(dtype=torch.float32)
    federation = run_rounds(IFCA(clusters), None, make_clients([5, 2], dtype=torch.float32), rounds=1, task=task)
    assert federation.bits.tolist() == [2 * (5 * 32 + id_bits), 2 * clusters * 5 * 32]


def test_shared_layers_go_down_once():
    federation = shared_layers(1)
    federation.round([0, 1])
    first, head = 64 * (4 * 3 + 3), 64 * (3 * 3 + 3)
    assert federation.bits.tolist() == [2 * (first + head + 2), 2 * (first + 3 * head)]


def test_options():
    assert IFCA().participation.weighting == "uniform"
    assert IFCA(5).num_models == 5
    federation = Federation(IFCA(), make_clients([5]))
    (model,), (gradient,) = (
        one.phases(federation.context("plan"), torch.arange(1)) for one in (IFCA(), IFCA(2, "gradient"))
    )
    assert (model.work, gradient.work) == (LocalWork(epochs=1), LocalWork(steps=1, batch_size=0))
    assert flat(federation.shared.models.parameters).unique(dim=0).shape[0] == 4


def test_more_layers_than_there_are_are_refused():
    with pytest.raises(ConfigError, match=r"--model\.algorithm\.clustered_layers is 3"):
        shared_layers(3)
