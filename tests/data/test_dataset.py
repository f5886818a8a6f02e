import numpy as np
import pytest
import torch

from lit_fed.core.errors import ConfigError
from lit_fed.data.dataset import (
    ClientDataSet,
    PooledDataSet,
    empty_split,
    input_array,
    label_array,
    make_split,
    require,
)


def test_only_client_data_sets_name_their_clients():
    assert ClientDataSet.natural
    assert not PooledDataSet.natural
    assert PooledDataSet.num_classes is None


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
