import numpy as np
import pytest
import torch

from lit_fed.data import Sine
from lit_fed.errors import ConfigError


def split_of(data, name):
    population, unseen = data.load()
    assert unseen is None
    return getattr(population, name)


def test_every_client_sees_its_own_interval():
    data = Sine(num_clients=5, samples_per_client=50)
    train = split_of(data, "train")
    assert train.sizes.tolist() == [50] * 5
    assert train.x.dtype == train.y.dtype == torch.float32
    for client_id in range(5):
        low, high = data.interval(client_id)
        x = train.client(client_id).x
        assert low <= float(x.min()) < low + 0.1
        assert high - 0.1 < float(x.max()) <= high
    assert data.interval(0)[0] == -1
    assert data.interval(4)[1] == pytest.approx(1)


def test_the_noise_has_variance_one_around_the_curve():
    data = Sine(num_clients=4, test_size=5000, noise=0.2)
    test = split_of(data, "test")
    residual = test.y.numpy() - data.curve(test.x.numpy()[:, 0])
    assert abs(residual.mean()) < 0.03
    assert abs(residual.std() - 1) < 0.03
    np.testing.assert_allclose(data.curve(np.array([-1, -0.5, 0, 0.5])), [0, 5, 0, -5], atol=1e-12)


def test_same_seed_same_samples_and_splits_differ():
    one, other = (split_of(Sine(seed=3), "train") for _ in range(2))
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert not torch.equal(one.x, split_of(Sine(seed=4), "train").x)
    assert not torch.equal(one.x[:2], split_of(Sine(seed=3), "test").x[:2])
    assert len(split_of(Sine(), "val").y) == 0


def test_each_client_draws_from_a_stream_of_its_own():
    train = split_of(Sine(num_clients=10, samples_per_client=9), "train")
    assert train.sizes.sum() == 90
    inside = [train.client(one).x - Sine(num_clients=10).interval(one)[0] for one in range(2)]
    assert not torch.allclose(*inside)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_clients": 0}, "num_clients is 0"),
        ({"samples_per_client": 0}, "samples_per_client is 0"),
        ({"test_size": 0}, "test_size is 0"),
        ({"noise": 0.0}, r"noise is 0\.0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_values_are_named(wrong, message):
    with pytest.raises(ConfigError, match=f"--data.dataset.{message}; give"):
        Sine(**wrong)
