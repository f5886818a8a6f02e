import math

import pytest
import torch

from lit_fed.errors import ConfigError
from lit_fed.wrappers.secure.fixed_point import FixedPoint, modulo, most_fraction_bits, widest_range

PREFIX = "--model.secure_aggregation"


def real(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("setting", "fraction_bits", "error"),
    [
        ((32, 100, 1, 8.0), 21, 2.4e-7),
        ((32, 100, 1000, 8.0), 11, 2.4e-4),
        ((32, 1000, 1, 8.0), 18, 1.9e-6),
        ((64, 1000, 1000, 8.0), 40, 4.5e-13),
        ((32, 100, 1, 1.0), 24, 3.0e-8),
    ],
)
def test_the_bound_gives_the_fraction_bits(setting, fraction_bits, error):
    found = most_fraction_bits(*setting)
    assert found == fraction_bits
    assert 2.0**-found / 2 == pytest.approx(error, rel=0.03)  # the table of the guide
    bits, messages, weight, clip = setting
    assert messages * weight * clip * 2**found <= 2 ** (bits - 1) - 1 < messages * weight * clip * 2 ** (found + 1)


def test_three_messages_by_hand():
    point = FixedPoint(16, 8, 2.0)
    values = [real(0.75, -1.5), real(-0.25, 2), real(1, 0.125)]
    residues = [
        point.encode(value, torch.tensor(weight)) for value, weight in zip(values, (2.0, 1.0, 1.0), strict=True)
    ]
    assert [point.signed(one).tolist() for one in residues] == [[384, -768], [-64, 512], [256, 32]]
    total = modulo(sum(residues), 16)
    assert total.tolist() == [576, 65312]
    assert (point.decode(total) / 4).tolist() == [0.5625, -0.21875]


def test_an_overflow_wraps_and_is_refused_beforehand():
    """100 + 60 − 10 is −106 modulo 2^16 with 8 fraction bits."""
    point, one = FixedPoint(16, 8, 100.0), torch.tensor(1.0)
    total = modulo(sum(point.encode(real(value), one) for value in (100, 60, -10)), 16)
    assert total.tolist() == [38400]
    assert point.decode(total).tolist() == [-106.0]
    with pytest.raises(ConfigError) as caught:
        point.check(3, 1, PREFIX)
    assert str(caught.value) == (
        "--model.secure_aggregation.fraction_bits is 8, and a sum of 3 messages with weights up to 1 and values up to "
        "100 overflows 16 bits; give at most 6, a clip_range of at most 42.66, or modulus_bits 64; null takes 6"
    )
    FixedPoint(16, 6, 100.0).check(3, 1, PREFIX)
    FixedPoint(16, 8, 42.66).check(3, 1, PREFIX)
    FixedPoint(64, 8, 100.0).check(3, 1, PREFIX)


def test_what_cannot_fit_is_refused_with_the_bits_that_would_do():
    with pytest.raises(
        ConfigError, match=r"modulus_bits is 16, and .* does not fit; give 19, or --model.weighting unif"
    ):
        FixedPoint(16, 0, 8.0).check(100, 1000, PREFIX)
    assert most_fraction_bits(19, 100, 1000, 8.0) >= -3
    with pytest.raises(ConfigError, match=r"fraction_bits is 2, and with steps of 0\.25 all values up to 0\.01 are"):
        FixedPoint(32, 2, 0.01).check(3, 1, PREFIX)


@pytest.mark.parametrize("seed", range(6))
def test_decoded_sums_are_within_the_bound(seed):
    """For any modulus, range, weights and number of messages, with f at its bound and values at the range."""
    rng = generator(seed)
    bits, clip = (16, 24, 32, 40, 63, 64)[seed], (8.0, 1.0, 0.3, 5.7, 1e-3, 100.0)[seed]
    messages = int(torch.randint(2, 20, (), generator=rng))
    weights = torch.randint(1, 9, (messages,), generator=rng).double()
    values = (torch.rand(messages, 50, generator=rng, dtype=torch.float64) * 2 - 1) * clip
    values[:, 0], values[:, 1], weights[0] = clip, -clip, 8
    point = FixedPoint(bits, most_fraction_bits(bits, messages, 8, clip), clip)
    point.check(messages, 8, PREFIX)
    residues = [point.encode(value, weight) for value, weight in zip(values, weights, strict=True)]
    mean = point.decode(modulo(sum(residues), bits)) / weights.sum()
    bound = messages * 2.0**-point.fraction_bits / (2 * float(weights.sum()))  # weighting comes before rounding
    cut_off = clip - point.largest  # the range itself may lie between two multiples of the step
    assert cut_off < 2.0**-point.fraction_bits
    assert float((mean - weights @ values / weights.sum()).abs().max()) <= bound + cut_off + 1e-15 * clip
    assert bound <= 2.0**-point.fraction_bits / 2


def test_values_beyond_the_range_are_cut_off():
    point = FixedPoint(32, 10, 2.0)
    found = point.decode(point.encode(real(7, -7, 2, math.inf), torch.tensor(3.0)))
    assert found.tolist() == [6, -6, 6, 6]


@pytest.mark.parametrize("bits", [8, 31, 32, 33, 48, 64])
def test_sums_of_parts_are_exact_in_any_order(bits):
    """Also where the mean of the parts is taken and multiplied back, as the reduction does."""
    rng, point = generator(bits), FixedPoint(bits, 0, 1.0)
    residues = modulo(torch.randint(-(2**63), 2**63 - 1, (999, 7), generator=rng), bits)
    parts = torch.stack([point.split(one) for one in residues])
    assert parts.shape == (999, -(-bits // 32), 7)
    wanted = [modulo(torch.tensor(sum(column) % 2**64 - (2**64 if sum(column) % 2**64 >= 2**63 else 0)), bits)
              for column in residues.T.tolist()]  # fmt: skip
    for order in (torch.arange(999), torch.arange(999).flip(0)):
        total = parts[order].sum(0)
        assert point.join(total / 999 * 999).tolist() == [int(one) for one in wanted]


@pytest.mark.parametrize("messages", [3, 49, 1000, 99_991, 2**19])
def test_the_division_of_the_largest_sums_is_undone_by_rounding(messages):
    sums = (messages * (2**32 - 1) - torch.arange(1000)).double()
    assert torch.equal((sums / messages * messages).round(), sums)


def test_the_widest_range_is_accepted_and_a_wider_one_is_not():
    for setting in ((32, 100, 1000, 11), (16, 3, 1, 8), (64, 7, 13, 55)):
        widest = widest_range(*setting)
        FixedPoint(setting[0], setting[3], widest).check(setting[1], setting[2], PREFIX)
        with pytest.raises(ConfigError, match="overflows"):
            FixedPoint(setting[0], setting[3], widest * 1.01).check(setting[1], setting[2], PREFIX)
