import numpy as np
import pytest

from lit_fed.data import Shards
from lit_fed.errors import ConfigError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))


@pytest.mark.parametrize("shards_per_client", [1, 2, 5])
@pytest.mark.parametrize("num_clients", [1, 7, 100])
def test_every_sample_has_one_client_and_shards_are_equal(shards_per_client, num_clients):
    parts = Shards(shards_per_client)(LABELS, num_clients, seed=3)
    assert len(parts) == num_clients
    assert np.sort(np.concatenate(parts)).tolist() == list(range(600))
    assert all((np.diff(part) > 0).all() for part in parts)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= shards_per_client


def test_the_setting_of_the_paper():
    """100 clients, two shards each, of which none crosses a label: at most two labels, and mostly two."""
    labels = np.repeat(np.arange(10), 600)  # 200 shards of 30
    parts = Shards()(labels, 100, seed=0)
    kinds = np.array([len(np.unique(labels[part])) for part in parts])
    assert {len(part) for part in parts} == {60}
    assert set(kinds) == {1, 2}
    assert np.mean(kinds == 2) == pytest.approx(1 - 19 / 199, abs=0.1)  # the second shard is of another label
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    assert set(counts.ravel()) <= {0, 30, 60}


def test_samples_of_a_label_are_shuffled():
    labels = np.zeros(1000, dtype=int)
    first, second = Shards(1)(labels, 2, seed=0)
    assert abs(first.mean() - second.mean()) < 60
    assert first.tolist() != list(range(500))


def test_the_seed_decides():
    first, again, other = ([part.tolist() for part in Shards()(LABELS, 9, seed)] for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(ConfigError, match=r"Shards: shards_per_client = 0; choose"):
        Shards(0)
    with pytest.raises(ConfigError, match="num_clients = 601, but there are only 600 samples"):
        Shards()(LABELS, 601, seed=0)
    with pytest.raises(ConfigError, match="shards_per_client = 2 needs 602 shards, there are 600 samples"):
        Shards()(LABELS, 301, seed=0)
    with pytest.raises(ConfigError, match="label"):
        Shards()(np.linspace(0, 1, 600), 5, seed=0)
