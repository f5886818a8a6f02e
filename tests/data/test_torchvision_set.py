"""What all data sets that torchvision reads have in common, tried on MNIST."""

import numpy as np
import pytest
from official_files import write_mnist

from lit_fed.core.errors import ConfigError
from lit_fed.data import CIFAR10, CIFAR100, EMNIST, MNIST


@pytest.fixture
def root(tmp_path):
    """30 pictures; all pictures and, by their order, all labels differ."""
    write_mnist(tmp_path, range(20), range(20, 30))
    return str(tmp_path)


def test_fraction_is_a_share_of_the_pool_in_its_order(root):
    everything, some = MNIST(root).load(), MNIST(root, fraction=0.3).load()
    assert len(some.y) == 9
    assert some.y.tolist() == sorted(set(some.y.tolist()))
    np.testing.assert_array_equal(some.x, everything.x[some.y])


def test_fraction_depends_on_the_seed_alone(root):
    first, again, other = (MNIST(root, fraction=0.5, seed=seed).load() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x, again.x)
    assert first.y.tolist() == again.y.tolist() != other.y.tolist()


def test_a_smaller_fraction_is_part_of_a_larger_one(root):
    small, large = (MNIST(root, fraction=fraction).load().y.tolist() for fraction in (0.2, 0.6))
    assert set(small) < set(large)


def test_every_sample_is_kept_somewhere(root):
    kept = [MNIST(root, fraction=0.2, seed=seed).load().y for seed in range(60)]
    assert set(np.concatenate(kept).tolist()) == set(range(30))


def test_a_tiny_fraction_keeps_one(root):
    assert len(MNIST(root, fraction=1e-6).load().y) == 1


def test_fraction_of_a_part(root):
    labels = MNIST(root, part="test", fraction=0.5).load().y
    assert len(labels) == 5
    assert labels.min() >= 20


@pytest.mark.parametrize("dataset", [MNIST, EMNIST, CIFAR10, CIFAR100])
@pytest.mark.parametrize(
    ("field", "value"),
    [("fraction", 0.0), ("fraction", 1.1), ("fraction", float("nan")), ("part", "val"), ("seed", -1)],
)
def test_fields_out_of_range(dataset, field, value):
    with pytest.raises(ConfigError, match=f"--data.dataset.{field} is .*{value}"):
        dataset(**{field: value})


@pytest.mark.parametrize("dataset", [MNIST, EMNIST, CIFAR10, CIFAR100])
def test_constants_have_a_number_per_channel(dataset):
    channels = dataset.image_shape[0]
    assert len(dataset.normalisation.mean) == len(dataset.normalisation.std) == channels


def test_home_folder_is_expanded(tmp_path, root, monkeypatch):
    monkeypatch.setenv("HOME", root)
    assert len(MNIST("~").load().y) == 30
