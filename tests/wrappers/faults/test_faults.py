"""Averages over those who come, clients that fail, and what is refused."""

import itertools
import math
import os
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from combination import refuse, surrounded
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    Scale,
    distance,
    make_clients,
    make_context,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from running import in_two_ranks

from lit_fed import FederatedDataModule, FederatedModule, FederatedTrainer
from lit_fed.algorithms import AFL, GADMM, IFCA, DFedEM, FedAdam, FedAvg, FedEM, FedNova, MixtureADMM
from lit_fed.clients import DebugTrainer, SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.blocks import draw_cohort
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Phase, Reduced
from lit_fed.data import Synthetic
from lit_fed.errors import ClientError, ConfigError, NotFiniteError
from lit_fed.wrappers import ClientPrivacy
from lit_fed.wrappers.compression.codecs import QSGD
from lit_fed.wrappers.faults.wrapper import (
    Faults,
    MarkovChain,
    Unreliable,
    drops_out,
    markov_chain,
    per_client,
    read_numbers,
    work_times,
)
from lit_fed.wrappers.secure.wrapper import SecureSum

CHANCES = [0.9, 0.5, 0.3]
VALUES = [1.0, 2.0, 6.0]


# ---------------------------------------------------------------------- averages
def averaged(average, values, weights, come, chances):
    """What reaches the server where some of three clients come, whose model is 0 at the server."""
    faults = Faults(dropout=[1 - one for one in chances], average=average)
    wrapper = Unreliable(FedAvg(), faults)
    ctx = make_context(num_clients=3, most_samples=max(weights), total_samples=sum(weights))
    (phase,) = wrapper.phases(ctx._replace(phase="plan"), torch.arange(3))
    ctx = ctx._replace(drawn_weight=phase.absences.drawn_weight(torch.tensor(weights), "samples"))
    factors = phase.absences.factors
    each = torch.tensor(weights, dtype=torch.float64) * (1 if factors is None else factors) * torch.tensor(come)
    assert (each == each.round()).all(), "whole numbers"
    mean = float((each * torch.tensor(values)).sum() / each.sum()) if each.sum() else 0.0
    shared = wrapper.shared_init(ctx)
    zero = tree.zeros_like(shared.models)
    message = tree.map_leaves(lambda leaf: torch.full_like(leaf, mean, dtype=torch.float64), zero)
    new = wrapper.server_step(ctx, shared._replace(models=zero), Reduced(message, each.sum()), torch.arange(3))
    return float(tree.leaves(new.models)[0].flatten()[0])


def expectation(average, values=VALUES, weights=(1, 1, 1), chances=CHANCES):
    """The mean and the deviation over all ways to come, and the same given that somebody comes."""
    found, odds = [], []
    for come in itertools.product([0, 1], repeat=3):
        odds.append(math.prod(p if here else 1 - p for p, here in zip(chances, come, strict=True)))
        found.append(averaged(average, values, weights, come, chances))
    found, odds = np.array(found), np.array(odds)
    mean = float(found @ odds)
    return mean, math.sqrt(float((found - mean) ** 2 @ odds)), float(found[1:] @ odds[1:] / (1 - odds[0]))


def test_which_averages_are_right_on_average():
    """Values 1, 2, 6 of equal weight, whose mean is 3."""
    assert expectation("renormalised")[2] == pytest.approx(1.9533678756, abs=1e-9)
    mean, deviation, _ = expectation("importance")
    assert (mean, deviation) == (pytest.approx(3, abs=1e-9), pytest.approx(3.1289172979, abs=1e-9))
    assert expectation("fixed")[0] == pytest.approx(1.2333333333, abs=1e-9)
    assert expectation("expected")[0] == pytest.approx(2.1764705882, abs=1e-9)


def test_equal_chances():
    assert expectation("renormalised", chances=[0.5] * 3)[2] == pytest.approx(3, abs=1e-9)
    unequal = {"values": [0.0, 0.0, 10.0], "weights": (1, 1, 8), "chances": [0.5] * 3}
    assert expectation("renormalised", **unequal)[2] == pytest.approx(5.1111111111, abs=1e-9), "and 8 is right"
    assert expectation("importance", **unequal)[0] == pytest.approx(8, abs=1e-9)


@pytest.mark.parametrize("average", ["importance", "fixed", "expected"])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(2), FedAdam()], ids=lambda one: type(one).__name__)
def test_where_everybody_comes_all_averages_are_one(algorithm, average):
    train = clients([6, 3, 9], dtype=torch.float32)
    for_ever = Faults(deadline=1e9, compute_mean=1.0, average=average)
    plain, found = (after(one, train) for one in (algorithm, for_ever.around(algorithm)))
    assert same_bits(plain.shared, found.shared)


def federation_of(algorithm, train, trainer=SequentialTrainer, **options):
    task = make_task(MULTICLASS, dtype=train.x.dtype)
    solver = LocalSolver(lr=0.2, momentum=0.5, local_epochs=2)
    return Federation(algorithm, train, task, solver, trainer(), num_rounds=2, **options)


def after(algorithm, train, cohorts=(None, None), trainer=SequentialTrainer, **options):
    federation = federation_of(algorithm, train, trainer, **options)
    for cohort in cohorts:
        federation.record = super(Federation, federation).round(train, cohort, federation.clients_per_block)
    return federation


def clients(sizes, **options):
    return make_clients(sizes, target=MULTICLASS, **options)


def test_a_client_drawn_twice_counts_twice_wherever_it_counts():
    faults = Faults(dropout=[0.0, 0.5, 0.0], average="importance")
    train, solver = quadratics([1.0] * 3, [1.0, 2.0, 6.0]), LocalSolver(lr=1.0, local_epochs=1)
    wrapped = faults.around(FedAvg())
    for round_idx in range(4):
        gone = drops_out(0, round_idx, np.array([1]), np.full(3, 0.5))[0]
        found = run_rounds(
            wrapped, train=train, task=make_task(REGRESSION, 1, Scale), solver=solver, rounds=1,
            cohorts=[[0, 1, 1, 2]], weighting="uniform", round_idx=round_idx,
        )  # fmt: skip
        expected = (1 + 6 + (0 if gone else 2 * 2 * 2)) / 4
        assert float(found.weights) == pytest.approx(expected, abs=1e-9)


# ---------------------------------------------------------------------- too late
SIZES = [6, 3, 9, 4, 5]


def test_a_deadline():
    train = clients(SIZES)
    times = work_times(0, 0, np.arange(5), 0.5, np.full(5, 1.0))
    deadline = float(np.sort(times)[2])
    faults = Faults(deadline=deadline, compute_min=0.5, compute_mean=1.0)
    found = after(faults.around(FedAvg()), train, [None])
    came = np.flatnonzero(times <= deadline)
    assert same_bits(found.shared, after(FedAvg(), train, [came]).shared)
    record = found.record
    assert record.client_ids.tolist() == came.tolist()
    assert (record.faults.num_late, record.faults.num_dropped, record.phases[0].wait) == (2, 0, deadline)
    assert (record.phases[0].num_clients, record.bits_down / record.bits_up) == (5, pytest.approx(5 / 3))


def test_the_first_of_many():
    """Of seven that are drawn where five are wanted, the first five count, and the fifth says how long it took."""
    faults = Faults(over_selection=0.4, compute_mean=[1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    train = clients([3] * 10)
    cohort = draw_cohort(10, np.ones(10), number=5, over_selection=0.4, seed=0, round_idx=0)
    assert len(cohort) == 7
    times = work_times(0, 0, cohort, 0.0, np.array(faults.compute_mean))
    first = np.sort(cohort[np.argsort(times)[:5]])
    found = after(faults.around(FedAvg()), train, [cohort], sampling_probability=0.5)
    assert found.record.client_ids.tolist() == first.tolist()
    assert (found.record.faults.num_late, found.record.phases[0].wait) == (2, np.sort(times)[4])


# ---------------------------------------------------------------------- clients that fail
TRAINERS = [SequentialTrainer, VectorizedTrainer, DebugTrainer]
DROP = Faults(on_bad_client="drop")


def bad_clients():
    """Client 1 has labels that there are not, client 3 inputs that are no numbers."""
    train = clients(SIZES)
    train.client(1).all_y.fill_(99)
    train.client(3).all_x.fill_(torch.nan)
    return train


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda one: one.name)
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(2), DFedEM()], ids=lambda one: type(one).__name__)
def test_a_client_that_fails_is_left_out(trainer, algorithm):
    train = bad_clients()
    found = after(DROP.around(algorithm), train, trainer=trainer)
    assert (found.record.faults.errors, found.record.faults.non_finite) == ((1,), (3,))
    one, other = sorted(found.record.faults.reasons)
    assert one.startswith("client 1, round 1, ")
    assert other.startswith("client 3, round 1, ")
    assert "NaN or infinite" in other
    plain = after(algorithm, train, [[0, 2, 4]] * 2, trainer)
    assert distance((found.shared, found.states), (plain.shared, plain.states)) < 1e-12
    assert found.record.client_ids.tolist() == [0, 2, 4]
    if algorithm.has_server:  # others have told a client that fails
        assert found.record.bits_up == plain.record.bits_up
    assert found.record.metrics["loss"] == pytest.approx(plain.record.metrics["loss"], abs=1e-12)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda one: one.name)
@pytest.mark.parametrize("wrap", [lambda one: one, Faults(over_selection=0.1).around])
def test_by_default_the_run_stops(trainer, wrap):
    with pytest.raises(ClientError, match="round 0"):
        after(wrap(FedAvg()), bad_clients(), [[0, 1]], trainer)
    with pytest.raises(NotFiniteError, match="client 3, round 0"):
        after(wrap(FedAvg()), bad_clients(), [[0, 3]], trainer)


@dataclass(frozen=True)
class TwoPhases(FedAvg):
    """Client 1 fails in the first of them alone."""

    def phases(self, ctx, client_ids):
        return [Phase(name, client_ids, ctx.solver.work) for name in ("first", "second")]

    def client_init(self, ctx, shared, state, data, losses):
        if ctx.phase == "first" and data.client_id == 1:
            raise RuntimeError("out of paper")
        return super().client_init(ctx, shared, state, data, losses)


def test_who_failed_in_a_phase_is_gone_from_those_that_follow():
    train = clients(SIZES)
    found = after(DROP.around(TwoPhases()), train, [None])
    assert same_bits(found.shared, after(TwoPhases(), train, [[0, 2, 3, 4]]).shared)
    assert found.record.faults.errors == (1,)
    assert found.record.faults.reasons == ("client 1, round 0, client_init: RuntimeError: out of paper",)


def test_who_drops_out_in_a_phase_is_gone_from_those_that_follow():
    """Of 0, 2, 3 and 4 the last comes."""
    train = clients(SIZES)
    for when in ("before", "after"):
        found = after(Faults(0.3, when=when).around(TwoPhases()), train, [[0, 2, 3, 4]])
        assert same_bits(found.shared, after(TwoPhases(), train, [[4]]).shared)
        assert [one.num_clients for one in found.record.phases] == [1 if when == "before" else 4, 1]
        assert found.record.faults.num_dropped == 3


def test_a_round_in_which_all_fail_is_empty():
    """The form of the messages comes from a client that was not asked."""
    train = bad_clients()
    found, before = after(DROP.around(FedEM(2)), train, [[1, 3]]), after(FedEM(2), train, [])
    assert found.record.faults.is_empty
    assert (found.record.bits_up, found.record.metrics) == (0, {})
    assert same_bits(found.shared, before.shared)


@dataclass(frozen=True)
class Broken(FedAvg):
    error: type = RuntimeError

    def client_init(self, ctx, shared, state, data, losses):
        raise self.error("no good")


def test_what_is_no_clients_fault_stops_the_run():
    train = clients(SIZES)
    with pytest.raises(ClientError, match=r"^client 2, round 0, client_init: RuntimeError: no good"):
        after(DROP.around(Broken()), train, [None])  # 2 has the most samples, and comes first
    with pytest.raises(ClientError, match="ConfigError: no good"):
        after(DROP.around(Broken(ConfigError)), train, [None])


RANKED = {"two rounds": [range(5), range(5)], "all of a rank": [[1, 2]], "everybody": [[1, 3]]}


def in_a_rank(place, out):
    """Rounds in which clients fail, in a process that is one of two ranks."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    found = {}
    for name, cohorts in RANKED.items():
        federation = federation_of(DROP.around(FedEM(2)), bad_clients())
        for cohort in cohorts:
            division = {"clients_per_block": 2, "rank": rank, "num_ranks": 2}
            for block in federation.blocks(np.array(cohort), federation.train, **division):
                list(federation.train_block(block))
                if block.ends_phase:
                    federation.end_phase()
            record = federation.commit()
        found[name] = tree.leaves((federation.shared, federation.states)), tuple(record.faults[:5])
    torch.save(found, out / f"{rank}.pt")


def test_two_ranks_know_who_failed(tmp_path):
    in_two_ranks(partial(in_a_rank, tmp_path / "meeting", tmp_path))
    for rank in (0, 1):
        for name, (leaves, faults) in torch.load(tmp_path / f"{rank}.pt").items():
            one = after(DROP.around(FedEM(2)), bad_clients(), RANKED[name])
            assert distance(leaves, tree.leaves((one.shared, one.states))) < 1e-12
            assert faults == tuple(one.record.faults[:5])


# ---------------------------------------------------------------------- other wrappers
def test_secure_sums_of_those_who_come():
    came = [np.flatnonzero(~drops_out(0, one, np.arange(5), np.full(5, 0.3))) for one in (0, 1)]
    plain, found = (
        surrounded(FedEM(2), secure_aggregation=SecureSum(), faults=faults) for faults in (None, Faults(0.3))
    )
    train = clients(SIZES)
    one, other = after(plain, train, came), after(found, train)
    assert same_bits((one.shared, one.states), (other.shared, other.states))


def test_weights_of_others_stay():
    for option, given in (
        ("privacy", {"privacy": ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3)}),
        ("compression_feedback ef21", {"compression": QSGD(), "compression_feedback": "ef21"}),
    ):
        with pytest.raises(ConfigError, match=f"average fixed .* --model.{option} has weights of its own"):
            refuse(FedAvg(), faults=Faults(0.1, average="fixed"), **given)
        refuse(FedAvg(), faults=Faults(0.1, "after"), **given)


# ---------------------------------------------------------------------- what is refused
def fit_with_trace(out, rows, rounds, ckpt_path=None):
    np.save(out / "trace.npy", np.array(rows))
    module = FederatedModule(FedAvg(), faults=Faults(trace=str(out / "trace.npy")))
    data = FederatedDataModule(Synthetic(num_clients=3, dimension=3, test_size=8))
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=rounds, default_root_dir=out, logger=False, enable_progress_bar=False
    )
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return str(next(out.rglob("last.ckpt")))


def test_a_run_goes_on_with_the_trace_that_it_began_with(tmp_path):
    rows = [[1, 1, 0], [0, 1, 1]]
    last = fit_with_trace(tmp_path, rows, 1)
    with pytest.raises(ConfigError, match=r"model\.faults\.trace \(contents\) is \w{32}, in the checkpoint \w{32}"):
        fit_with_trace(tmp_path, rows[::-1], 2, last)
    fit_with_trace(tmp_path, rows, 2, last)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dropout": 1.0}, r"\.dropout is 1\.0; give numbers in \[0, 1\)"),
        ({"dropout": [0.1, -1]}, r"\.dropout is \[0\.1, -1\]; give numbers"),
        ({"when": "later"}, r"\.when is later; give before or after"),
        ({"deadline": 0.0}, r"\.deadline is 0\.0; give a number > 0"),
        ({"over_selection": -1}, r"\.over_selection is -1; give a number >= 0"),
        ({"compute_mean": 1.0}, "matter to a deadline or to over_selection alone"),
        ({"comes_back": 0.5}, r"\.comes_back is given without goes_away; give both, or none"),
        ({"comes_back": 0.5, "goes_away": 0.5, "trace": "x.npy"}, "and so does comes_back; give one of them"),
        ({"average": "importance"}, "every client's probability to take part; give dropout, or choose renormalised$"),
        ({"average": "importance", "dropout": 0.1, "over_selection": 0.3}, "needs every client's probability"),
        ({"on_bad_client": "skip"}, "give stop or drop"),
    ],
)
def test_settings_out_of_range(settings, said):
    with pytest.raises(ConfigError, match=f"^--model.faults.*{said}"):
        Faults(**settings)


@pytest.mark.parametrize(
    ("algorithm", "faults", "options", "said"),
    [
        (GADMM(), Faults(), {}, "^GADMM needs every client in every round; leave out --model.faults$"),
        (AFL(), DROP, {}, "^AFL needs every client in every round; leave out --model.faults$"),
        (DFedEM(), Faults(over_selection=0.3), {}, "DFedEM has no server"),
        (MixtureADMM(), Faults(0.1, average="fixed"), {}, "MixtureADMM keeps a running sum of changes"),
        (IFCA(), Faults(0.1, average="fixed"), {}, "IFCA .*; choose renormalised"),
        (FedNova(), Faults(0.1, average="importance"), {}, "FedNova divides by the clients' numbers of steps"),
        (FedAvg(), Faults(0.1, average="fixed"), {"aggregation": "stale_fill"}, "leave one of them out"),
    ],
)  # fmt: skip
def test_algorithms_that_cannot_live_with_it(algorithm, faults, options, said):
    with pytest.raises(ConfigError, match=said):
        FederatedModule(algorithm, faults=faults, **options)


def test_who_drops_out():
    ids = np.arange(10)
    assert np.flatnonzero(drops_out(0, 0, ids, np.full(10, 0.3))).tolist() == [0, 1, 2, 3, 7]
    some = np.array([1, 4, 7])
    assert drops_out(0, 0, some, np.full(10, 0.3)).tolist() == [True, False, True], "whoever else is there"
    assert not drops_out(0, 0, ids, np.zeros(10)).any()
    share = np.mean([drops_out(0, one, ids, np.full(10, 0.3)).mean() for one in range(1000)])
    assert share == pytest.approx(0.3, abs=0.015)


def test_times_of_work():
    """T_min = 0, means 1, 2, 4, deadline 2."""
    means = np.repeat([1.0, 2.0, 4.0], 2000)
    times = work_times(0, 0, np.arange(6000), 0.0, means)
    in_time = (times <= 2).reshape(3, 2000).mean(1)
    assert in_time == pytest.approx([0.8646647168, 0.6321205588, 0.3934693403], abs=0.03)
    assert work_times(0, 0, np.arange(2), 1.5, np.zeros(2)).tolist() == [1.5, 1.5]


def test_a_chain_of_clients_that_come_and_go():
    """a = .2, b = .4: there in a third of the rounds, 2.5 of them in a row, and 5 away."""
    there = np.stack(
        [MarkovChain(200, 0.2, 0.4, seed=0).at(0), *(markov_chain(200, 0.2, 0.4, 0).at(r) for r in range(1, 400))]
    )
    assert there.mean() == pytest.approx(1 / 3, abs=0.01)
    runs = [(on, len(list(group))) for column in there.T for on, group in itertools.groupby(column)]
    assert np.mean([length for on, length in runs if on]) == pytest.approx(2.5, abs=0.1)
    assert np.mean([length for on, length in runs if not on]) == pytest.approx(5, abs=0.2)
    fresh = MarkovChain(200, 0.2, 0.4, seed=0)
    assert (fresh.at(7) == there[7]).all(), "also where a run is resumed"
    assert (fresh.at(3) == there[3]).all(), "also where it goes back"
    assert MarkovChain(5, 0.5, 0.0, seed=0).at(20).all()


def test_cohorts_among_those_who_can_be_reached():
    there = np.array([False, True, True, False, True, True])
    for sampling in ("uniform", "size"):
        drawn = [
            draw_cohort(6, np.arange(1, 7), number=3, sampling=sampling, seed=0, round_idx=one, available=there)
            for one in range(50)
        ]
        assert set(np.concatenate(drawn).tolist()) == {1, 2, 4, 5}
        assert {len(one) for one in drawn} == {3}
    options = {"sizes": np.ones(6), "seed": 0, "round_idx": 0}
    assert draw_cohort(6, number=5, available=there, **options).tolist() == [1, 2, 4, 5], "fewer than wanted: all"
    assert draw_cohort(6, number=5, available=np.zeros(6, dtype=bool), **options).tolist() == []
    poisson = {"fraction": 0.5, "sampling": "poisson"}
    assert draw_cohort(6, available=there, **poisson, **options).tolist() == [
        one for one in draw_cohort(6, **poisson, **options).tolist() if there[one]
    ]
    for sampling in ("uniform", "size"):
        plain, all_there = (
            draw_cohort(6, number=3, sampling=sampling, available=given, **options)
            for given in (None, np.ones(6, dtype=bool))
        )
        assert (plain == all_there).all()
    assert len(draw_cohort(10, np.ones(10), number=5, over_selection=0.3, seed=0, round_idx=0)) == 7


def test_numbers_from_files(tmp_path):
    np.save(tmp_path / "p.npy", np.array([0.1, 0.2]))
    (tmp_path / "p.csv").write_text("0.1,0.2\n")
    for name in ("p.npy", "p.csv"):
        assert per_client(str(tmp_path / name), 2, "--x").tolist() == [0.1, 0.2]
    (tmp_path / "there.csv").write_text("True,false\n0,1\n")
    assert read_numbers(str(tmp_path / "there.csv"), "--x").tolist() == [[1, 0], [0, 1]]
    assert per_client(0.3, 2, "--x").tolist() == [0.3, 0.3]
    with pytest.raises(ConfigError, match=r"^--x has 2 numbers, and there are 3 clients; give one for each$"):
        per_client([0.1, 0.2], 3, "--x")
    (tmp_path / "words.csv").write_text("a,b\n")
    for name, said in (
        ("words.csv", "cannot be read: could not"),
        ("absent.npy", "cannot be read: .*No such file"),
        ("p.txt", "give a .npy"),
    ):
        with pytest.raises(ConfigError, match=f"^--x .*{name}.*{said}"):
            read_numbers(str(tmp_path / name), "--x")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(ConfigError, match=r"objects\.npy cannot be read"):
        read_numbers(str(tmp_path / "objects.npy"), "--x")
