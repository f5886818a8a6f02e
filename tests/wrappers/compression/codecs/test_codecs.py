"""Codecs on vectors whose results are known, with their variances by exact formula."""

import math

import pytest
import torch

from lit_fed.errors import ConfigError
from lit_fed.wrappers.compression.codecs import (
    QSGD,
    Drive,
    FloatCast,
    LowRank,
    RandomK,
    ScaledSign,
    TernGrad,
    TopK,
    Uniform,
)
from lit_fed.wrappers.compression.codecs.drive import hadamard
from lit_fed.wrappers.compression.codecs.levels import omega_length
from lit_fed.wrappers.compression.codecs.low_rank import power_iteration


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


V = vector(3, -4, 0, 1, -2, 0.5, 0, -1)
CHANCES = vector(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SQUARED, TOTAL = 31.25, 11.5


def given(chances):
    def first(count):
        assert count <= len(chances)
        return chances[:count]

    return first


def no_chances(count):
    raise AssertionError("it needs no random numbers")


def encoded(codec, values=V, chances=CHANCES):
    drawn = no_chances if codec.randomness == "none" else given(chances)
    found = codec.encode(values, drawn)
    assert found.decoded.shape == values.shape
    assert found.decoded.dtype == values.dtype
    assert found.bits.shape == ()
    assert found.bits.dtype == torch.float64
    return found


def error(found, values=V):
    return float((found.decoded - values).square().sum())


def close(numbers, tolerance=1e-9):
    return pytest.approx(numbers, abs=tolerance, rel=0)


# ---------------------------------------------------------------------- what is decoded, and what it costs
@pytest.mark.parametrize(
    ("precision", "numbers", "wanted"),
    [
        (
            "float16",
            (1 / 3, 3.14159265, 65519, 1e-8, 6e-8, 2049),
            [0.333251953125, 3.140625, 65504, 0, 5.960464477539063e-08, 2048],
        ),
        ("float16", (65520, -1e9), [65504, -65504]),
        ("bfloat16", (1 / 3, 3.14159265, 65519), [0.333984375, 3.140625, 65536]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_cast(precision, numbers, wanted, dtype):
    found = encoded(FloatCast(precision), torch.tensor(numbers, dtype=dtype))
    assert found.decoded.tolist() == wanted
    assert found.bits == 16 * len(numbers)


@pytest.mark.parametrize(
    ("bits", "codes", "cost"), [(2, [3, 0, 2, 2, 1, 2, 1, 1], 48), (8, [224, 0, 128, 159, 64, 143, 127, 95], 96)]
)
def test_uniform(bits, codes, cost):
    found = encoded(Uniform(bits))
    step = 8 / (2**bits - 1)
    assert found.decoded.tolist() == close([code * step - 4 for code in codes])
    assert found.bits == cost


def test_the_uniform_grid_has_no_zero():
    found = encoded(Uniform(8))
    assert [abs(float(found.decoded[one])) for one in (2, 6)] == close([0.0156862745] * 2, 1e-10)


@pytest.mark.parametrize(
    ("levels", "wanted", "plain", "sparse", "dense"),
    [
        (1, [1, 1, 0, 0, 0, 0, 0, 0], 48, 38, 46),
        (2, [1, 2, 0, 0, 1, 0, 0, 0], 56, 45, 49),
        (4, [3, 3, 0, 1, 1, 0, 0, 0], 64, 50, 58),
        (127, [69, 91, 0, 23, 45, 11, 0, 22], 96, 115, 107),
    ],
)
def test_qsgd(levels, wanted, plain, sparse, dense):
    for coding, bits in (("plain", plain), ("sparse", sparse), ("dense", dense)):
        found = encoded(QSGD(levels, coding=coding))
        assert (found.decoded.abs() * levels / 5.5901699437).tolist() == close(wanted, 1e-8)
        assert (found.decoded.sign() * V.sign() >= 0).all()
        assert found.bits == bits
    if levels == 4:
        numbers = [4.1926274578, -4.1926274578, 0, 1.3975424859, -1.3975424859, 0, 0, 0]
        assert found.decoded.tolist() == close(numbers, 1e-9)


@pytest.mark.parametrize("coding", ["plain", "sparse", "dense"])
def test_qsgd_in_buckets_is_qsgd_of_each(coding):
    """The last bucket is shorter."""
    codec, parts = QSGD(4, 3, coding), [slice(0, 3), slice(3, 6), slice(6, 8)]
    found = encoded(codec)
    each = [encoded(QSGD(4, coding=coding), V[part], CHANCES[part]) for part in parts]
    assert torch.equal(found.decoded, torch.cat([one.decoded for one in each]))
    assert found.bits == sum(float(one.bits) for one in each)


def test_length_of_omega_codes():
    numbers = [1, 2, 3, *range(4, 8), *range(8, 16), 16, 31, 32, 255, 256, 2**20 - 1, 2**20]
    wanted = [1, 3, 3, *[6] * 4, *[7] * 8, 11, 11, 12, 14, 16, 20 + 11, 21 + 11]
    assert omega_length(torch.tensor(numbers)).tolist() == wanted


def test_terngrad():
    found = encoded(TernGrad())
    assert found.decoded.tolist() == [4, -4, 0, 0, 0, 0, 0, 0]
    assert found.bits == 48
    assert torch.equal(encoded(TernGrad(clip_sigma=2.5)).decoded, found.decoded)  # 2.5σ = 4.88, beyond all numbers
    clipped = encoded(TernGrad(clip_sigma=1.0)).decoded
    assert float(clipped.abs().max()) == pytest.approx(float(V.std(correction=0)))


def test_scaled_sign():
    found = encoded(ScaledSign())
    assert found.decoded.tolist() == [1.4375, -1.4375, 1.4375, 1.4375, -1.4375, 1.4375, 1.4375, -1.4375]
    assert found.bits == 40
    delta = TOTAL**2 / (8 * SQUARED)
    assert delta == close(0.529)
    assert error(found) == close(14.71875)
    assert error(found) == close((1 - delta) * SQUARED)


@pytest.mark.parametrize(
    ("k", "wanted", "left", "bits"),
    [
        (1, [0, -4, 0, 0, 0, 0, 0, 0], 15.25, 35),
        (2, [3, -4, 0, 0, 0, 0, 0, 0], 6.25, 70),
        (4, [3, -4, 0, 1, -2, 0, 0, 0], 1.25, 136),  # of the two ones the first; a bit for each of eight is shorter
        (8, V.tolist(), 0, 8 + 8 * 32),
    ],
)
def test_top_k(k, wanted, left, bits):
    found = encoded(TopK(k=k))
    assert found.decoded.tolist() == wanted
    assert error(found) == left
    assert found.bits == bits


def test_top_k_of_equal_numbers_takes_the_first():
    assert encoded(TopK(k=3), vector(1, -1, 0, 1, 1, -1)).decoded.tolist() == [1, -1, 0, 1, 0, 0]
    assert encoded(TopK(k=2), torch.zeros(5)).decoded.tolist() == [0] * 5


def test_random_k():
    chances = vector(0.1, 0.9, 0.5, 0.4, 0.8, 0.3, 0.2, 0.05)
    found = encoded(RandomK(k=2), chances=chances)
    assert found.decoded.tolist() == [0, -16, 0, 0, -8, 0, 0, 0]
    assert found.bits == 64


@pytest.mark.parametrize(("codec", "wanted"), [(TopK(), 7), (TopK(fraction=0.001), 1), (RandomK(0.5), 350)])
def test_a_share_of_the_numbers(codec, wanted):
    values = torch.arange(1.0, 701)
    assert int((encoded(codec, values, torch.linspace(0, 0.99, 700)).decoded != 0).sum()) == wanted


SIGNS = vector(0.1, 0.9, 0.1, 0.1, 0.9, 0.1, 0.9, 0.1)  # + − + + − + − +


def test_drive():
    rotated = hadamard(V * torch.where(SIGNS < 0.5, 1.0, -1.0)) / math.sqrt(8)
    ends = [3.3587572106, 0.1767766953, 3.3587572106, 0.1767766953, 2.2980970389, -1.5909902577, 0.8838834765]
    assert rotated.tolist() == close([*ends, -0.1767766953], 1e-9)
    assert float(rotated.abs().sum()) == close(12.0208152802)
    found = encoded(Drive(), chances=SIGNS)
    assert found.decoded.tolist() == close([3.6764705882, -3.6764705882, 0, 0, -3.6764705882, -3.6764705882, 0, 0])
    assert float(found.decoded @ V) == close(SQUARED)
    assert error(found) == close(22.8157439446)
    assert found.bits == 8 + 32
    scale = 2.5996572838
    assert float(found.decoded.square().sum()) == close(8 * scale**2, 1e-7)
    best = encoded(Drive("best"), chances=SIGNS)
    assert error(best) == close(13.1875)
    assert float(best.decoded.square().sum()) == close(8 * 1.5026019100**2, 1e-8)


def test_drive_fills_up_to_a_power_of_two():
    found = encoded(Drive(), V[:5], SIGNS)
    assert found.bits == 8 + 32
    assert float(found.decoded @ V[:5]) == close(float(V[:5] @ V[:5]))
    assert encoded(Drive(), V[:1], SIGNS).decoded.tolist() == [3]


MATRIX = vector(2, 0, 1, 1, 0, 3).view(3, 2)


def test_low_rank():
    start = vector(1, 1).view(2, 1) / math.sqrt(2)
    once = power_iteration(MATRIX, start)
    left, right = vector(0.4850712501, 0.4850712501, 0.7276068751), vector(1.4552137502, 2.6678918754)
    assert once.flatten().tolist() == close((left[:, None] * right).flatten().tolist())
    assert float((once - MATRIX).square().sum()) == close(5.7647058824)
    assert float((power_iteration(MATRIX, start, 2) - MATRIX).square().sum()) == close(5.0545335085)
    assert float((power_iteration(MATRIX, start, 60) - MATRIX).square().sum()) == close(4.8074175964)
    whole = power_iteration(MATRIX, vector(0.3, -0.2, 0.1, 0.9).view(2, 2))
    assert float((whole - MATRIX).abs().max()) < 1e-6


def test_low_rank_of_leaves():
    """The first axis against all others; what would not become shorter goes as it is."""
    generator = torch.Generator().manual_seed(0)
    kernel, chances = (
        torch.randn(8, 3, 5, 5, generator=generator, dtype=torch.float64),
        torch.rand(150, generator=generator),
    )
    found = encoded(LowRank(2), kernel, chances)
    assert torch.linalg.matrix_rank(found.decoded.view(8, 75)) == 2
    assert found.bits == 32 * 2 * (8 + 75)
    more = encoded(LowRank(2, iterations=4), kernel, chances)
    assert error(more, kernel) < error(found, kernel) < float(kernel.square().sum())
    for plain in (kernel[0, 0, 0], kernel[:, 0, 0, :2], torch.tensor(3.0)):
        as_it_is = encoded(LowRank(2), plain, chances)
        assert torch.equal(as_it_is.decoded, plain)
        assert as_it_is.bits == 32 * plain.numel()


# ---------------------------------------------------------------------- bias and variance
UNBIASED = [Uniform(2), Uniform(8), *(QSGD(levels) for levels in (1, 2, 4, 127)), TernGrad()]


def exact_variance(codec):
    """Σ step²·p(1 − p) over the numbers, from what a number rounds down and up to."""
    low, high = (
        encoded(codec, chances=torch.full((8,), chance, dtype=torch.float64)).decoded for chance in (1 - 1e-9, 0.0)
    )
    step = (high - low).abs()
    share = torch.where(step > 0, (V - low).abs() / torch.where(step > 0, step, 1.0), 0.0)
    return float((step.square() * share * (1 - share)).sum())


VARIANCES = [9.6388888889, 0.0014878893, 33.0369543531, 8.7746667828, 2.1993481383, 0.0021743618, 14.75]


@pytest.mark.parametrize(("codec", "variance"), list(zip(UNBIASED, VARIANCES, strict=True)), ids=repr)
def test_variance(codec, variance):
    assert exact_variance(codec) == close(variance, 1e-7 if variance > 1 else 1e-10)
    if isinstance(codec, QSGD):
        assert variance <= min(8 / codec.levels**2, math.sqrt(8) / codec.levels) * SQUARED
    if isinstance(codec, Uniform):
        assert variance <= 8 * (8 / (2**codec.bits - 1)) ** 2 / 4
    if isinstance(codec, TernGrad):
        assert variance == close(4 * TOTAL - SQUARED)


@pytest.mark.parametrize("codec", UNBIASED, ids=repr)
def test_nothing_is_lost_on_average(codec):
    """With chances (j + ½)/N the mean is exact to 1/N of a step."""
    count = 400
    chances = ((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None].expand(count, 8)
    drawn = torch.func.vmap(lambda one: codec.encode(V, given(one)).decoded)(chances)
    assert float((drawn.mean(0) - V).abs().max()) <= 8 / count
    assert codec.unbiased


def test_random_k_on_average():
    """Over all pairs of positions, by the formula (d/k − 1)‖v‖²."""
    drawn = []
    for first in range(8):
        for second in range(first):
            chances = torch.full((8,), 0.5, dtype=torch.float64)
            chances[[first, second]] = 0.9
            drawn.append(encoded(RandomK(k=2), chances=chances).decoded)
    drawn = torch.stack(drawn)
    assert drawn.mean(0).tolist() == close(V.tolist())
    assert float((drawn - V).square().sum(1).mean()) == close((8 / 2 - 1) * SQUARED)
    assert (8 / 2 - 1) * SQUARED == 93.75


def test_which_codecs_are_biased():
    biased = {FloatCast(), ScaledSign(), TopK(), LowRank(), TernGrad(2.5), Drive("best")}
    assert not any(codec.unbiased for codec in biased)
    assert all(codec.unbiased for codec in (RandomK(), Drive(), QSGD(), Uniform(), TernGrad()))
    everything = (*biased, RandomK(), QSGD(), Uniform())
    assert [type(codec).__name__ for codec in everything if codec.adds_up] == ["RandomK"]


@pytest.mark.parametrize("codec", [ScaledSign(), TopK(k=3), TopK(0.2)], ids=repr)
def test_biased_codecs_contract(codec):
    generator = torch.Generator().manual_seed(1)
    for count in (15, 64):
        for values in torch.randn(20, count, generator=generator, dtype=torch.float64) ** 3:
            left, whole = error(encoded(codec, values), values), float(values.square().sum())
            if isinstance(codec, TopK):
                assert left <= (1 - codec._num_sent(count) / count) * whole
            else:
                share = float(values.abs().sum()) ** 2 / (count * whole)
                assert left == pytest.approx((1 - share) * whole)


# ---------------------------------------------------------------------- identities, zeros, many clients
@pytest.mark.parametrize(
    "codec", [QSGD(2**23), TopK(k=8), TopK(1.0), RandomK(k=8), Uniform(31), Uniform(32), LowRank(2)], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_codecs_that_leave_a_vector_as_it_is(codec, dtype):
    values = (V.view(4, 2) if codec.keeps_shape else V).to(dtype)
    assert float((encoded(codec, values).decoded - values).abs().max()) < 1e-6


ALL = [
    FloatCast(), FloatCast("bfloat16"), Uniform(3), QSGD(), QSGD(3, 4, "sparse"), QSGD(coding="dense"), TernGrad(),
    TernGrad(1.0), ScaledSign(), TopK(k=2), RandomK(k=3), Drive(), Drive("best"), LowRank(1, 2),
]  # fmt: skip


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_nothing_costs_little(codec):
    """A vector that did not move is decoded as 0, and costs its scale alone where there is one."""
    values = torch.zeros(4, 3) if codec.keeps_shape else torch.zeros(8)
    found = encoded(codec, values, torch.rand(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert float(found.decoded.abs().max()) == 0
    if isinstance(codec, Uniform | QSGD | TernGrad | ScaledSign | Drive):
        assert found.bits == 32 * (2 if codec == QSGD(3, 4, "sparse") else 1)


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_many_clients_at_once(codec):
    """On vectors and chances of their own, up to the order of sums."""
    generator = torch.Generator().manual_seed(3)
    shape = (5, 4, 3) if codec.keeps_shape else (5, 11)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    values[2] = 0
    chances = torch.rand(5, 16, generator=generator, dtype=torch.float64)
    before = values.clone(), chances.clone()
    at_once = torch.func.vmap(lambda one, drawn: codec.encode(one, given(drawn)))(values, chances)
    alone = [codec.encode(one, given(drawn)) for one, drawn in zip(values, chances, strict=True)]
    bits = torch.stack([one.bits for one in alone])
    assert torch.equal(at_once.bits.expand(5), bits)
    decoded = torch.stack([one.decoded for one in alone])
    assert torch.allclose(at_once.decoded, decoded, rtol=1e-12, atol=1e-12)
    assert torch.equal(values, before[0])
    assert torch.equal(chances, before[1])


# ---------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("codec", "settings", "message"),
    [
        (FloatCast, {"precision": "float8"}, "FloatCast.precision is float8; give float16 or bfloat16"),
        (Uniform, {"bits": 0}, "Uniform.bits is 0; give a whole number from 1 to 32"),
        (Uniform, {"bits": 33}, "Uniform.bits is 33; give a whole number from 1 to 32"),
        (QSGD, {"levels": 0}, "QSGD.levels is 0; give a whole number from 1 to 8388608"),
        (QSGD, {"bucket_size": 0}, "QSGD.bucket_size is 0; give a whole number >= 1, or null"),
        (QSGD, {"coding": "huffman"}, "QSGD.coding is huffman; give plain, sparse or dense"),
        (TernGrad, {"clip_sigma": 0.0}, "TernGrad.clip_sigma is 0.0; give a number > 0, or null"),
        (TernGrad, {"clip_sigma": math.inf}, "TernGrad.clip_sigma is inf; give a number > 0, or null"),
        (TopK, {"k": 0}, "TopK.k is 0; give a whole number >= 1, or null"),
        (TopK, {"fraction": 0.0}, r"TopK.fraction is 0.0; give a number in \(0, 1\]"),
        (RandomK, {"fraction": 1.5}, r"RandomK.fraction is 1.5; give a number in \(0, 1\]"),
        (Drive, {"scale": "worst"}, "Drive.scale is worst; give unbiased or best"),
        (LowRank, {"rank": 0}, "LowRank.rank is 0; give a whole number >= 1"),
        (LowRank, {"iterations": 0}, "LowRank.iterations is 0; give a whole number >= 1"),
    ],
)
def test_wrong_settings(codec, settings, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        codec(**settings)


@pytest.mark.parametrize("codec", [TopK(k=9), RandomK(k=9)])
def test_more_numbers_than_there_are(codec):
    name = type(codec).__name__
    message = f"{name}.k is 9, and network.weight has 8 numbers; give at most 8, or fraction"
    with pytest.raises(ConfigError, match=message):
        codec.check_size(8, "network.weight")
    codec.check_size(9, "network.weight")
    with pytest.raises(ConfigError, match="the vector has 8 numbers"):
        encoded(codec)
