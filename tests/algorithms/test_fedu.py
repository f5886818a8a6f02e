import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
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
    reordered,
    run_rounds,
    same_bits,
    small_mlp,
)
from normalised import NormalisedMLP
from references.fedu_numpy import fedu_round, fixed_point
from references.local_numpy import local_round
from references.logistic import predict

from lit_fed.algorithms import FedU, Local
from lit_fed.core import tree
from lit_fed.core.graphs.topology import Complete, GraphFile, PathGraph, TimeVarying, adjacency
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError
from lit_fed.models import Linear

SIZES = [5, 2, 8, 4]
SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}, {"lr": 0.05, "optimizer": "adam"}]
CHAIN = np.eye(4, k=1) + np.eye(4, k=-1)


def rows(federation):
    """The models of all clients, [T, d + 1]."""
    return flat(federation.shared.parameters).numpy()


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS[:2], ids=str)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("exchange", ["server", "decentralized"])
def test_rounds_are_those_of_the_reference(options, weighting, exchange, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1], seed=1)
    settings = {"solver": LocalSolver(local_steps=3, **options), "weighting": weighting, "batch_size": 2}
    algorithm = FedU(0.2, topology=PathGraph(), exchange=exchange)
    federation = Federation(algorithm, train, trainer=client_trainer, **settings)
    shares = 4 * np.array(SIZES) / sum(SIZES) if weighting == "samples" else None
    models = rows(federation)
    for _ in range(3):
        orders = batch_orders(federation)
        strength = 0.2 * 3 * options["lr"]
        models = fedu_round(models, as_arrays(train), orders, CHAIN, strength, shares=shares, **options)
        federation.round()
        np.testing.assert_allclose(rows(federation), models, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.shared.mean.parameters)[0], models.mean(axis=0), rtol=0, atol=1e-10)
    for found, one, (x, _) in zip(federation.predictions(test), models, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(one, x), rtol=0, atol=1e-10)


def test_rounds_of_some_clients_are_those_of_the_reference(client_trainer):
    """The pull goes between those that take part, at the learning rate of the round."""
    train, solver = make_clients(SIZES), LocalSolver(lr=0.4, local_steps=2, schedule="linear")
    federation = Federation(FedU(0.2), train, solver=solver, trainer=client_trainer, num_rounds=4)
    models, complete = rows(federation), np.ones((4, 4)) - np.eye(4)
    for round_idx, cohort in enumerate(([0, 1, 2, 3], [3, 0, 0], [2], [1, 2, 3])):
        orders = [own if one in cohort else None for one, own in enumerate(batch_orders(federation))]
        lr = 0.4 / (round_idx + 1)
        models = fedu_round(models, as_arrays(train), orders, complete, 0.2 * 2 * lr, lr=lr)
        federation.round(cohort)
        np.testing.assert_allclose(rows(federation), models, rtol=0, atol=1e-10)


def test_with_epochs_the_pull_takes_the_steps_of_the_largest_client(client_trainer):
    """Eight samples in batches of three are three steps a pass; a batch size of 0 makes it one."""
    train = make_clients(SIZES)
    for batch_size, steps in ((3, 3), (0, 1), (8, 1)):
        options = {"solver": LocalSolver(lr=0.1, local_epochs=2), "trainer": client_trainer, "batch_size": batch_size}
        federation = Federation(FedU(0.3, topology=PathGraph()), train, **options)
        models, orders = rows(federation), batch_orders(federation)
        models = fedu_round(models, as_arrays(train), orders, CHAIN, 0.3 * 0.1 * 2 * steps, lr=0.1)
        federation.round()
        np.testing.assert_allclose(rows(federation), models, rtol=0, atol=1e-10)


def test_graphs_may_change_from_round_to_round(client_trainer):
    train, changing = make_clients(SIZES), TimeVarying(Complete(), edge_fraction=0.5)
    algorithm = FedU(0.5, topology=changing, exchange="decentralized")
    federation = Federation(algorithm, train, solver=LocalSolver(local_steps=2), trainer=client_trainer)
    models, seen = rows(federation), set()
    for round_idx in range(4):
        edges = adjacency(changing, 4, 0, round_idx).numpy()
        seen.add(edges.tobytes())
        models = fedu_round(models, as_arrays(train), batch_orders(federation), edges, 0.5 * 2 * 0.1, lr=0.1)
        federation.round()
        np.testing.assert_allclose(rows(federation), models, rtol=0, atol=1e-10)
        assert federation.bits.tolist() == [edges.sum() * 5 * 64] * 2
    assert len(seen) > 1


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("target", "network"), [(BINARY, Linear), (MULTICLASS, small_mlp)], ids=["linear", "mlp"])
def test_without_a_pull_it_is_local_bit_for_bit(solver, dtype, target, network, trainer):
    options = {
        "train": make_clients(SIZES, target=target, dtype=dtype), "solver": LocalSolver(**solver, local_epochs=2),
        "task": make_task(target, network=network, dtype=dtype), "batch_size": 3, "trainer": trainer,
        "cohorts": [[0, 1, 2, 3], [2, 0], [3, 1]],
    }  # fmt: skip
    ours, local = (run_rounds(one, **options) for one in (FedU(0.0), Local()))
    assert same_bits(ours.shared.each, local.states.models)
    assert same_bits(ours.predictions(), local.predictions())


# ---------------------------------------------------------------------- the solution by hand
def rest(weight, lr, curvatures, centres, edges):
    """Where models rest under one step on ½a(w − c)² in each round, [T]."""
    curvatures, centres = np.array(curvatures, dtype=float), np.array(centres, dtype=float)
    found = fixed_point(curvatures[:, None, None], (curvatures * centres)[:, None], edges, weight * lr, lr)
    return found[:, 0]


@pytest.mark.parametrize("lr", [0.1, 1e-6])
def test_each_pair_counts_once(lr, client_trainer):
    """The rest is ∇f_i + η·Σ_j a_ij·(w_i − w_j) = 0 for small steps; counting pairs twice would double η."""
    curvatures, centres, weight = np.array([1.0, 3.0, 2.0]), np.array([0.0, 4.0, -1.0]), 0.7
    edges = np.eye(3, k=1) + np.eye(3, k=-1)
    options = {"solver": LocalSolver(lr=lr, local_steps=1), "task": make_task(REGRESSION, 1, Scale)}
    algorithm = FedU(weight, topology=PathGraph())
    federation = Federation(algorithm, quadratics(curvatures, centres), trainer=client_trainer, **options)
    found = rest(weight, lr, curvatures, centres, edges)
    federation.shared = federation.shared._replace(parameters={"weight": torch.from_numpy(found)[:, None, None]})
    federation.round()
    np.testing.assert_allclose(rows(federation)[:, 0], found, rtol=0, atol=1e-14)
    if lr < 1e-3:
        slope, pull = curvatures * (found - centres), (np.diag(edges.sum(axis=1)) - edges) @ found
        np.testing.assert_allclose(slope + weight * pull, 0, atol=1e-5)
        assert np.abs(slope + 2 * weight * pull).max() > 0.1


@pytest.mark.parametrize(("weight", "stays"), [(0.99, True), (1.0, False)])
def test_the_bound_is_sharp(weight, stays):
    """Two clients and one step with the rate 1: λ_max is 2, and the bound 1; a gap is multiplied by 1 − 2η."""
    options = {"task": make_task(REGRESSION, 1, Scale), "solver": LocalSolver(lr=1.0, local_steps=1)}
    federation = Federation(FedU(weight), quadratics([0, 0], [0, 0]), **options)
    federation.shared = federation.shared._replace(
        parameters={"weight": torch.tensor([[[-1.0]], [[1.0]]], dtype=torch.float64)}
    )
    if not stays:
        with pytest.raises(ConfigError, match=r"laplacian_weight is 1\.0, .* give a number below 1,"):
            federation.round()
        return
    federation.round()
    assert rows(federation)[:, 0] == pytest.approx([0.98, -0.98])


@pytest.mark.parametrize(("cohort", "weight"), [([0, 1, 2, 3], 1.24), ([0, 2], 2.49)], ids=str)
def test_what_would_diverge_is_refused_before_training(cohort, weight):
    """λ_max of the complete graph of n clients is n; here μ̃ = 0.4, so that 2/(0.4n) is the bound."""
    solver = LocalSolver(lr=0.2, local_steps=2)
    federation = Federation(FedU(weight), make_clients(SIZES), solver=solver)
    federation.round(cohort)
    federation = Federation(FedU(weight + 0.02), make_clients(SIZES), solver=solver)
    with pytest.raises(ConfigError, match=rf"a number below {2 / (0.4 * len(cohort)):.3g}, or a lower learning rate"):
        federation.round(cohort)
    assert federation.round_idx == 0


def test_the_bound_is_that_of_the_graph():
    """The chain of four has λ_max = 2 + √2."""
    solver, bound = LocalSolver(lr=0.5, local_steps=1), 2 / (0.5 * (2 + 2**0.5))
    Federation(FedU(0.999 * bound, topology=PathGraph()), make_clients(SIZES), solver=solver).round()
    with pytest.raises(ConfigError, match=f"below {bound:.3g}"):
        Federation(FedU(1.001 * bound, topology=PathGraph()), make_clients(SIZES), solver=solver).round()


# ---------------------------------------------------------------------- who takes part, and what it costs
@pytest.mark.parametrize(
    ("exchange", "cohort", "models"),
    [
        ("server", [0, 1, 2, 3], 4),
        ("server", [0, 2], 2),
        ("server", [1, 1], 1),
        ("decentralized", [0, 1, 2, 3], 6),
        ("decentralized", [0, 1, 3], 2),
        ("decentralized", [0, 2], 0),
    ],
    ids=str,
)
def test_one_model_goes_each_way(exchange, cohort, models, client_trainer):
    """By way of the server for each client that takes part, else along each edge of a chain between them."""
    task, train = make_task(dtype=torch.float32), make_clients(SIZES, dtype=torch.float32)
    algorithm = FedU(topology=PathGraph(), exchange=exchange)
    federation = run_rounds(algorithm, client_trainer, train, task=task, rounds=1, cohorts=[cohort])
    assert federation.bits.tolist() == [models * 5 * 32] * 2
    sent = algorithm.num_payloads(federation.context("train"), federation.shared, len(cohort))
    assert sent == (len(cohort) if exchange == "server" else 0)
    assert algorithm.has_server == (exchange == "server")


def test_the_exchange_does_not_change_the_numbers(trainer):
    one, other = (
        run_rounds(FedU(0.3, exchange=how), trainer, make_clients(SIZES)) for how in ("server", "decentralized")
    )
    assert same_bits((one.shared, one.states), (other.shared, other.states))


def test_running_statistics_stay_with_their_client(trainer):
    """A pull past the mean has negative weights, with which mixed variances could fall below 0."""
    options = {"train": make_clients([6, 9, 3]), "task": make_task(network=NormalisedMLP), "trainer": trainer}
    solver = LocalSolver(lr=0.1, local_steps=4)
    pulled, free = (run_rounds(FedU(weight), solver=solver, rounds=1, **options) for weight in (1.4, 0.0))
    assert same_bits(pulled.shared.buffers, free.shared.buffers)
    assert distance(pulled.shared.parameters, free.shared.parameters) > 1e-3
    assert pulled.bits.tolist() == [3 * 64 * (4 * 8 + 8 + 8 + 8 + 8 + 1)] * 2


def test_clients_under_other_numbers(tmp_path, client_trainer):
    order = torch.tensor([2, 0, 3, 1])  # new client k is the old client order[k]
    new = {old: k for k, old in enumerate(order.tolist())}
    (tmp_path / "edges").write_text("".join(f"{new[one]} {new[one + 1]}\n" for one in range(3)))
    train = make_clients(SIZES)
    renamed = reordered(train, order)
    options = {"trainer": client_trainer, "batch_size": 0, "solver": LocalSolver(lr=0.3, local_epochs=2)}
    for topologies in ((Complete(), Complete()), (PathGraph(), GraphFile(str(tmp_path / "edges")))):
        old, other = (
            run_rounds(FedU(0.4, topology=topology), train=data, **options)
            for topology, data in zip(topologies, (train, renamed), strict=True)
        )
        assert distance(tree.index(old.shared.each, order), other.shared.each) < 1e-12
        predictions = old.predictions()
        assert distance([predictions[one] for one in order.tolist()], other.predictions()) < 1e-12


# ---------------------------------------------------------------------- serving, and settings
@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_an_unseen_client_trains_from_the_mean(epochs, weighting, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=4)
    solver = LocalSolver(local_epochs=epochs)
    federation = run_rounds(FedU(0.3), client_trainer, train, weighting=weighting, solver=solver)
    mean = rows(federation).mean(axis=0)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    expected = local_round([mean] * 2, as_arrays(unseen), orders, lr=0.1)
    served = federation.serve(unseen, seen=False)
    np.testing.assert_allclose(flat(served.tuned.parameters).numpy(), expected, rtol=0, atol=1e-10)
    for found, theta, (x, _) in zip(
        federation.predictions(unseen, seen=False), expected, as_arrays(unseen), strict=True
    ):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


def test_an_unseen_client_without_samples_gets_the_mean(client_trainer):
    federation = run_rounds(FedU(0.3), client_trainer, make_clients(SIZES))
    served = federation.serve(make_clients([0], first_id=4), seen=False)
    assert same_bits(tree.index(served.tuned, 0), federation.shared.mean)


def test_seen_clients_are_served_with_their_models_as_they_are():
    federation = run_rounds(FedU(), None, make_clients(SIZES))
    assert same_bits(federation.serve(), federation.states)
    assert [leaf.shape for leaf in tree.leaves(federation.states)] == [(4,)]


def test_the_picture_shows_the_graph():
    federation = Federation(FedU(topology=PathGraph()), make_clients(SIZES))
    found = federation.algorithm.collaboration(federation.context("train"), federation.shared, federation.states)
    assert found.tolist() == CHAIN.tolist()
