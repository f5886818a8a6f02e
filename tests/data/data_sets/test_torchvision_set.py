"""What all data sets that torchvision reads have in common, tried on MNIST."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import LightningDataModule
from official_files import write_mnist
from torchvision.datasets import mnist

from lit_fed.data import CIFAR10, CIFAR100, EMNIST, MNIST, Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.populations.build import build_populations
from lit_fed.errors import ConfigError


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


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """Names of the files that were downloaded, from a place that has all of them."""
    names = []
    write_mnist(tmp_path / "source", [one % 10 for one in range(20)], range(10))

    def fetch(url, download_root, filename=None, md5=None, **_):
        names.append(Path(url).name)
        Path(download_root).mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "source/MNIST/raw" / names[-1].removesuffix(".gz"), download_root)

    monkeypatch.setattr(mnist, "download_and_extract_archive", fetch)
    return names


def test_files_are_fetched_before_they_are_loaded(tmp_path, fetched):
    data = FederatedDataModule(MNIST(str(tmp_path / "new"), download=True), num_clients=3)
    assert type(data).prepare_data is not LightningDataModule.prepare_data
    assert data.prepare_data_per_node
    data.prepare_data()
    assert len(fetched) == 4
    data.setup()  # on every rank
    data.prepare_data()  # of another command
    assert len(fetched) == 4
    assert data.seen.train.num_samples + data.seen.test.num_samples == 30


def test_loading_alone_fetches_too(tmp_path, fetched):
    seen, _ = build_populations(MNIST(str(tmp_path / "new"), download=True), num_clients=3)
    assert len(fetched) == 4
    assert seen.train.num_clients == 3


def test_nothing_is_fetched_unasked(tmp_path, fetched):
    MNIST(str(tmp_path / "new")).prepare()
    Digits().prepare()
    assert not (tmp_path / "new").exists()
    assert not fetched


def test_a_download_that_fails_is_told_before_loading(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no route")

    monkeypatch.setattr(mnist, "download_and_extract_archive", fail)
    with pytest.raises(ConfigError, match=r"cannot be downloaded \(no route\)"):
        FederatedDataModule(MNIST(str(tmp_path / "new"), download=True)).prepare_data()
