"""Every algorithm inside every wrapper that may go around it: identities bit for bit, and the same numbers anyhow."""

from dataclasses import dataclass

import pytest
import torch
from federated_round import distance, make_clients, same_bits
from test_algorithms import SIZES, SMALL, after_rounds, all_algorithms, everything, small_mlp

from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.errors import ConfigError
from lit_fed.core.local_solver import LocalSolver
from lit_fed.wrappers.around import Around, innermost
from lit_fed.wrappers.client_privacy import ClientPrivacy, PrivateAverage
from lit_fed.wrappers.news import known, news

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]
SUMS = [one for one in ALL if one.sends in ("models", "changes")]
AVERAGES = [one for one in SUMS if not one.keeps_running_sum and not one.refuses_privacy]

FLOAT32 = {"dtype": torch.float32, "weighting": "uniform", "network": small_mlp}


def named(algorithms):
    return pytest.mark.parametrize("algorithm", algorithms, ids=lambda one: type(one).__name__)


@dataclass(frozen=True)
class Memory(Around):
    """Remembers clients and rounds, and changes nothing."""

    remembers_clients = True
    remembers_rounds = True

    def client_memory(self, ctx, shared, data):
        return torch.zeros((), dtype=torch.float64)

    def server_memory(self, ctx, shared):
        return torch.zeros((), dtype=torch.float64)

    def encode(self, ctx, shared, message, memory, data):
        return message, memory + 1, {}

    def decode(self, ctx, shared, reduced, client_ids):
        return reduced, shared.own + len(client_ids)


def inside(federation):
    """What a run shows, without what wrappers remember."""
    unseen = make_clients([5, 1], seed=9, first_id=len(SIZES), dtype=torch.float32)
    return [federation.predictions(), federation.predictions(unseen, seen=False)]


@named(ALL)
@pytest.mark.parametrize("wrapper", [Around, lambda one: Memory(Memory(one))], ids=["plain", "memory"])
def test_a_wrapper_that_changes_nothing(algorithm, wrapper):
    cohorts = [[0, 1, 2, 3], [2, 0], [3, 1]]
    train = make_clients(SIZES, dtype=torch.float32)
    plain, wrapped = (
        after_rounds(one, train, cohorts=cohorts, dtype=torch.float32) for one in (algorithm, wrapper(algorithm))
    )
    assert same_bits(inside(plain), inside(wrapped))
    assert plain.bits.tolist() == wrapped.bits.tolist()
    assert innermost(wrapped.algorithm) is algorithm


@named(SUMS)
def test_a_client_without_work_has_no_news(algorithm):
    """What finds an algorithm that says something wrong of what it sends."""
    if type(algorithm).__name__ in ("FedSGD", "L2GD", "FedNova", "IFCA"):
        pytest.skip("its work does not follow the solver, or its message has more than models")
    seen = []

    @dataclass(frozen=True)
    class Looks(Around):
        def encode(self, ctx, shared, message, memory, data):
            seen.append(news(message.value, known(self.inner, shared, message.value)))
            return message, memory, {}

    after_rounds(Looks(algorithm), make_clients(SIZES), rounds=1, solver=LocalSolver(local_epochs=0), network=small_mlp)
    assert len(seen) == len(SIZES)
    assert all(
        tree.norm({name: one for name, one in tree.items(changes) if "taken" not in name}) == 0 for changes in seen
    )


@named(AVERAGES)
@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer], ids=lambda one: one.name)
def test_privacy_without_bound_and_noise_is_nothing(algorithm, trainer):
    train = make_clients(SIZES, dtype=torch.float32)
    runs = [
        after_rounds(one, train, trainer=trainer(), **FLOAT32)
        for one in (algorithm, PrivateAverage(algorithm, ClientPrivacy(0.0, clip_norm=1e300, delta=1e-3)))
    ]
    assert same_bits(*(inside(run) for run in runs))
    assert runs[1].metrics["privacy/clipped_share"] == 0


@named(AVERAGES)
def test_privacy_is_the_same_for_both_client_trainers(algorithm):
    wrapped = PrivateAverage(algorithm, ClientPrivacy(0.5, clip_norm=0.1, delta=1e-3))
    one, other = (
        everything(after_rounds(wrapped, make_clients(SIZES), trainer=trainer(), weighting="uniform"))
        for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    assert distance(one, other) < 1e-9


@named([one for one in ALL if one not in AVERAGES])
def test_privacy_refuses_what_is_no_average(algorithm):
    with pytest.raises(ConfigError, match=rf"--model.privacy .* {type(algorithm).__name__}"):
        ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3).check(algorithm, type(algorithm).__name__, "renormalised", None)
