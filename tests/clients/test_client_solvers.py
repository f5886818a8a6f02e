"""Learning rates and local work that differ between clients: by hand, and the same for all client trainers."""

import pytest
import torch
from combination import refuse
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    Scale,
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
from quiet import quiet_trainer

from lit_fed import FederatedDataModule, FederatedModule
from lit_fed.algorithms import (
    AFL,
    L2GD,
    FedAS,
    FedAvg,
    FedAvgPlus,
    FedEM,
    FedeRiCo,
    FedProx,
    FedSGD,
    FedU,
    Local,
    QFedAvg,
)
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Digits
from lit_fed.errors import ConfigError
from lit_fed.wrappers import ExamplePrivacy

RAGGED = [30, 1, 17, 2, 12, 4, 5, 33]
BATCHES = torch.tensor([8, 4, 0, 1, 3, 8, 2, 16], dtype=torch.float64)
RATES = torch.tensor([1, 0.5, 2, 1, 0.25, 1, 3, 0.1], dtype=torch.float64)
SHARES = torch.tensor([0.5, 0.5, 1, 0.2, 0.75, 1, 0.3, 0.05], dtype=torch.float64)


def test_a_round_by_hand(client_trainer):
    """½(w − 4)² from 1, twice: a step of 0.2·½ leaves 0.9 of the way to the target, two of 0.2 leave 0.8²."""
    train, options = quadratics([1.0, 1.0], [4.0, 4.0]), {"batch_size": 0, "trainer": client_trainer}
    task = make_task(REGRESSION, network=Scale)
    halves = torch.tensor([0.5, 1.0], dtype=torch.float64)
    terms = {"of_clients": {"client_lr": halves, "client_work": halves}}
    federation = Federation(FedAvg(), train, task=task, solver=LocalSolver(lr=0.2, local_steps=2), **options, **terms)
    away = float(federation.weights) - 4
    federation.round()
    assert float(federation.weights) == pytest.approx(4 + away * (0.9 + 0.8**2) / 2, abs=1e-12)


def test_averages_weigh_clients_by_their_samples(client_trainer):
    train, terms = make_clients([9, 3]), {"of_clients": {"client_lr": torch.tensor([0.5, 2.0], dtype=torch.float64)}}
    both, *alone = (
        run_rounds(FedAvg(), client_trainer, train, rounds=1, cohorts=[cohort], **terms).weights
        for cohort in ([0, 1], [0], [1])
    )
    assert distance(both, (9 * alone[0] + 3 * alone[1]) / 12) < 1e-12
    plain = run_rounds(FedAvg(), client_trainer, train, rounds=1, cohorts=[[1]], solver=LocalSolver(lr=0.2)).weights
    assert distance(alone[1], plain) < 1e-12  # twice the rate of 0.1


def left_behind(federation):
    return federation.shared, federation.states, federation.optimizers, federation.predictions()


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), FedProx(0.5, 0.5), FedEM(2), FedAvgPlus(), Local()], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("stragglers", [0.0, 0.5])
def test_clients_at_once_equal_clients_one_by_one(algorithm, stragglers):
    solver = LocalSolver(lr=0.2, momentum=0.9, local_epochs=3, persist_optimizer=True, straggler_fraction=stragglers)
    options = {"task": make_task(MULTICLASS, network=small_mlp), "cohorts": [list(range(8)), [7, 2, 5, 1]]}
    each = {"client_lr": RATES, "client_work": SHARES, "client_batch_size": BATCHES}
    terms = {"of_clients": each, "solver": solver, "rounds": 2}
    train = make_clients(RAGGED, target=MULTICLASS)
    one, other, cut = (
        run_rounds(algorithm, trainer, train, **options, **terms)
        for trainer in (SequentialTrainer(), VectorizedTrainer(), VectorizedTrainer(chunk_bytes=1))
    )
    assert distance(left_behind(one), left_behind(other)) < 1e-10
    assert distance(left_behind(other), left_behind(cut)) < 1e-10


def test_each_takes_its_share_and_begins_with_the_same_batches(client_trainer):
    solver = LocalSolver(local_epochs=4, momentum=0.5, persist_optimizer=True)
    some, whole = (
        Federation(Local(), make_clients(RAGGED), solver=solver, trainer=client_trainer, of_clients=each)
        for each in ({"client_work": SHARES}, {})
    )
    some.round()
    steps = [4 * -(-size // 4) for size in RAGGED]
    assert some.optimizers.step.tolist() == [-(-steps[row] * SHARES[row] // 1) for row in range(8)]
    assert len(batch_orders(whole)[0]) == steps[0]
    half = Federation(  # half of 4 epochs are the first 2
        Local(), make_clients(RAGGED), solver=LocalSolver(local_epochs=2, momentum=0.5), trainer=client_trainer
    )
    half.round()
    assert distance(flat(half.states)[0], flat(some.states)[0]) < 1e-14


def test_each_takes_batches_of_its_size(client_trainer):
    """As it does alone where they are common."""
    options = {"solver": LocalSolver(local_epochs=2, momentum=0.5), "trainer": client_trainer}
    mixed = Federation(Local(), make_clients(RAGGED), of_clients={"client_batch_size": BATCHES}, **options)
    mixed.round()
    for width in set(BATCHES.tolist()):
        common = Federation(Local(), make_clients(RAGGED), batch_size=int(width), **options)
        common.round()
        rows = width == BATCHES
        assert distance(flat(mixed.states)[rows], flat(common.states)[rows]) < 1e-14


def test_no_clients_have_no_batch_sizes():
    """As on a rank that holds none of a block."""
    ctx = Federation(Local(), make_clients(RAGGED), of_clients={"client_batch_size": BATCHES}).context("train")
    assert ctx.batch_sizes_of([]).tolist() == []
    assert ctx.batch_sizes_of([2, 8, 7]).tolist() == [0, 4, 16]  # 8 is unseen


def test_factors_of_1_change_no_bit(client_trainer):
    train, ones = make_clients(RAGGED), torch.ones(8, dtype=torch.float64)
    plain, same = (
        run_rounds(FedEM(2), client_trainer, train, **terms)
        for terms in ({}, {"of_clients": {"client_lr": ones, "client_work": ones, "client_batch_size": 4 * ones}})
    )
    assert same_bits(left_behind(plain), left_behind(same))


def test_unseen_clients_adapt_at_the_common_rate(client_trainer):
    train, unseen = make_clients([5, 3]), make_clients([4], seed=3, first_id=2)
    quarter = torch.tensor([0.25, 0.25], dtype=torch.float64)
    some = run_rounds(
        FedAvgPlus(), client_trainer, train, rounds=0, of_clients={"client_lr": quarter, "client_work": quarter}
    )
    plain = run_rounds(FedAvgPlus(), client_trainer, train, rounds=0)
    assert same_bits(some.serve(unseen, seen=False), plain.serve(unseen, seen=False))
    slow = run_rounds(FedAvgPlus(), client_trainer, train, rounds=0, solver=LocalSolver(lr=0.025))
    assert distance(some.serve(), slow.serve()) < 1e-12  # seen ones with their own rate, and for all their epochs


# ---------------------------------------------------------------------- settings
def test_patterns_of_names():
    solver = LocalSolver(client_lr={"site_*": 0.5, "site_b": 2, "*": 1.0, "home": 0.1})
    names = ["site_a", "site_b", "home"]
    assert {option: one.tolist() for option, one in solver.of_clients(names, 32).items()} == {"client_lr": [1, 1, 0.1]}
    with pytest.raises(ConfigError, match=r"client_lr has 'site_\*', which matches no client of the training; .* x, y"):
        solver.of_clients(["x", "y"], 32)
    sizes = LocalSolver(client_batch_size={"a": 8}).of_clients(["a", "b"], 32)
    assert sizes["client_batch_size"].tolist() == [8, 32]
    for field, value in (
        ("client_lr", 0),
        ("client_work", 0),
        ("client_work", 1.5),
        ("client_batch_size", -1),
        ("client_batch_size", 2.5),
    ):
        with pytest.raises(ConfigError, match=rf"--model\.solver\.{field} is .*; give "):
            LocalSolver(**{field: {"a": value}})


def fitted(folder, solver, name="run", rounds=1, algorithm=None, **arguments):
    module = FederatedModule(algorithm or FedEM(2), solver)
    data = FederatedDataModule(Digits(), num_clients=4)
    quiet_trainer(rounds, folder, name).fit(module, datamodule=data, **arguments)
    return module


def test_a_run_goes_on_with_the_same_solvers_alone(tmp_path):
    solver = LocalSolver(
        lr=0.1, local_epochs=2, client_lr={"1": 0.5}, client_work={"[23]": 0.5}, client_batch_size={"0": 16}
    )
    module = fitted(tmp_path, solver)
    assert {option: one.tolist() for option, one in module.facts.of_clients.items()} == {
        "client_lr": [1, 0.5, 1, 1], "client_work": [1, 1, 0.5, 0.5], "client_batch_size": [16, 128, 128, 128]
    }  # fmt: skip
    assert module.facts.public.of_clients == {}
    last = str(tmp_path / "run/version_0/checkpoints/last.ckpt")
    straight, resumed = (
        fitted(tmp_path, solver, name, 2, **arguments).state_dict()
        for name, arguments in (("straight", {}), ("run", {"ckpt_path": last}))
    )
    assert all(torch.equal(leaf, resumed[name]) for name, leaf in straight.items())
    for other in (LocalSolver(lr=0.1, local_epochs=2), LocalSolver(lr=0.1, local_epochs=2, client_lr={"1": 0.4})):
        with pytest.raises(ConfigError, match=r"--ckpt_path .*last\.ckpt is of another run: .*solver"):
            fitted(tmp_path, other, rounds=3, ckpt_path=last)


@pytest.mark.parametrize("algorithm", [AFL(), FedSGD(), FedU(), L2GD(), QFedAvg()], ids=lambda one: type(one).__name__)
def test_one_rate_is_needed_by_some(algorithm):
    with pytest.raises(ConfigError, match=f"client_lr is given, and {type(algorithm).__name__} .*; leave it out"):
        refuse(algorithm, solver=LocalSolver(client_lr={"a": 0.5}))
    refuse(algorithm, solver=LocalSolver())


def test_one_batch_size_is_needed_by_fedu():
    with pytest.raises(ConfigError, match=r"client_batch_size is given, and FedU mixes .*; leave it out"):
        refuse(FedU(), solver=LocalSolver(client_batch_size={"a": 8}))


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (LocalSolver(client_work={"a": 0.5}), "ExamplePrivacy counts as many steps for all clients; leave it out"),
        (LocalSolver(client_batch_size={"a": 8}), "ExamplePrivacy draws batches by sample_rate; leave it out"),
    ],
)
def test_private_steps_are_alike_for_all(solver, words):
    privacy = ExamplePrivacy(1.0, clip_norm=1.0, delta=1e-3, sample_rate=0.1)
    with pytest.raises(ConfigError, match=words):
        refuse(FedAvg(), solver=solver, privacy=privacy)


@pytest.mark.parametrize(("steps", "share", "taken"), [(3, 0.5, 2), (5, 0.3, 2), (10, 0.3, 3), (4, 0.1, 1)])
def test_a_share_of_the_steps_is_rounded_up(steps, share, taken, client_trainer):
    """½(w − 4)² from 0 at rate 0.2: `taken` steps leave 0.8^taken of the way."""
    train, task = quadratics([1.0], [4.0]), make_task(REGRESSION, network=Scale)
    terms = {"of_clients": {"client_work": torch.tensor([share], dtype=torch.float64)}, "rounds": 1}
    solver = LocalSolver(lr=0.2, local_steps=steps)
    federation = run_rounds(FedAvg(), client_trainer, train, task=task, solver=solver, **terms)
    assert float(federation.weights) == pytest.approx(4 - 4 * 0.8**taken, abs=1e-12)


@pytest.mark.parametrize(
    "algorithm", [FedSGD(), FedeRiCo(1, exchange="gradient"), FedAS(align_epochs=0)], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("fewer", ["share", "stragglers"])
def test_passes_that_measure_are_whole_for_clients_that_take_fewer_steps(algorithm, fewer, client_trainer):
    """Gradients and traces are sums over all batches: a part of them would be another objective or another weight."""
    train, task = make_clients([9, 4], target=MULTICLASS), make_task(MULTICLASS, network=small_mlp)
    terms = {"task": task, "batch_size": 2}
    shares = {"of_clients": {"client_work": torch.full((2,), 0.3, dtype=torch.float64)}} if fewer == "share" else {}
    slow = LocalSolver(lr=0.2, local_steps=1, straggler_fraction=float(fewer == "stragglers"))
    a = run_rounds(algorithm, client_trainer, train, solver=slow, **terms, **shares)
    b = run_rounds(algorithm, client_trainer, train, solver=LocalSolver(lr=0.2, local_steps=1), **terms)
    assert same_bits((a.shared, a.states), (b.shared, b.states))
