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
    make_context,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from references.clustered_fl_numpy import clustered_round, place
from references.logistic import predict

from lit_fed.algorithms import ClusteredFL, FedAvg
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork, ModelState, Reduced, Split

SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}]
SIZES = [5, 2, 8, 6, 4, 3]
EAGER = {"relative": True, "mean_norm_below": 0.95, "max_norm_above": 0.0, "warmup_rounds": 0}


def clusters(federation):
    """Sets of the clients that are together."""
    found = federation.shared.cluster.tolist()
    return {frozenset(i for i, own in enumerate(found) if own == c) for c in set(found)}


def grouped(groups, num_samples=40, seed=0, first_id=0, noise=0.0):
    """Clients whose labels are those of their group's hyperplane: 0 and 1 are opposite, and so are 2 and 3."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(len(groups) * num_samples, 4, generator=rng, dtype=torch.float64)
    normals = torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0], [0, 3, 0, 0], [0, -3, 0, 0]], dtype=torch.float64)
    scores = (x * normals[torch.tensor(groups).repeat_interleave(num_samples)]).sum(1)
    scores = scores + noise * torch.randn(len(scores), generator=rng, dtype=torch.float64)
    return Split(x, (scores > 0).long(), torch.arange(0, len(x) + 1, num_samples), first_id)


def partition(groups):
    return {frozenset(i for i, one in enumerate(groups) if one == g) for g in set(groups)}


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize(("share", "most"), [(0.95, 8), (0.95, 3), (0.7, 8)])
def test_rounds_are_those_of_the_reference(options, share, most, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1, 2, 2], seed=1)
    unseen = make_clients([6, 5, 7, 3, 4], seed=2, first_id=6)
    algorithm = ClusteredFL(**EAGER | {"mean_norm_below": share, "max_clusters": most}, min_cluster_size=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    found, splits = [(federation.weights[0].numpy(), list(range(6)))], []
    for _ in range(4):
        orders = batch_orders(federation)
        found, new = clustered_round(
            found, as_arrays(train), orders, eps1=share, eps2=0.0, most=most, min_size=1, **options
        )
        splits += new
        federation.round()
        assert federation.shared.cluster.tolist() == [
            next(c for c, (_, members) in enumerate(found) if i in members) for i in range(6)
        ]
        expected = np.stack([theta for theta, _ in found])
        np.testing.assert_allclose(federation.weights[: len(found)].numpy(), expected, rtol=0, atol=1e-10)
    assert len(found) > 1
    for found_here, c, (x, _) in zip(
        federation.predictions(test), federation.shared.cluster.tolist(), as_arrays(test), strict=True
    ):
        np.testing.assert_allclose(found_here.exp().numpy(), predict(found[c][0], x), rtol=0, atol=1e-10)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen)
    places = [place(splits, x, y, own, **options) for (x, y), own in zip(as_arrays(unseen), orders, strict=True)]
    assert federation.serve(unseen, seen=False).mixture.argmax(1).tolist() == places


# ---------------------------------------------------------------------- by hand
def pulled(**fields):
    """A round on the losses ½(w − c)² of centres 1, 1, −1, −1 from 0: updates ±0.1, their mean 0."""
    train, task = quadratics([1, 1, 1, 1], [1, -1, 1, -1]), make_task(REGRESSION, 1, Scale)
    algorithm = ClusteredFL(**{"mean_norm_below": 0.05, "max_norm_above": 0.09, "warmup_rounds": 0} | fields)
    return run_rounds(algorithm, None, train, rounds=1, task=task, solver=LocalSolver(lr=0.1))


def test_a_split_by_hand():
    federation = pulled()
    assert federation.shared.cluster.tolist() == [0, 1, 0, 1]
    assert federation.weights[:3, 0].tolist() == pytest.approx([0.1, -0.1, 0.0], abs=1e-12)
    assert federation.shared.splits.parent.tolist() == [0, *[-1] * 6]
    assert federation.shared.splits.side[0].tolist() == [1, 2, 1, 2]
    assert federation.shared.splits.updates["weight"][0, :, 0].tolist() == pytest.approx([0.1, -0.1, 0.1, -0.1])
    assert federation.shared.splits.models.parameters["weight"][0].tolist() == [0.0]


def test_the_average_is_weighted_by_samples():
    """Updates +0.1 of three samples and −0.3 of one sample: weighted mean 0, plain mean −0.1."""
    train = Split(
        torch.ones(8, 1, dtype=torch.float64), torch.tensor([1.0, 1, 1, -3, 1, 1, 1, -3], dtype=torch.float64),
        torch.tensor([0, 3, 4, 7, 8]),
    )  # fmt: skip
    algorithm = ClusteredFL(mean_norm_below=0.05, max_norm_above=0.2, warmup_rounds=0)
    options = {"task": make_task(REGRESSION, 1, Scale), "solver": LocalSolver(lr=0.1), "rounds": 1}
    weighted, plain = (run_rounds(algorithm, None, train, weighting=one, **options) for one in ("samples", "uniform"))
    assert weighted.shared.cluster.tolist() == [0, 1, 0, 1]
    assert plain.shared.cluster.tolist() == [0, 0, 0, 0]


def test_an_unseen_client_never_takes_a_cluster_that_does_not_exist(client_trainer):
    """Where the initial model, which stands in the place of clusters to come, would fit best."""
    federation = pulled(newcomers="loss")
    federation.trainer = client_trainer
    unseen = quadratics([1, 1], [0.01, -0.01])
    unseen = Split(unseen.x, unseen.y, unseen.offsets, first_id=4)
    assert federation.serve(unseen, seen=False).mixture.argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize(("linkage", "expected"), [("single", [0, 0, 0, 1]), ("complete", [0, 0, 1, 1])])
def test_linkage_by_hand(linkage, expected):
    """Updates at 0°, 40°, 85° and 140°: the widest gap is the last; the tightest pairs are the first and the last."""
    algorithm, ctx = ClusteredFL(**EAGER, linkage=linkage), make_context(make_task(MULTICLASS, 1, Scale), num_clients=4)
    angles = torch.tensor([0.0, 40, 85, 140], dtype=torch.float64).deg2rad()
    updates = torch.stack([angles.cos(), angles.sin(), 0 * angles], 1).unsqueeze(1)  # from 0, [4, 1, 3]
    reduced = Reduced(ModelState({"weight": updates}, {}), torch.ones(4, dtype=torch.float64))
    shared = algorithm.server_step(ctx, algorithm.shared_init(ctx), reduced, torch.arange(4))
    assert shared.cluster.tolist() == expected


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_tolerance_it_is_fedavg(options, trainer, weighting):
    algorithm = ClusteredFL(mean_norm_below=0.0, max_norm_above=0.0, warmup_rounds=0)
    for dtype in (torch.float32, torch.float64):
        train = make_clients(SIZES, dtype=dtype)
        shared = {"solver": LocalSolver(**options), "task": make_task(dtype=dtype), "weighting": weighting}
        one, plain = (run_rounds(kind, trainer(), train, **shared) for kind in (algorithm, FedAvg()))
        first = tree.index(one.shared.models, slice(0, 1))
        if dtype == torch.float32:  # sums in float64 differ in their order alone
            assert same_bits(first, plain.shared.models)
            assert distance(one.predictions(), plain.predictions()) < 1e-6  # products of other shapes
        assert distance(first, plain.shared.models) < 1e-14
        assert one.shared.cluster.tolist() == [0] * len(SIZES)


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_the_first_split_recovers_clients_of_opposite_labels(linkage, client_trainer):
    groups = [0, 1, 1, 0, 1, 0]
    algorithm = ClusteredFL(**EAGER | {"mean_norm_below": 0.5}, linkage=linkage)
    federation = Federation(algorithm, grouped(groups), trainer=client_trainer, num_rounds=9)
    while federation.shared.cluster.max() == 0:
        assert federation.round_idx < 8
        federation.round()
    assert clusters(federation) == partition(groups)


def four_groups(client_trainer=None, **fields):
    groups = [0, 3, 1, 2, 0, 1, 2, 3, 3, 1]
    algorithm = ClusteredFL(**EAGER | {"mean_norm_below": 0.4} | fields)
    solver = LocalSolver(lr=1.0, local_epochs=2)
    return groups, run_rounds(algorithm, client_trainer, grouped(groups), rounds=12, solver=solver, batch_size=20)


@pytest.mark.parametrize("newcomers", ["tree", "loss"])
def test_four_groups_are_found_and_unseen_clients_join_them(newcomers, client_trainer):
    groups, federation = four_groups(client_trainer, newcomers=newcomers)
    assert clusters(federation) == partition(groups)
    theirs = [2, 0, 3, 1, 1, 3]
    unseen = grouped(theirs, seed=5, first_id=len(groups))
    served = federation.serve(unseen, seen=False).mixture
    expected = [int(federation.shared.cluster[groups.index(g)]) for g in theirs]
    assert torch.equal(served, torch.eye(8, dtype=torch.float64)[expected])
    table = federation.evaluate(unseen, seen=False)
    assert float(table[:, 2].sum() / table[:, 0].sum()) > 0.85


def test_a_leaf_is_fedavg_over_its_clients(client_trainer):
    _, federation = four_groups(client_trainer)
    train, solver = federation.train, federation.solver
    before = federation.shared
    federation.round()
    assert torch.equal(federation.shared.cluster, before.cluster)
    for c in range(4):
        alone = Federation(FedAvg(), train, trainer=client_trainer, solver=solver, batch_size=20)
        alone.shared = alone.shared._replace(models=tree.index(before.models, slice(c, c + 1)))
        alone.round_idx = federation.round_idx - 1
        alone.round((before.cluster == c).nonzero()[:, 0])
        assert distance(federation.weights[c], alone.weights[0]) < 1e-12


# ---------------------------------------------------------------------- state, serving, traffic
def test_a_seen_client_is_served_by_its_cluster_right_after_the_split(client_trainer):
    groups = [0, 1, 1, 0, 1, 0]
    federation = run_rounds(ClusteredFL(**EAGER | {"mean_norm_below": 0.5}), client_trainer, grouped(groups), rounds=0)
    while federation.shared.cluster.max() == 0:
        federation.round()
    assert (federation.states.mixture[:, 0] == 1).all()  # what it trained in
    served = federation.serve().mixture
    assert torch.equal(served, torch.eye(8, dtype=torch.float64)[federation.shared.cluster])
    expected = torch.stack(
        [federation.task.outputs(federation.shared.models, federation.train.x)[:, c, 0] for c in range(2)]
    )
    for i, prediction in enumerate(federation.predictions()):
        rows = expected[federation.shared.cluster[i], 40 * i : 40 * (i + 1)].sigmoid()
        assert distance(prediction[:, 1].exp(), rows) < 1e-12


def test_before_any_split_unseen_clients_get_the_first_model(client_trainer):
    federation = run_rounds(ClusteredFL(), client_trainer, make_clients(SIZES))
    plain = run_rounds(FedAvg(), client_trainer, make_clients(SIZES))
    unseen = make_clients([4, 0, 3], seed=2, first_id=6)
    assert federation.serve(unseen, seen=False).mixture.argmax(1).tolist() == [0, 0, 0]
    both = (one.predictions(unseen, seen=False) for one in (federation, plain))
    assert distance(*both) < 1e-12


def test_without_memory_of_splits_nothing_is_kept():
    _, federation = four_groups(newcomers="loss")
    assert all(not leaf.numel() for leaf in tree.leaves(federation.shared.splits))
    _, remembered = four_groups()
    assert same_bits(federation.shared.models, remembered.shared.models)


def test_one_model_goes_each_way():
    task = make_task(dtype=torch.float32)
    algorithm = ClusteredFL(**EAGER)
    federation = run_rounds(algorithm, None, make_clients(SIZES, dtype=torch.float32), rounds=3, task=task)
    assert federation.bits.tolist() == [6 * 5 * 32, 6 * (5 * 32 + 64)]  # with the number of the cluster


def test_what_it_asks_of_a_run():
    assert ClusteredFL.participation.needs_all_clients
    assert ClusteredFL.message.reduce == "stack"
    assert ClusteredFL(5).num_models == 5
    assert flat(Federation(ClusteredFL(), make_clients([5])).states).tolist() == [[1.0, *[0.0] * 7]]
