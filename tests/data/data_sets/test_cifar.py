import numpy as np
import pytest
import torchvision
from official_files import write_cifar

from lit_fed.data import CIFAR10, CIFAR100
from lit_fed.errors import ConfigError

SOURCES = torchvision.datasets.CIFAR10, torchvision.datasets.CIFAR100


def test_cifar10(tmp_path, monkeypatch):
    rows = write_cifar(tmp_path, SOURCES[0], [[3], [1, 4], [1], [5], [9], [2, 6]], monkeypatch)
    samples = CIFAR10(str(tmp_path)).load()
    assert samples.x.shape == (8, 3, 32, 32)
    assert samples.x.dtype == np.float32
    assert samples.y.tolist() == [3, 1, 4, 1, 5, 9, 2, 6]
    assert samples.y.dtype == np.int64
    # a row holds 1,024 red bytes, then the green and the blue ones, each line by line
    red, blue = rows[1, 32 * 2 + 5], rows[1, 2048 + 32 * 31]
    assert samples.x[1, 0, 2, 5] == pytest.approx((red / 255 - 0.4914) / 0.2023, rel=1e-5)
    assert samples.x[1, 2, 31, 0] == pytest.approx((blue / 255 - 0.4465) / 0.2010, rel=1e-5)
    mean, std = (np.repeat(one, 1024) for one in ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]))
    np.testing.assert_allclose(samples.x.reshape(8, 3072), (rows / 255 - mean) / std, rtol=1e-5, atol=1e-6)


def test_cifar100(tmp_path, monkeypatch):
    rows = write_cifar(tmp_path, SOURCES[1], [[19, 29, 0], [99]], monkeypatch)
    samples = CIFAR100(str(tmp_path)).load()
    assert samples.y.tolist() == [19, 29, 0, 99]
    mean, std = (np.repeat(one, 1024) for one in ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]))
    np.testing.assert_allclose(samples.x.reshape(4, 3072), (rows / 255 - mean) / std, rtol=1e-5, atol=1e-6)
    assert CIFAR100(str(tmp_path), part="test").load().y.tolist() == [99]


def test_fraction_crosses_the_parts(tmp_path, monkeypatch):
    write_cifar(tmp_path, SOURCES[1], [list(range(30)), list(range(30, 40))], monkeypatch)
    everything, some = CIFAR100(str(tmp_path)).load(), CIFAR100(str(tmp_path), fraction=0.5).load()
    assert len(some.y) == 20
    assert (some.y < 30).any()
    assert (some.y >= 30).any()
    np.testing.assert_array_equal(some.x, everything.x[some.y])


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ConfigError) as caught:
        CIFAR10(str(tmp_path)).load()
    for word in (str(tmp_path), "cifar-10-batches-py/data_batch_5", "batches.meta", "--data.dataset.download true"):
        assert word in str(caught.value)


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    write_cifar(tmp_path, SOURCES[1], [[1], [2]], monkeypatch)
    with (tmp_path / "cifar-100-python/test").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ConfigError, match=r"CIFAR100 cannot be read .*corrupted"):
        CIFAR100(str(tmp_path)).load()


@pytest.mark.parametrize(
    ("dataset", "address", "checksum"),
    [
        (CIFAR10, "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        (CIFAR100, "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    ],
)
def test_download_takes_torchvisions_address(tmp_path, monkeypatch, dataset, address, checksum):
    asked = []

    def fetch(url, download_root, filename=None, md5=None):
        asked.append((url, md5))
        raise OSError("network is unreachable")

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", fetch)
    with pytest.raises(ConfigError, match=r"cannot be downloaded .*unreachable"):
        dataset(str(tmp_path), download=True).load()
    assert asked == [(f"https://www.cs.toronto.edu/~kriz/{address}", checksum)]
