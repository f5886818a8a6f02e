import numpy as np
import pytest
import torch

from lit_fed.data.data_sets.base import (
    ClientDataSet,
    DataSet,
    Normalisation,
    PooledDataSet,
    check_names,
    draw_subsample,
    empty_split,
    input_array,
    label_array,
    make_split,
    require,
)
from lit_fed.data.data_sets.digits import Digits
from lit_fed.data.data_sets.mnist import MNIST
from lit_fed.errors import ConfigError


def test_only_client_data_sets_name_their_clients():
    assert ClientDataSet.natural
    assert not PooledDataSet.natural
    assert PooledDataSet.num_classes is None


@pytest.mark.parametrize(
    "pair", [("a", "a "), ("b c", "b  c"), ("b c", "b\xa0c"), ("a", "a\u200b"), ("K\xf6ln", "Ko\u0308ln")]
)
def test_names_that_look_the_same_are_refused(pair):
    with pytest.raises(ConfigError) as caught:
        check_names(["x", *pair, "y"], "columns")
    assert str(caught.value) == (
        f"columns {pair[0]!a} and {pair[1]!a} differ only in spaces or Unicode form; rename one"
    )


def test_names_that_differ_in_case_are_said(capsys):
    check_names(["a", "b", "ab", "a b", ""], "clients")
    assert capsys.readouterr().err == ""
    check_names(["no", "NO", "x2", "x\xb2", "No"], "classes")
    said = "classes 'no' and 'NO', as 2 more do, differ only in case; they are kept apart"
    assert capsys.readouterr().err == f"lit_fed: {said}\n"


def test_long_names_of_clients_are_refused():
    check_names(["a" * 200], "clients")
    check_names(["a" * 201], "columns")
    with pytest.raises(ConfigError, match=r"client 'a{20}'… has a name of 201 bytes; shorten it"):
        check_names(["b", "a" * 201], "clients")


def test_normalisation_by_channel_in_place():
    x = np.array([[[0.5, 1.0], [0.0, 0.25]]], dtype=np.float32)  # one sample, 2 channels, 2 pixels
    normalised = Normalisation((0.5, 0.25), (0.25, 0.5)).apply(x)
    assert normalised is x
    assert x.tolist() == [[[0.0, 2.0], [-0.5, 0.0]]]


def test_normalisation_of_vectors():
    x = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    assert Normalisation((1.0, 2.0), (2.0, 1.0)).apply(x).tolist() == [[0.0, 0.0], [1.0, 2.0]]


@pytest.mark.parametrize("kind", ["read-only", "float64"])
def test_normalisation_keeps_what_it_may_not_overwrite(kind):
    x = np.full((2, 1, 3), 0.5, dtype=np.float64 if kind == "float64" else np.float32)
    x.flags.writeable = kind != "read-only"
    normalised = Normalisation((0.25,), (0.125,)).apply(x)
    assert normalised.dtype == np.float32
    assert (normalised == 2).all()
    assert (x == 0.5).all()


@pytest.mark.parametrize("shape", [(2, 3, 4), (2,)])
def test_normalisation_needs_a_constant_per_channel(shape):
    with pytest.raises(ConfigError, match="one of each per channel"):
        Normalisation((0.5,), (0.5,)).apply(np.zeros(shape, dtype=np.float32))


def test_normalisation_is_none_by_default():
    assert DataSet.normalisation is None


def test_pixels_are_scaled():
    scaled = input_array(np.array([[0, 51, 255]], dtype=np.uint8))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [[0, 0.2, 1]])


@pytest.mark.parametrize(
    ("given", "kept"), [("int32", "int64"), ("uint16", "int64"), ("float64", "float32"), ("bool", "float32")]
)
def test_input_types(given, kept):
    assert input_array(np.ones(3, dtype=given)).dtype == kept


@pytest.mark.parametrize(("given", "kept"), [("int8", "int64"), ("bool", "int64"), ("float64", "float32")])
def test_label_types(given, kept):
    assert label_array(np.ones(3, dtype=given)).dtype == kept


@pytest.mark.parametrize("convert", [input_array, label_array])
def test_text_is_refused(convert):
    with pytest.raises(ConfigError, match="<U1"):
        convert(np.array(["a"]))


def test_float32_is_not_copied():
    x = np.ones((2, 3), dtype=np.float32)
    assert input_array(x) is x


def test_a_float64_beyond_float32_becomes_infinite_without_warning():
    assert np.isinf(input_array(np.array([1e300])))[0]


def test_split_shares_memory_and_knows_its_clients():
    x, y = np.zeros((3, 2), dtype=np.float32), np.arange(3)
    split = make_split(x, y, np.array([1, 0, 2]))
    x[2, 1] = 7
    assert split.x[2, 1] == 7
    assert split.sizes.tolist() == [1, 0, 2]
    assert split.client(2).y.tolist() == [1, 2]


def test_empty_split_keeps_shapes():
    split = empty_split(make_split(np.zeros((3, 2), dtype=np.float32), np.arange(3), np.array([1, 2])))
    assert split.x.shape == (0, 2)
    assert split.y.dtype == torch.int64
    assert split.sizes.tolist() == [0, 0]


def test_require():
    require(True, "never seen")
    with pytest.raises(ConfigError, match="seen"):
        require(False, "seen")


@pytest.mark.parametrize(
    ("total", "fraction", "expected"), [(100, 0.29, 29), (3597, 0.15, 539), (7, 1e-6, 1), (5, 1, 5)]
)
def test_size_of_a_share(total, fraction, expected):
    kept = draw_subsample(total, fraction, 0)
    assert kept.shape == (total,)
    assert kept.sum() == expected


def test_a_smaller_share_lies_in_a_larger_one():
    small, large = (set(np.flatnonzero(draw_subsample(50, fraction, 3))) for fraction in (0.2, 0.6))
    assert small < large
    assert small != set(np.flatnonzero(draw_subsample(50, 0.2, 4)))


def test_the_whole_range_of_seeds_is_taken():
    MNIST(seed=2**32 - 1)
    with pytest.raises(ConfigError, match=f"--data.dataset.seed is {2**32}"):
        MNIST(seed=2**32)


def test_digits():
    samples = Digits().load()
    assert samples.x.shape == (1797, 1, 8, 8)
    assert samples.x.dtype == np.float32
    assert (samples.x.min(), samples.x.max()) == (0, 1)
    assert samples.y.dtype == np.int64
    assert sorted(set(samples.y.tolist())) == list(range(Digits.num_classes))
    assert samples.owner is None
