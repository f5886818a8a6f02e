import pickle

import numpy as np
import pytest

from lit_fed.data import QuantitySkew
from lit_fed.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 6, size=1000)


@pytest.mark.parametrize("alpha", [1e-300, 0.01, 0.5, 1e4])
@pytest.mark.parametrize("num_clients", [1, 7, 300, 1000])
def test_every_sample_has_one_client_and_each_client_the_minimum(alpha, num_clients):
    minimum = min(2, 1000 // num_clients)
    parts = QuantitySkew(alpha, minimum)(LABELS, num_clients, seed=3)
    assert len(parts) == num_clients
    assert min(len(part) for part in parts) >= minimum
    assert np.sort(np.concatenate(parts)).tolist() == list(range(1000))
    assert all((np.diff(part) > 0).all() for part in parts)


def test_the_seed_decides():
    first, again, other = (
        [part.tolist() for part in partition(LABELS, 9, seed)]
        for partition, seed in (
            (QuantitySkew(), 0), (pickle.loads(pickle.dumps(QuantitySkew())), 0), (QuantitySkew(), 1)
        )
    )  # fmt: skip
    assert first == again
    assert first != other


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_the_spread_of_the_shares_is_that_of_the_dirichlet_distribution(alpha):
    """The variance of a share of Dirichlet(a) over T clients is (T - 1) / T² / (T a + 1), and every mean is 1 / T."""
    labels = np.zeros(5000, dtype=int)
    shares = np.array([[len(part) / 5000 for part in QuantitySkew(alpha)(labels, 10, seed)] for seed in range(400)])
    assert shares.var(axis=0).mean() == pytest.approx(0.09 / (10 * alpha + 1), rel=0.15)
    np.testing.assert_allclose(shares.mean(0), 0.1, atol=6 * np.sqrt(0.09 / (10 * alpha + 1) / 400))


def test_labels_are_alike_at_all_clients():
    labels = np.repeat(np.arange(4), 5000)  # in order, so that samples that are not shuffled would stay apart
    parts = [part for part in QuantitySkew()(labels, 10, seed=0) if len(part) > 1000]
    frequencies = np.array([np.bincount(labels[part], minlength=4) / len(part) for part in parts])
    assert len(parts) >= 2
    np.testing.assert_allclose(frequencies, 0.25, atol=0.05)


def test_any_labels_will_do():
    assert len(QuantitySkew()(np.random.default_rng(0).random((50, 3)), 5, seed=0)) == 5


@pytest.mark.parametrize(("field", "value"), [("alpha", 0.0), ("min_samples", 0)])
def test_out_of_range_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"QuantitySkew: {field} = {value}; choose"):
        QuantitySkew(**{field: value})


def test_more_clients_than_samples():
    with pytest.raises(ConfigError, match=r"1001.*at most 1000"):
        QuantitySkew()(LABELS, 1001, seed=0)
