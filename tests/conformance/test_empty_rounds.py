"""Rounds in which nobody takes part are rounds: they leave everything as it was, for every algorithm.

So a run with some of them is the run of the others, whose random streams go on with the number of the round.
"""

import functools
import os
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from combination import refuse
from exemptions import exempt
from federated_round import Federation, make_clients, same_bits
from fit_all import StackedAverage
from running import in_two_ranks
from test_algorithms import SMALL, all_algorithms, federation_of

from lit_fed.algorithms import EASGD, FedAdam, FedAvg, FedEM
from lit_fed.clients import DebugTrainer, SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.solvers import newton
from lit_fed.core.types import ClientResult, LocalWork, Phase
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.privacy.client_level import ClientPrivacy, PrivateAverage
from lit_fed.wrappers.secure.wrapper import SecureAverage, SecureSum

pytestmark = pytest.mark.every_combination

SIZES = [6, 3, 9, 4]
COHORTS = [[], [2], [], [0, 2, 3]]
"""Of two ranks one has no client in round 1, and neither has one before and after it."""

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]
NEEDING_ALL = [one for one in ALL if one.participation.needs_all_clients]
TAKEN = [StackedAverage(), EASGD(mode="asynchronous"), *(one for one in ALL if not one.participation.needs_all_clients)]


def name_of(algorithm):
    return "_".join([type(algorithm).__name__, *filter(None, [getattr(algorithm, "mode", None)])])


def fresh(algorithm, trainer=SequentialTrainer, **options):
    """A federation in float32, whose sums over clients are exact; clients keep their optimizers."""
    keeps = type(algorithm).__name__ != "FedNova"
    solver = LocalSolver(lr=0.2, momentum=0.5, persist_optimizer=keeps)
    train = make_clients(SIZES, dtype=torch.float32)
    options = {"num_rounds": len(COHORTS), "dtype": torch.float32, "solver": solver} | options
    return federation_of(algorithm, train, trainer=trainer(), **options)


def kept(federation):
    """The leaves of all that the server and the clients keep."""
    return tree.leaves((federation.shared, federation.states, federation.optimizers))


def run(federation, cohorts=COHORTS):
    """The leaves of what rounds leave, with what the last one tells; those without clients leave no trace."""
    for cohort in cohorts:
        before, federation.metrics = kept(federation), {}
        federation.round(cohort)
        if not cohort:
            assert same_bits(kept(federation), before)
            assert (federation.metrics, federation.bits.tolist()) == ({}, [0, 0])
    metrics = [torch.tensor(value) for value in federation.metrics.values()]
    return [*kept(federation), federation.bits, *metrics]


@functools.cache
def with_empty_rounds(algorithm):
    return run(fresh(algorithm, DebugTrainer))


@pytest.mark.parametrize("algorithm", TAKEN, ids=name_of)
def test_a_run_is_that_of_its_rounds_with_clients(algorithm):
    federation = fresh(algorithm)
    for round_idx, cohort in enumerate(COHORTS):
        if cohort:
            federation.round_idx = round_idx
            found = run(federation, [cohort])
    assert same_bits(found, with_empty_rounds(algorithm))


@pytest.mark.parametrize("algorithm", TAKEN, ids=name_of)
def test_clients_at_once(algorithm):
    run(fresh(algorithm, VectorizedTrainer, clients_per_block=2), COHORTS[:-1])


# ---------------------------------------------------------------------- two ranks
def in_a_rank(place, out):
    """All runs, in a process that is one of two ranks."""
    rank = int(os.environ["RANK"])
    newton.minimise.__kwdefaults__["iterations"] = 3  # as in all conformance tests
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)

    class Ranked(Federation):
        def blocks(self, client_ids, train, **division):
            return super().blocks(client_ids, train, rank=rank, num_ranks=2, **division)

    found = {}
    for algorithm in TAKEN:
        federation = fresh(algorithm)
        federation.__class__ = Ranked
        found[name_of(algorithm)] = run(federation)
    if rank == 0:
        torch.save(found, out)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What two ranks found, by the name of the algorithm."""
    folder = tmp_path_factory.mktemp("ranks")
    in_two_ranks(functools.partial(in_a_rank, folder / "meeting", folder / "found.pt"))
    return torch.load(folder / "found.pt")


@pytest.mark.parametrize("algorithm", TAKEN, ids=name_of)
def test_two_ranks_equal_one(two_ranks, algorithm):
    for one, two in zip(with_empty_rounds(algorithm), two_ranks[name_of(algorithm)], strict=True):
        assert torch.allclose(one.double(), two.double(), rtol=0, atol=1e-6)
        if "ranks" not in exempt(type(algorithm)):
            assert torch.equal(one, two)


# ---------------------------------------------------------------------- what the server sees
@dataclass(frozen=True)
class Watching(FedAvg):
    """Wants every reduction, also those of nothing, and adds 1 to the models."""

    participation = Participation(steps_on_empty_rounds=True)

    def server_step(self, ctx, shared, reduced, client_ids):
        seen = [(leaf.shape, leaf.dtype, float(leaf.double().abs().sum())) for leaf in tree.leaves(reduced)]
        SEEN.append((seen, client_ids.tolist(), int(ctx.present.sum())))
        return tree.map_leaves(lambda leaf: leaf + 1, shared)


@dataclass(frozen=True)
class WatchingRows(Watching):
    message = MessageSpec(reduce="stack")


SEEN: list = []


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer], ids=lambda one: one.name)
@pytest.mark.parametrize("wrap", [lambda one: one, AlgorithmWrapper], ids=["plain", "wrapped"])
def test_a_server_may_want_the_reduction_of_nothing(trainer, wrap):
    for algorithm, double, rows in ((Watching(), torch.float64, ()), (WatchingRows(), torch.float32, (0,))):
        SEEN.clear()
        federation = fresh(wrap(algorithm), trainer)
        before = federation.shared
        federation.round([])
        value = [((*rows, 1, *shape), double, 0.0) for shape in ((1, 4), (1,))]
        (found,) = SEEN
        assert found == ([*value, (rows, torch.float64, 0.0)], [], 0)
        assert same_bits(federation.shared, tree.map_leaves(lambda leaf: leaf + 1, before))
        assert (federation.metrics, federation.bits.tolist()) == ({}, [0, 0])


def test_wrappers_leave_it_at_that():
    run(fresh(SecureAverage(FedEM(num_components=2), SecureSum())))


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_a_private_average_of_nobody_is_noise(noise):
    """Whether somebody took part is private: the server takes its step in any case."""
    private = PrivateAverage(FedAvg(), ClientPrivacy(noise, clip_norm=1.0, delta=1e-3, noise_seed=0))
    federation = fresh(private, sampling_probability=0.5, weighting="uniform")
    before = federation.shared.inner
    federation.round([])
    changes = torch.cat([leaf.flatten() for leaf in tree.leaves(tree.sub(federation.shared.inner, before))])
    assert (changes != 0).tolist() == [noise > 0] * len(changes)
    assert float(changes.abs().max()) <= 4 * noise / (0.5 * 4)
    assert int(federation.shared.own.releases) == 1


def test_moments_of_the_server_stay():
    """A difference of 0 would halve them, and a step would be taken with them."""
    federation = fresh(FedAdam())
    federation.round([0, 2])
    first = federation.shared
    assert any(float(leaf.abs().max()) > 0 for leaf in tree.leaves(first[1:]))
    federation.round([])
    assert same_bits(federation.shared, first)


@dataclass(frozen=True)
class TwoPhases(FedAvg):
    """Of two phases `nobody` has no clients."""

    nobody: str = "first"

    def phases(self, ctx, client_ids):
        work = LocalWork(steps=1)
        return [Phase(name, client_ids[: 0 if name == self.nobody else None], work) for name in ("first", "second")]

    def client_final(self, ctx, shared, work, data):
        result = super().client_final(ctx, shared, work, data)
        return ClientResult(result.message, (), {ctx.phase: torch.ones_like(work.loss), **result.metrics})


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer], ids=lambda one: one.name)
@pytest.mark.parametrize(("nobody", "metrics"), [("first", {"second", "loss"}), ("second", {"first", "loss"})])
def test_one_of_several_phases_may_be_empty(trainer, nobody, metrics):
    federation = fresh(TwoPhases(nobody), trainer)
    for block in federation.blocks(torch.tensor([0, 2]).numpy(), federation.train, clients_per_block=4):
        list(federation.train_block(block))
        federation.end_phase()
    record = federation.commit()
    empty, other = record.phases if nobody == "first" else reversed(record.phases)
    assert empty == (0, True, 0, 0.0, 0.0, None)
    assert (other.num_clients, other.num_payloads, other.bits_up) == (2, 1, record.bits_up)
    assert (record.metrics.keys(), record.client_ids.tolist()) == (metrics, [0, 2])
    assert all(leaf.isfinite().all() for leaf in tree.leaves(federation.shared))


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer], ids=lambda one: one.name)
def test_what_a_ghost_sends_is_never_looked_at(trainer):
    """Whatever a client computes that takes no part, here with a division by the number of those that do."""

    class Dividing(FedAvg):
        def client_final(self, ctx, shared, work, data):
            result = super().client_final(ctx, shared, work, data)
            message = result.message._replace(value=tree.scale(work.models, ctx.present.sum() / ctx.present.sum()))
            return result._replace(message=message)

    run(fresh(Dividing(), trainer))


# ---------------------------------------------------------------------- algorithms that need everybody
@pytest.mark.parametrize("algorithm", NEEDING_ALL, ids=name_of)
def test_algorithms_that_need_all_clients_refuse_to_miss_one(algorithm):
    name = name_of(algorithm)
    said = (
        rf"^--data\.client_sampling is poisson, by which a client takes part in a round with probability 0\.25, and "
        rf"{name} needs every client in every round; leave out --data\.client_fraction and --data\.clients_per_round$"
    )
    with pytest.raises(ConfigError, match=said):
        refuse(algorithm, sampling="poisson", probability=0.25)
    refuse(algorithm, sampling="poisson", probability=1.0)


@pytest.mark.parametrize("algorithm", TAKEN, ids=name_of)
def test_all_others_take_it(algorithm):
    refuse(algorithm, weighting="samples", sampling="poisson", probability=0.25)
