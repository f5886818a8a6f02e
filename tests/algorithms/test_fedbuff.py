from dataclasses import dataclass

import numpy as np
import pytest
import torch
from combination import refuse
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_context,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from normalised import NormalisedMLP
from references.fedbuff_numpy import one_round, schedule, server_step

from lit_fed.algorithms import FedAvg, FedBuff
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.reduce import Accumulator
from lit_fed.core.seeds import generator
from lit_fed.errors import ConfigError
from lit_fed.rounds import check_cohort
from lit_fed.wrappers.compression.codecs import QSGD
from lit_fed.wrappers.privacy.client_level import ClientPrivacy

SIZES = [5, 2, 8, 3, 4]


def arrivals(algorithm, num_rounds, num_clients=5, seed=0):
    ctx = make_context(num_clients=num_clients, seed=seed)
    return [algorithm.arrivals(ctx._replace(round_idx=one)) for one in range(num_rounds)]


def reference_schedule(algorithm, num_rounds, num_clients=5, seed=0):
    """The schedule from the same random streams."""
    size, number = algorithm.sizes(num_clients)
    normal = generator(seed, 0, 0, "fedbuff/speeds").standard_normal(num_clients)
    means = algorithm.compute_mean * np.exp(algorithm.compute_spread * normal)
    rng = generator(seed, 0, 0, "fedbuff/trips")
    return schedule(means, algorithm.compute_min, size, number, num_rounds, rng)


# ---------------------------------------------------------------------- who comes in when
SCHEDULES = [
    FedBuff(2, 5),
    FedBuff(2, 3, compute_min=0.0, compute_spread=1.5),
    FedBuff(4, 5),
    FedBuff(3, 1),  # one after the other
    FedBuff(1, 5, compute_min=0.1),
    FedBuff(2, 5, compute_mean=0.0),  # all at once
    FedBuff(5),
]


@pytest.mark.parametrize("algorithm", SCHEDULES, ids=lambda one: f"{one.buffer_size}-{one.concurrency}")
def test_the_schedule_is_that_of_the_reference(algorithm):
    for version, (own, (buffer, time)) in enumerate(
        zip(arrivals(algorithm, 60), reference_schedule(algorithm, 60), strict=True)
    ):
        sent = (version - own.staleness).tolist()
        assert list(zip(own.client_ids.tolist(), sent, strict=True)) == buffer
        assert own.time == pytest.approx(time)


def test_a_schedule_depends_on_settings_and_seed_alone():
    """Whichever round is asked for first; and it is worked out once."""
    ctx = make_context(num_clients=7)
    late_first = FedBuff(3, compute_mean=2.0).arrivals(ctx._replace(round_idx=40))
    in_order = arrivals(FedBuff(3, compute_mean=2.0), 41, 7)
    assert in_order[40] is late_first
    fresh = reference_schedule(FedBuff(3, compute_mean=2.0), 41, 7)
    assert late_first.client_ids.tolist() == [client for client, _ in fresh[40][0]]
    assert not same_bits(arrivals(FedBuff(3), 9, seed=1)[8][:2], arrivals(FedBuff(3), 9, seed=2)[8][:2])


def test_places_hold_one_client_each():
    """Nobody is on the way twice, and nobody is sent a model into a place that is taken."""
    occupied = {}  # version by place, of those who were on their way when their round ended
    for version, found in enumerate(arrivals(FedBuff(2, 4, compute_spread=1.0), 80, 6)):
        assert len(found.client_ids.unique()) == 2
        for place, age in zip(found.places.tolist(), found.staleness.tolist(), strict=True):
            assert age == 0 or occupied.pop(place) == version - age
        for place in found.still_out.tolist():
            assert place not in occupied
            occupied[place] = version
        assert len(occupied) <= 4


def test_fast_clients_come_in_more_often():
    """As often as they are fast, where nobody waits for the buffer; where all are alike, equally often."""
    for spread in (0.0, 1.0):
        algorithm = FedBuff(1, 8, compute_min=0.0, compute_spread=spread)
        counts = torch.cat([one.client_ids for one in arrivals(algorithm, 3000, 8)]).bincount(minlength=8)
        means = torch.from_numpy(np.exp(spread * generator(0, 0, 0, "fedbuff/speeds").standard_normal(8)))
        expected = 3000 / means / (1 / means).sum()
        assert float(((counts - expected) / expected.sqrt()).abs().max()) < 4
    assert counts.max() > 4 * counts.min()


def test_usual_sizes():
    assert [FedBuff().sizes(number) for number in (1, 2, 3, 8, 15, 100)] == [
        (1, 1), (1, 2), (2, 3), (4, 8), (8, 15), (10, 20)
    ]  # fmt: skip
    assert FedBuff(3).sizes(100) == (3, 6)


# ---------------------------------------------------------------------- against the reference
@dataclass(frozen=True)
class WithoutSomeSteps(FedBuff):
    """Some rounds change nothing, as where a robust rule has too few messages."""

    def server_step(self, ctx, shared, reduced, client_ids):
        return shared if ctx.round_idx in (2, 5, 6) else super().server_step(ctx, shared, reduced, client_ids)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("kind", [FedBuff, WithoutSomeSteps])
def test_rounds_are_those_of_the_reference(kind, weighting, client_trainer):
    train, solver = make_clients(SIZES), LocalSolver(lr=0.5, momentum=0.9, local_epochs=2)
    algorithm = kind(2, 5, server_lr=0.7, compute_spread=1.0)
    options = {"trainer": client_trainer, "solver": solver, "batch_size": 2, "weighting": weighting}
    federation = Federation(algorithm, train, **options)
    versions, ages = [federation.weights[0].numpy()], set()
    for round_idx, (buffer, time) in enumerate(reference_schedule(algorithm, 12)):
        rates = {"server_lr": 0.7, "lr": 0.5, "momentum": 0.9, "by_samples": weighting == "samples"}
        new = one_round(versions, as_arrays(train), batch_orders(federation), buffer, **rates)
        versions.append(versions[-1] if kind is WithoutSomeSteps and round_idx in (2, 5, 6) else new)
        federation.round()
        np.testing.assert_allclose(federation.weights[0], versions[-1], rtol=0, atol=1e-10)
        assert federation.metrics["time/fedbuff"] == pytest.approx(time)
        if weighting == "uniform":
            assert federation.metrics["staleness"] == pytest.approx(np.mean([round_idx - sent for _, sent in buffer]))
        ages |= {round_idx - sent for _, sent in buffer}
    assert ages >= {0, 1, 2, 3}


def one_step(num_clients, ages, changes):
    """The server's step from 0 where clients come in with these changes of models that are so many steps old."""
    algorithm = FedBuff(2, num_clients, compute_spread=1.0)
    task, train = make_task(REGRESSION, 1, Scale), quadratics([1.0] * num_clients, [0.0] * num_clients)
    federation = Federation(algorithm, train, task)
    found = next(one for one in enumerate(arrivals(algorithm, 99, num_clients)) if one[1].staleness.tolist() == ages)
    federation.round_idx = found[0]
    ctx, messages = federation.context("train"), Accumulator("sum")
    for client_id, change in zip(found[1].client_ids.tolist(), changes, strict=True):
        data = train.client(client_id)
        work = algorithm.client_init(ctx, federation.shared, (), data, None)
        moved = tree.map_leaves(lambda leaf, by=change: leaf + by, work.models)
        result = algorithm.client_final(ctx, federation.shared, work._replace(models=moved), data)
        one = torch.ones(1, dtype=torch.float64)
        message = result.message._replace(bits_up=one[0], bits_down=one[0])
        messages.add(tree.map_leaves(lambda leaf: leaf[None], message), one, {})
    reduced, _, _ = messages.reduce(torch.arange(2), [2])
    return float(tree.leaves(algorithm.server_step(ctx, federation.shared, reduced, found[1].client_ids).models)[0])


def test_a_step_with_one_fresh_and_one_late_change():
    """(1 + 2/√2)/2; divided by 1 + 1/√2 it would be 1.4142135624."""
    assert one_step(3, [0, 1], [1.0, 2.0]) == pytest.approx(1.2071067812, abs=1e-10)
    assert server_step(0.0, [1.0, 2.0], [0, 1]) == pytest.approx(1.2071067812, abs=1e-10)


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("algorithm", [FedBuff(5), FedBuff(5, compute_mean=0.0), FedBuff(5, compute_spread=2.0)])
def test_a_buffer_for_all_clients_is_fedavg(algorithm, client_trainer):
    """At any speeds; up to the rounding of w + (mean − w)."""
    options = {"solver": LocalSolver(momentum=0.9, local_epochs=2), "weighting": "uniform"}
    one, other = (run_rounds(kind, client_trainer, make_clients(SIZES), **options) for kind in (algorithm, FedAvg()))
    assert distance(one.shared.models, other.shared.models) < 1e-12
    assert distance(one.predictions(), other.predictions()) < 1e-12
    assert one.bits.tolist() == other.bits.tolist()
    assert (one.metrics["loss"], one.metrics["staleness"]) == (pytest.approx(other.metrics["loss"]), 0)


def test_equal_speeds_and_a_buffer_for_all_on_their_way_are_fedavg(client_trainer):
    """On clients that are drawn for each round."""
    algorithm = FedBuff(3, 3, compute_mean=0.0)
    cohorts = [one.client_ids.tolist() for one in arrivals(algorithm, 6)]
    options = {"rounds": 6, "solver": LocalSolver(momentum=0.9), "weighting": "uniform"}
    one = run_rounds(algorithm, client_trainer, make_clients(SIZES), **options)
    other = run_rounds(FedAvg(), client_trainer, make_clients(SIZES), cohorts=cohorts, **options)
    assert distance(one.shared.models, other.shared.models) < 1e-12
    assert one.metrics["time/fedbuff"] == pytest.approx(6)
    assert len({tuple(cohort) for cohort in cohorts}) > 1


def test_running_statistics_are_averaged_as_they_are(client_trainer):
    options = {"task": make_task(network=NormalisedMLP), "rounds": 2, "weighting": "uniform"}
    train = make_clients([5, 4, 8])
    one, other = (run_rounds(algorithm, client_trainer, train, **options) for algorithm in (FedBuff(3), FedAvg()))
    assert tree.leaves(one.shared.models.buffers)
    assert distance(one.shared.models, other.shared.models) < 1e-12
    late = run_rounds(FedBuff(1, 3, compute_spread=1.0), client_trainer, train, **options | {"rounds": 6})
    variances = [leaf for name, leaf in tree.items(late.shared.models.buffers) if "var" in name]
    assert variances
    assert all((leaf > 0).all() for leaf in variances)
    assert late.shared.models.buffers.keys() == late.shared.sent_buffers.keys()


# ---------------------------------------------------------------------- what it costs, and what it refuses
def test_one_model_goes_each_way(client_trainer):
    train, task = make_clients(SIZES, dtype=torch.float32), make_task(dtype=torch.float32)
    federation = Federation(FedBuff(2, 5), train, task, trainer=client_trainer)
    for round_idx, found in enumerate(arrivals(FedBuff(2, 5), 4)):
        ctx = federation.context("train")
        assert federation.algorithm.num_payloads(ctx, federation.shared, 2) == len(set(found.staleness.tolist()))
        assert ctx.round_idx == round_idx
        federation.round()
        assert federation.bits.tolist() == [2 * 5 * 32, 2 * 5 * 32]


@pytest.mark.parametrize("name", ["buffer_size", "concurrency"])
def test_more_than_all_clients_are_refused(name):
    said = rf"^--model\.algorithm\.{name} is 6, and there are 5 clients, each of whom counts once; give at most 5$"
    with pytest.raises(ConfigError, match=said):
        Federation(FedBuff(**{name: 6}), make_clients(SIZES))


def test_what_does_not_go_together_is_refused():
    algorithm = FedBuff()
    with pytest.raises(ConfigError, match=r"FedBuff needs every client .* leave out --data\.client_fraction"):
        check_cohort("FedBuff", np.array([0, 2]), 5)
    with pytest.raises(ConfigError, match=r"FedBuff takes clients as they come in, and not each with a probability"):
        refuse(algorithm, privacy=ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3))
    with pytest.raises(ConfigError, match=r"^--model\.downlink_compression encodes .* were sent older ones; leave it"):
        refuse(algorithm, downlink_compression=QSGD())
    refuse(algorithm, compression=QSGD())
