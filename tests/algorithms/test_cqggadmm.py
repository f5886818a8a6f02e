import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    NormalisedLinear,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    least_squares,
    make_clients,
    make_task,
    quadratics,
    reordered,
    run_rounds,
    same_bits,
)
from references.cqggadmm_numpy import cqggadmm_round
from references.logistic import predict

from lit_fed.algorithms import CQGGADMM, GADMM
from lit_fed.clients import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.graphs.topology import (
    Bipartite,
    Complete,
    GraphFile,
    Grid,
    PathGraph,
    Ring,
    Star,
    TimeVarying,
    adjacency,
)
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import uniforms
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8, 3, 4]
EXACT = {"local_solve": "exact"}
FULL = {"bits": 0, "censor_threshold": 0.0}  # GGADMM
CENSORED = {"bits": 0, "censor_threshold": 0.5, "censor_decay": 0.9}  # C-GGADMM
QUANTISED = {"bits": 2, "censor_threshold": 0.0}  # Q-GGADMM
BOTH = {"bits": 2, "censor_threshold": 0.5, "censor_decay": 0.9}


def models(federation):
    """θ_i as rows, [T, d + 1]."""
    return flat(federation.states.models.parameters)


def heard(federation):
    """θ̂_i as rows, [T, d + 1]."""
    return flat(federation.shared.network.peers.parameters)


def duals(federation):
    """α_i as rows, [T, d + 1]."""
    return flat(federation.shared.network.dual)


def run_reference(federation, rounds, solver=None, samples=False):
    """Rounds of federation and reference side by side; who has sent in each of them."""
    algorithm, num = federation.algorithm, federation.train.num_clients
    edges = adjacency(algorithm.topology, num, federation.seed, 0).numpy()
    phases = {phase.name: phase.client_ids for phase in algorithm.phases(federation.context("plan"), torch.arange(num))}
    thetas = list(models(federation).numpy())
    hats, alphas, grids, record = list(thetas), [0 * one for one in thetas], [(0.0, algorithm.bits)] * num, []
    for t in range(rounds):
        random = [uniforms(federation.seed, t, torch.tensor(one), "quantise", len(thetas[0])) for one in range(num)]
        batches = {group: batch_orders(federation, group) for group in ("heads", "tails")}
        thetas, hats, alphas, grids, sent = cqggadmm_round(
            thetas, hats, alphas, grids, as_arrays(federation.train), batches, [one.numpy() for one in random],
            edges=edges, heads=[one in phases["heads"].tolist() for one in range(num)], rho=algorithm.penalty_weight,
            k=t + 1, bits=algorithm.bits, omega=algorithm.bit_decay, tau=algorithm.censor_threshold,
            xi=algorithm.censor_decay, samples=samples, solver=solver,
        )  # fmt: skip
        federation.round()
        for found, expected in (
            (models(federation), thetas),
            (heard(federation), hats),
            (duals(federation), alphas),
            (torch.stack([federation.states.grid.radius, federation.states.grid.bits], 1), grids),
        ):
            np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=0, atol=1e-9)
        assert ((federation.shared.cost > 1).tolist()) == sent
        record.append(sent)
    return thetas, np.array(record)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.3}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_inexact_rounds_are_those_of_the_reference(options, weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1, 2], seed=1)
    federation = Federation(
        CQGGADMM(0.3, **BOTH), train, solver=LocalSolver(**options), trainer=client_trainer, batch_size=2,
        weighting=weighting,
    )  # fmt: skip
    thetas, sent = run_reference(federation, 4, options, weighting == "samples")
    assert 0 < sent.sum() < sent.size
    for found, theta, (x, _) in zip(federation.predictions(test), thetas, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "topology"),
    [(FULL, Star(1)), (CENSORED, Bipartite(0.6)), (QUANTISED, Bipartite(0.6)), (BOTH, Star(1))],
    ids=["GG", "C", "Q", "CQ"],
)
def test_exact_rounds_are_those_of_the_reference(options, topology, client_trainer):
    algorithm = CQGGADMM(0.5, topology, **options, **EXACT)
    federation = Federation(algorithm, make_clients(SIZES), trainer=client_trainer)
    _, sent = run_reference(federation, 3)
    assert sent.all() == (options["censor_threshold"] == 0)


# ---------------------------------------------------------------------- GADMM
@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:4]], ids=["odd", "even"])
def test_in_full_on_a_path_it_is_gadmm(sizes, local_solve, client_trainer, newton_step):
    solver = LocalSolver(lr=0.2, momentum=0.9, local_epochs=2)
    one, other = (
        run_rounds(algorithm, client_trainer, make_clients(sizes), solver=solver, batch_size=2)
        for algorithm in (
            CQGGADMM(0.7, PathGraph(), **FULL, local_solve=local_solve), GADMM(0.7, local_solve=local_solve)
        )
    )  # fmt: skip
    assert same_bits(one.shared.network, other.shared)
    assert same_bits(one.states.models, other.states.models)
    assert one.bits.tolist() == other.bits.tolist()


def test_first_rounds_on_two_quadratics():
    """½x² and ½·3(x − 4)², from 0, with ρ = 1."""
    task, train = make_task(REGRESSION, num_features=1, network=Scale), quadratics([1.0, 3.0], [0.0, 4.0])
    for rounds, x in ((1, [0, 3]), (2, [3, 3])):
        federation = run_rounds(CQGGADMM(1.0, **FULL, **EXACT), None, train, rounds=rounds, task=task)
        assert models(federation)[:, 0].tolist() == pytest.approx(x, abs=1e-12)
        assert duals(federation)[:, 0].tolist() == pytest.approx([-3, 3], abs=1e-12)


# ---------------------------------------------------------------------- the optimum
SIX = [6, 9, 12, 5, 7, 8]


def six_regressions(rounds, weighting="uniform", **options):
    """The largest error of a client's model, the transmissions, the bits sent and the largest |Σ α| on the way."""
    train = make_clients(SIX, num_features=3, target=REGRESSION)
    algorithm = CQGGADMM(1.0, Bipartite(0.6), **options, **EXACT)
    task = make_task(REGRESSION, num_features=3)
    federation = Federation(algorithm, train, task, trainer=VectorizedTrainer(), num_rounds=rounds, weighting=weighting)
    sent = bits = drift = 0
    for _ in range(rounds):
        federation.round()
        sent, bits = sent + int((federation.shared.cost > 1).sum()), bits + float(federation.bits[0])
        drift = max(drift, float(duals(federation).sum(0).abs().max()))
    optimum = least_squares(train, [len(y) if weighting == "samples" else 1 for _, y in as_arrays(train)])
    return float((models(federation) - torch.from_numpy(optimum)).abs().max()), sent, bits, drift


def test_censoring_saves_most_messages_and_costs_no_accuracy(newton_step):
    """The error follows the threshold: after 60 rounds with ξ = 0.85 that is 6e-5."""
    error, sent, bits, drift = six_regressions(60, bits=0, censor_threshold=1.0, censor_decay=0.85)
    assert error < 3e-4
    assert sent < 0.5 * 6 * 60
    assert bits == sent * 4 * 64 + (6 * 60 - sent)
    assert drift < 1e-12


# ---------------------------------------------------------------------- censoring
def test_the_threshold_falls_round_by_round(client_trainer):
    """A change that stays the same goes out once τ_0·ξ^k has come down to it, and not before."""
    task, train = make_task(REGRESSION, num_features=1, network=Scale), quadratics([1.0, 1.0], [1.0, -1.0])
    algorithm = CQGGADMM(1e-9, **FULL | {"censor_threshold": 2.0, "censor_decay": 0.8}, **EXACT)
    federation = Federation(algorithm, train, task, trainer=client_trainer)
    shares = []
    for _ in range(5):
        federation.round()
        shares.append(federation.metrics["transmissions"])
    assert shares == [0, 0, 0, 1, 0]  # 2·0.8^3 > 1 > 2·0.8^4, and then nothing moves any more


# ---------------------------------------------------------------------- traffic
def test_bits_up_and_down(client_trainer):
    """Five numbers in b bits, R in 32 and b in 5; heads hear of tails a round later."""
    algorithm = CQGGADMM(0.3, Star(), **QUANTISED)
    federation = Federation(algorithm, make_clients(SIZES), trainer=client_trainer)
    spent = torch.zeros(5, dtype=torch.float64)
    for _ in range(3):
        federation.round()
        cost = 5 * federation.states.grid.bits + 37
        assert federation.shared.cost.tolist() == cost.tolist()
        assert federation.bits.tolist() == [float(cost.sum()), float(spent[1:].sum() + 4 * cost[0])]
        spent = cost
    assert federation.states.grid.bits.unique().numel() > 1


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_spacing_falls_from_change_to_change(decay, client_trainer):
    federation = Federation(CQGGADMM(0.3, bit_decay=decay, **QUANTISED), make_clients(SIZES), trainer=client_trainer)
    last = None
    for _ in range(5):
        federation.round()
        radius, bits = federation.states.grid
        spacing = 2 * radius / (2**bits - 1)
        assert last is None or bool((spacing <= decay * last * (1 + 1e-12)).all())
        assert bool((bits >= 1).all())
        last = spacing


def test_bits_end_at_32():
    algorithm = CQGGADMM(0.3, bit_decay=1e-6, **QUANTISED)
    assert run_rounds(algorithm, None, make_clients(SIZES), rounds=3).states.grid.bits.tolist() == [32] * 5


def test_running_statistics_are_sent_in_full_and_with_the_model(client_trainer):
    train, task = make_clients([6, 4, 8]), make_task(network=NormalisedLinear)
    for options, told in ((QUANTISED, True), ({"censor_threshold": 1e6}, False)):
        federation = run_rounds(CQGGADMM(**options), client_trainer, train, rounds=1, task=task, batch_size=0)
        own, known = (one["norm.running_mean"] for one in (
            federation.states.models.buffers, federation.shared.network.peers.buffers
        ))  # fmt: skip
        assert same_bits(own, known) == told
    assert distance(own, known) > 1e-3
    cost = run_rounds(CQGGADMM(**QUANTISED), None, train, rounds=1, task=task, batch_size=0).shared.cost
    assert cost.tolist() == [13 * 2 + 37 + 2 * 4 * 64 + 64] * 3


# ---------------------------------------------------------------------- graphs, serving
def test_clients_under_other_names_with_the_graph_renamed(client_trainer, tmp_path):
    edges = [(0, 1), (0, 3), (2, 3), (4, 3), (4, 1)]
    order = [2, 3, 0, 1, 4]  # whom each new name stands for; the first of them is a head again
    train = make_clients(SIZES)
    renamed = reordered(train, order)
    (tmp_path / "one").write_text("".join(f"{a} {b}\n" for a, b in edges))
    (tmp_path / "other").write_text("".join(f"{order.index(a)} {order.index(b)}\n" for a, b in edges))
    one, other = (
        run_rounds(
            CQGGADMM(0.5, GraphFile(str(tmp_path / name)), bits=0, censor_threshold=0.2, censor_decay=0.8),
            client_trainer, data, rounds=4, batch_size=0, solver=LocalSolver(lr=0.5, momentum=0.5),
        )
        for name, data in (("one", train), ("other", renamed))
    )  # fmt: skip
    assert float(duals(one).abs().max()) > 1e-2
    assert distance(models(one), heard(one)) > 1e-2
    assert distance(tree.index(one.states, torch.tensor(order)), other.states) < 1e-10
    assert distance(duals(one)[order], duals(other)) < 1e-10
    assert distance(heard(one)[order], heard(other)) < 1e-10


@pytest.mark.parametrize("topology", [Complete(), Ring(), Grid(periodic=True)], ids=str)
def test_graphs_with_odd_cycles_are_refused_before_training(topology):
    with pytest.raises(ConfigError, match=r"--model\.algorithm\.topology has a cycle of odd length"):
        Federation(CQGGADMM(topology=topology), make_clients([2] * 9))


def test_graphs_that_change_are_refused():
    with pytest.raises(ConfigError, match=r"topology is TimeVarying.*; give a graph that does not change"):
        CQGGADMM(topology=TimeVarying(Bipartite()))


def test_an_unseen_client_is_served_by_the_mean_of_what_was_sent(client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=5)
    federation = run_rounds(CQGGADMM(0.3, **BOTH), client_trainer, train)
    mean = heard(federation).mean(0).numpy()
    for found, (x, _) in zip(federation.predictions(unseen, seen=False), as_arrays(unseen), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(mean, x), rtol=0, atol=1e-12)
    for seen in (True, False):
        assert federation.algorithm.adapt_work(federation.context("adapt"), seen) is None


def test_every_client_takes_part():
    assert CQGGADMM.participation.needs_all_clients
