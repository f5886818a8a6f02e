"""SecureSum around algorithms: fixed point, bits and drop-outs in whole rounds."""

import math
from dataclasses import replace

import pytest
import torch
from combination import refuse
from federated_round import Federation, distance, make_clients, make_task, same_bits
from local_norm import local_norm
from normalised import NormalisedMLP

from lit_fed.algorithms import L2GD, SCAFFOLD, UCFL, FedAvg, FedBuff, FedEM, FedNova, QFedAvg, ResponsibilityFedEM
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator
from lit_fed.errors import ClientError, ConfigError
from lit_fed.wrappers.compression.codecs import RandomK
from lit_fed.wrappers.compression.wrapper import Compressed
from lit_fed.wrappers.secure.wrapper import SecureSum

SIZES = [6, 1, 9, 3, 5]
FINE = SecureSum(modulus_bits=64, fraction_bits=40)
WEIGHED = ResponsibilityFedEM(num_components=3)


def federation(algorithm, settings=None, train=None, **options):
    options = {"solver": LocalSolver(lr=0.2, momentum=0.5, local_epochs=2), "num_rounds": 3} | options
    wrapped = algorithm if settings is None else settings.around(algorithm)
    return Federation(wrapped, make_clients(SIZES) if train is None else train, **options)


def after(algorithm, settings=None, cohorts=((0, 1, 2, 3, 4), (0, 2, 3), (4, 1, 2)), **options):
    one = federation(algorithm, settings, **options)
    for cohort in cohorts:
        one.round(list(cohort))
    return one


def shown(one):
    return [one.shared, one.states, one.predictions()]


# ---------------------------------------------------------------------- the numbers
@pytest.mark.parametrize("algorithm", [FedAvg(), WEIGHED], ids=str)
def test_absent_clients_are_filled_in(algorithm):
    plain, fine = (after(algorithm, one, aggregation="stale_fill") for one in (None, FINE))
    assert distance(shown(plain), shown(fine)) < 1e-12


@pytest.mark.parametrize(("algorithm", "bits"), [(FedEM(), 32), (WEIGHED, 64), (SCAFFOLD(), 48)], ids=str)
def test_blocks_and_neighbours_change_no_bit(algorithm, bits):
    settings, cohorts = SecureSum(modulus_bits=bits), [[0, 1, 2, 3, 4], [4, 1, 2]]
    few = after(algorithm, replace(settings, neighbours=2), cohorts, clients_per_block=1)
    assert same_bits(shown(few), shown(after(algorithm, settings, cohorts)))


def test_the_error_is_within_the_bound():
    plain, coarse = (after(FedAvg(), one, cohorts=[range(5)]) for one in (None, SecureSum(fraction_bits=6)))
    error = distance(plain.shared, coarse.shared)
    assert 1e-4 < error <= 5 * 2**-6 / (2 * sum(SIZES))


def test_without_given_bits_the_most_that_fit_are_taken():
    """With 5 clients of up to 9 samples: 2^31 / (5·9·8) allows 22 fraction bits, among 3 of them one more."""
    for cohort, fraction_bits in ((range(5), 22), (range(3), 23), ([0], 24)):
        runs = [after(FedAvg(), one, cohorts=[cohort]) for one in (SecureSum(), SecureSum(fraction_bits=fraction_bits))]
        assert same_bits(runs[0].shared, runs[1].shared)
        finer = federation(FedAvg(), SecureSum(fraction_bits=fraction_bits + 1))
        with pytest.raises(ClientError, match=f"give at most {fraction_bits}, a clip_range"):
            finer.round(list(cohort))


def test_numbers_beyond_the_range_are_cut_off_and_counted():
    plain, narrow = (after(FedAvg(), one, cohorts=[[2]]) for one in (None, SecureSum(clip_range=2.0**-6)))
    before = federation(FedAvg()).shared
    changes, cut = (tree.leaves(tree.sub(one.shared, before)) for one in (plain, narrow))
    flat = torch.cat([leaf.flatten() for leaf in changes])
    wanted = flat.clamp(-(2.0**-6), 2.0**-6)
    assert 0 < float((flat != wanted).float().mean()) == narrow.metrics["secure/clamped_share"]
    assert distance(torch.cat([leaf.flatten() for leaf in cut]), wanted) < 1e-8


def test_whole_numbers_stay_whole_and_unclamped():
    """A counter of batches counts beyond the range of changes; BatchNorm's average of counters is that of before."""
    options = {"task": make_task(network=NormalisedMLP), "train": make_clients([24, 40, 33])}
    runs = [after(FedAvg(), one, cohorts=[range(3)] * 2, **options) for one in (None, FINE)]
    counters = [one.shared.models.buffers for one in runs]
    names = [name for name, leaf in counters[0].items() if not leaf.is_floating_point()]
    assert names
    for name in names:
        assert torch.equal(counters[0][name], counters[1][name])
        assert int(counters[0][name]) > 8 * 2
    assert distance(runs[0].shared, runs[1].shared) < 1e-11


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(), WEIGHED], ids=str)
def test_a_client_drawn_twice_counts_twice(algorithm):
    cohorts = [[0, 0, 2], [4, 0, 0, 0, 3], [1, 1]]
    plain, fine = (after(algorithm, one, cohorts) for one in (None, FINE))
    assert distance(shown(plain), shown(fine)) < 1e-12
    coarse = federation(FedAvg(), SecureSum(fraction_bits=23))
    with pytest.raises(ClientError, match="a sum of 5 messages with weights up to 9"):
        coarse.round([0, 0, 0, 0, 0])


@pytest.mark.parametrize("settings", [SecureSum(), SecureSum(dropout_fraction=0.3)])
def test_phases_without_messages_and_rounds_without_clients(settings):
    cohorts = [[], [0, 1], [2]]
    algorithm = L2GD(communication_probability=0.5, flips_per_round=4)
    one = after(algorithm, settings, cohorts)
    assert all(leaf.isfinite().all() for leaf in tree.leaves(shown(one)))
    empty = federation(FedAvg(), settings)
    before = empty.shared
    empty.round([])
    assert same_bits(before, empty.shared)
    assert empty.bits.tolist() == [0, 0]


def test_a_client_without_finite_numbers_is_named():
    train = make_clients(SIZES)
    train.x[7] = math.inf
    with pytest.raises(ClientError, match=r"client 2, round 0, client_final: message.* is NaN or infinite"):
        federation(FedAvg(), SecureSum(), train).round()


# ---------------------------------------------------------------------- bits
def test_bits_are_counted_by_formula():
    """32 bits for each of d numbers and the weight, two public keys, two shares for each partner."""
    d = 5
    for settings, partners, numbers in (
        (SecureSum(), 4, d), (SecureSum(modulus_bits=48, neighbours=2), 2, d), (SecureSum(), 4, 3 * d)
    ):  # fmt: skip
        one = after(FedAvg() if numbers == d else FedEM(), settings, cohorts=[range(5)])
        each = settings.modulus_bits * (numbers + 1) + 2 * 256 + partners * 2 * 256
        assert one.bits.tolist() == [5 * each, 5 * 64 * numbers]
    weighed = after(WEIGHED, SecureSum(), cohorts=[range(5)])
    assert float(weighed.bits[0]) == 5 * (32 * (3 * d + 3 + 1) + 512 + 4 * 512)


def test_what_batch_normalisation_keeps_at_home_costs_no_bits():
    options = {"task": make_task(network=NormalisedMLP), "train": make_clients([8, 8, 8]), "cohorts": [range(3)]}
    one, local = (after(inner, SecureSum(), **options) for inner in (FedAvg(), local_norm(FedAvg())))
    kept = sum(leaf.numel() for part in local.shared.own for leaf in part.values())
    assert kept > 0
    assert float(one.bits[0] - local.bits[0]) == 3 * 32 * kept


def test_what_a_codec_leaves_out_costs_no_bits():
    """Positions that all clients share: of the 5 numbers of each model 2 are sent."""
    plain, one = (
        after(Compressed(FedEM(), RandomK(fraction=0.4), scope="whole"), settings, cohorts=[range(5)])
        for settings in (None, FINE)
    )
    assert distance(shown(plain), shown(one)) < 1e-12
    assert float(one.bits[0]) == 5 * (64 * (3 * 2 + 1) + 512 + 4 * 512)


# ---------------------------------------------------------------------- clients that drop out
DROPS = replace(FINE, dropout_fraction=0.4, threshold=0.3)


def gone(one, round_idx, size=5):
    """Who drops out of a round with all clients."""
    ctx = one.terms._replace(phase="train", round_idx=round_idx)
    return [client for client in range(size) if one.algorithm._drops_out(ctx, torch.tensor(client))]


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(), SCAFFOLD()], ids=str)
def test_the_sum_is_that_of_those_who_are_left(algorithm):
    """And who is gone keeps its state: as if it had not been drawn."""
    one, plain = federation(algorithm, DROPS), federation(algorithm)
    lost = [gone(one, round_idx) for round_idx in range(3)]
    assert any(lost)
    for missing in lost:
        one.round()
        plain.round([client for client in range(5) if client not in missing])
        assert one.metrics["secure/dropped_share"] == pytest.approx(len(missing) / 5)
        assert one.metrics["secure/void_share"] == 0
    assert distance([one.shared.models, one.states], [plain.shared.models, plain.states]) < 1e-12


def test_who_drops_out_sends_keys_alone():
    one = federation(FedAvg(), DROPS)
    left = 5 - len(gone(one, 0))
    one.round()
    assert float(one.bits[0]) == 5 * (512 + 4 * 512) + left * 64 * 6


def test_below_the_threshold_a_round_changes_nothing():
    one = federation(FedEM(), replace(DROPS, threshold=1.0))
    assert gone(one, 0)
    before = [one.shared, one.states]
    one.round()
    assert same_bits([one.shared, one.states], before)
    assert one.metrics["secure/void_share"] == 1
    assert one.round_idx == 1


@pytest.mark.parametrize(("size", "neighbours", "threshold"), [(5, None, 0.6), (6, 4, 0.6), (6, 2, 0.33)])
def test_a_round_is_void_if_too_few_holders_of_some_key_are_left(size, neighbours, threshold):
    """With neighbours, those beside a client on the round's ring."""
    settings = SecureSum(dropout_fraction=0.4, threshold=threshold, neighbours=neighbours)
    one, seen = federation(FedAvg(), settings, make_clients([2] * size)), set()
    for round_idx in range(12):
        left = [client not in gone(one, round_idx, size) for client in range(size)]
        ctx = one.terms._replace(phase="train", round_idx=round_idx)
        ring = generator(ctx.seed, round_idx, 0, "secure/ring/train").permutation(size).tolist()
        half, void = (size if neighbours is None else neighbours) // 2, False
        for place in range(size):
            held = {ring[(place + step) % size] for step in range(-half, half + 1)}
            void |= sum(left[client] for client in held) < threshold * len(held) - 1e-9
        assert one.algorithm._is_void(ctx) == void
        seen.add(void)
    assert seen == {False, True}


# ---------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (UCFL(), "UCFL needs the message of every single client"),
        (QFedAvg(), "QFedAvg sends models times numbers that no range bounds"),
        (FedNova(), "FedNova sends numbers of steps beside them, which are larger than any change"),
    ],
    ids=str,
)
def test_algorithms_that_need_more_than_a_sum_are_refused(algorithm, reason):
    with pytest.raises(ConfigError, match=f"--model.secure_aggregation shows the server a sum of .*, and {reason}; ch"):
        refuse(algorithm, secure_aggregation=SecureSum())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"modulus_bits": 65}, "--model.secure_aggregation.modulus_bits is 65; give a whole number from 8 to 64"),
        ({"clip_range": 0.0}, "--model.secure_aggregation.clip_range is 0.0; give a number > 0"),
        ({"clip_range": math.inf}, "--model.secure_aggregation.clip_range is inf; give a number > 0"),
        ({"threshold": 0.0}, "--model.secure_aggregation.threshold is 0.0; give a number in (0, 1]"),
        ({"dropout_fraction": 1.0}, r"--model.secure_aggregation.dropout_fraction is 1.0; give a number in [0, 1)"),
        ({"neighbours": 3}, "--model.secure_aggregation.neighbours is 3; give an even whole number >= 2, or null"),
    ],
)  # fmt: skip
def test_settings_outside_their_range_are_refused(given, message):
    with pytest.raises(ConfigError) as caught:
        SecureSum(**given)
    assert str(caught.value) == message


def test_cohorts_that_cannot_be_added_up_are_refused():
    with pytest.raises(ConfigError, match="overflows 32 bits; give at most 11, a clip_range of at most"):
        SecureSum(fraction_bits=23).check_cohort(100, 1000)
    SecureSum(fraction_bits=23, clip_range=0.002559).check_cohort(100, 1000)
    with pytest.raises(ConfigError, match="adds up at most 524288 clients, and a round has up to 600000"):
        SecureSum().check_cohort(600_000, 1)
    with pytest.raises(
        ConfigError, match=r"dropout_fraction is 0\.1, and FedBuff needs every client in every round; leave"
    ):
        refuse(FedBuff(), secure_aggregation=SecureSum(dropout_fraction=0.1))
