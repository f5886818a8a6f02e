"""Every algorithm inside every wrapper that may go around it: identities bit for bit, and the same numbers anyhow."""

import functools
from dataclasses import dataclass

import pytest
import torch
from combination import refuse
from federated_round import distance, make_clients, same_bits
from test_algorithms import SIZES, SMALL, after_rounds, all_algorithms, everything, network_of, small_mlp

from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import AlgorithmWrapper, innermost
from lit_fed.wrappers.compression.codecs import QSGD, Codec, Encoded, TopK
from lit_fed.wrappers.compression.wrapper import Compressed, CompressedBroadcast
from lit_fed.wrappers.deltas import delta_of, reference_of
from lit_fed.wrappers.privacy.client_level import ClientPrivacy, PrivateAverage
from lit_fed.wrappers.robust.rules import CenteredClipping, NormBound
from lit_fed.wrappers.robust.wrapper import NEVER_JUDGED, RobustAverage

pytestmark = pytest.mark.every_combination

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]
SUMS = [one for one in ALL if one.message.kind in ("models", "changes")]
JUDGED = [one for one in SUMS if not one.message.accumulates and "robust" not in one.incompatible]
AVERAGES = [one for one in SUMS if not one.message.accumulates and "privacy" not in one.incompatible]


def named(algorithms):
    return pytest.mark.parametrize("algorithm", algorithms, ids=lambda one: type(one).__name__)


@dataclass(frozen=True)
class Memory(AlgorithmWrapper):
    """Remembers clients and rounds, and changes nothing."""

    has_client_state = True
    has_server_state = True

    def client_memory(self, ctx, shared, data):
        return torch.zeros((), dtype=torch.float64)

    def server_memory(self, ctx, shared):
        return torch.zeros((), dtype=torch.float64)

    def encode(self, ctx, shared, message, memory, data):
        return message, memory + 1, {}

    def decode(self, ctx, shared, reduced, client_ids):
        return reduced, shared.own + len(client_ids)


@dataclass(frozen=True)
class Exact(Codec):
    """Loses nothing, and costs what the numbers cost."""

    def encode(self, values, chances):
        return Encoded(values, torch.full((), 32.0 * values.numel(), dtype=torch.float64))


def compressed(algorithm, up, down, feedback="ef14"):
    """An algorithm whose clients send and hear encoded changes, of the whole model since that is small."""
    return CompressedBroadcast(Compressed(algorithm, up, feedback, "whole"), down, "whole")


IDENTITIES = {
    "memory": (lambda one: Memory(Memory(one)), ALL),
    "privacy": (
        lambda one: PrivateAverage(one, ClientPrivacy(0.0, clip_norm=1e300, delta=1e-3, noise_seed=0)),
        AVERAGES,
    ),
    "compression": (lambda one: compressed(one, Exact(), Exact()), SUMS),
}
"""Wrappers that change nothing, with the algorithms that they may go around."""


def two_rounds(algorithm, trainer=SequentialTrainer, **options):
    network = network_of(innermost(algorithm))
    options = {"weighting": "uniform", "network": network, "dtype": torch.float32} | options
    return after_rounds(algorithm, make_clients(SIZES, dtype=options["dtype"]), 2, trainer=trainer(), **options)


def shown(federation):
    """What a run shows, without what wrappers remember."""
    unseen = make_clients([5, 1], seed=9, first_id=len(SIZES), dtype=torch.float32)
    return [federation.predictions(), federation.predictions(unseen, seen=False)], federation.bits.tolist()


@functools.cache
def plain_run(algorithm, trainer):
    return shown(two_rounds(algorithm, trainer))


@pytest.mark.parametrize(
    ("wrapper", "algorithm"),
    [(name, one) for name, (_, algorithms) in IDENTITIES.items() for one in algorithms],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_wrapper_that_changes_nothing(wrapper, algorithm, client_trainer):
    wrapped = IDENTITIES[wrapper][0](algorithm)
    plain, other = plain_run(algorithm, type(client_trainer)), shown(two_rounds(wrapped, type(client_trainer)))
    assert same_bits(plain[0], other[0])
    assert plain[1] == other[1]
    assert innermost(wrapped) is algorithm


@named(SUMS)
def test_a_client_without_work_has_no_news(algorithm):
    """What finds an algorithm that says something wrong of what it sends."""
    by_message = {
        "FedSGD", "FedRep", "L2GD", "L2SGDPlus", "FedNova", "IFCA", "FedDBE", "PFedFDA",
    }  # fmt: skip
    if type(algorithm).__name__ in by_message:
        pytest.skip("its work does not follow the solver, or its message has more than models")
    seen = []

    @dataclass(frozen=True)
    class Looks(AlgorithmWrapper):
        def encode(self, ctx, shared, message, memory, data):
            seen.append(delta_of(message.value, reference_of(self.inner, shared, message.value)))
            return message, memory, {}

    idle, train = LocalSolver(local_epochs=0), make_clients(SIZES)
    federation = after_rounds(Looks(algorithm), train, rounds=1, solver=idle, network=small_mlp)
    first, *_ = algorithm.phases(federation.context("plan")._replace(round_idx=0), torch.arange(len(SIZES)))
    assert len(seen) == len(first.client_ids) > 0
    assert all(
        tree.norm({name: one for name, one in tree.items(changes) if "taken" not in name}) == 0 for changes in seen
    )


@named(AVERAGES)
def test_privacy_is_the_same_for_both_client_trainers(algorithm):
    wrapped = PrivateAverage(algorithm, ClientPrivacy(0.5, clip_norm=0.1, delta=1e-3, noise_seed=0))
    runs = (two_rounds(wrapped, trainer, dtype=torch.float64) for trainer in (SequentialTrainer, VectorizedTrainer))
    assert distance(*map(everything, runs)) < 1e-9


@named([one for one in ALL if one not in AVERAGES])
def test_privacy_refuses_what_is_no_average(algorithm):
    with pytest.raises(ConfigError, match=rf"--model.privacy .* {type(algorithm).__name__}"):
        refuse(algorithm, privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3))


@named(SUMS)
def test_compression_is_the_same_for_both_client_trainers(algorithm):
    usual = not algorithm.message.accumulates and not algorithm.message.beside_models and algorithm.message.complete
    wrapped = compressed(algorithm, TopK(0.5), QSGD(3), "ef21" if usual else "ef14")
    runs = (two_rounds(wrapped, trainer, dtype=torch.float64) for trainer in (SequentialTrainer, VectorizedTrainer))
    assert distance(*map(everything, runs)) < 1e-9


@named([one for one in ALL if one not in SUMS])
def test_compression_refuses_what_is_no_sum_of_changes(algorithm):
    name = type(algorithm).__name__
    for option in ("compression", "downlink_compression"):
        with pytest.raises(ConfigError, match=rf"--model.{option} .* {name}"):
            refuse(algorithm, **{option: QSGD()})


@named(JUDGED)
def test_a_robust_rule_that_takes_all_is_the_mean(algorithm):
    """To the rounding of float64: rules act on changes, and the mean on models."""
    wrapped = RobustAverage(algorithm, NormBound(1e300))
    plain, robust = (two_rounds(one, dtype=torch.float64) for one in (algorithm, wrapped))
    assert distance(plain.predictions(), robust.predictions()) < 1e-12
    assert plain.bits.tolist() == robust.bits.tolist()


@named(JUDGED)
def test_robust_rules_are_the_same_for_both_client_trainers_and_all_blocks(algorithm):
    wrapped = RobustAverage(algorithm, CenteredClipping(0.05, 2, bucket_size=2))
    whole, cut = two_rounds(wrapped, dtype=torch.float64), two_rounds(wrapped, dtype=torch.float64, clients_per_block=1)
    assert same_bits(everything(whole), everything(cut))
    assert distance(everything(whole), everything(two_rounds(wrapped, VectorizedTrainer, dtype=torch.float64))) < 1e-9
    kept = whole.shared.own.kept
    kept = kept[kept != NEVER_JUDGED]  # FedBuff's clients come when its schedule says so
    assert len(kept)
    assert bool(((kept > 0) & (kept <= 1)).all())


@named([one for one in ALL if one not in JUDGED])
def test_robust_rules_refuse_what_is_no_average(algorithm):
    name = type(algorithm).__name__
    with pytest.raises(ConfigError, match=rf"--model.robust_aggregation NormBound acts on changes .* {name}"):
        refuse(algorithm, robust_aggregation=NormBound())
