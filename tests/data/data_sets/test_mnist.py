import shutil
from pathlib import Path

import numpy as np
import pytest
import torchvision
from official_files import write_idx, write_mnist, write_writers

from lit_fed.data import MNIST, Dirichlet, build_populations
from lit_fed.errors import ConfigError

TRAIN, TEST = [3, 1, 4, 1, 5], [9, 2]


@pytest.fixture
def pictures(tmp_path):
    return write_mnist(tmp_path, TRAIN, TEST)


def load(root, **fields):
    return MNIST(str(root), **fields).load()


def refused(root, *words, **fields):
    with pytest.raises(ConfigError) as caught:
        load(root, **fields)
    for word in ("--data.dataset.root", str(root), *words):
        assert word in str(caught.value)


def test_values_are_normalised(tmp_path, pictures):
    samples = load(tmp_path)
    stored = np.concatenate(pictures).astype(np.float64)
    assert samples.x.dtype == np.float32
    assert samples.x.shape == (7, 1, 28, 28)
    np.testing.assert_allclose(samples.x[:, 0], (stored / 255 - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
    assert samples.x[0, 0, 0, -1] == pytest.approx(-0.42421296)  # a dark pixel
    assert samples.y.dtype == np.int64
    assert samples.y.tolist() == TRAIN + TEST
    assert samples.owner is None
    assert samples.names is None


@pytest.mark.parametrize(("part", "labels"), [("train", TRAIN), ("test", TEST)])
def test_part(tmp_path, pictures, part, labels):
    assert load(tmp_path, part=part).y.tolist() == labels


def test_writers_own_the_samples(tmp_path, pictures):
    write_writers(tmp_path, "train", TRAIN, [2154, 7, 2154, 7, 7])
    write_writers(tmp_path, "test", [*TEST, 8, 8, 8], [326, 2599, 1, 1, 1])  # QMNIST knows more test digits than MNIST
    samples = load(tmp_path, by_writer=True)
    assert samples.names == ["writer 0007", "writer 0326", "writer 2154", "writer 2599"]
    assert samples.owner.tolist() == [2, 0, 2, 0, 0, 1, 3]
    assert samples.y.tolist() == TRAIN + TEST


def test_writers_become_clients(tmp_path, pictures):
    write_writers(tmp_path, "train", TRAIN, [2154, 7, 2154, 7, 7])
    dataset = MNIST(str(tmp_path), part="train", by_writer=True)
    seen, _ = build_populations(dataset, test_fraction=0.0)
    assert seen.names == ["writer 0007", "writer 2154"]
    assert sorted(seen.train.client(0).y.tolist()) == [1, 1, 5]
    with pytest.raises(ConfigError, match="num_clients"):
        build_populations(dataset, num_clients=3)
    divided, _ = build_populations(dataset, Dirichlet(), 2, test_fraction=0.0)
    assert divided.names == ["0", "1"]


def test_writers_without_a_sample_have_no_name(tmp_path, pictures):
    write_writers(tmp_path, "train", TRAIN, range(5))
    samples = load(tmp_path, part="train", by_writer=True, fraction=0.4)
    assert len(samples.y) == len(samples.names) == 2
    assert samples.owner.tolist() == [0, 1]
    assert [TRAIN[int(name.split()[1])] for name in samples.names] == samples.y.tolist()


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([3, 1, 4, 7, 5], ("1 digits", "row 3", "qmnist-train-labels-idx2-int")),
        (TRAIN[:4], ("[4, 8]", "5 rows")),
        (None, ("[5]",)),
    ],
    ids=["another class", "too few", "no columns"],
)
def test_wrong_writers_are_refused(tmp_path, pictures, classes, words):
    if classes is None:
        write_idx(tmp_path / "QMNIST/raw/qmnist-train-labels-idx2-int", np.array(TRAIN, dtype=np.int32))
    else:
        write_writers(tmp_path, "train", classes, range(len(classes)))
    refused(tmp_path, *words, part="train", by_writer=True)


def test_missing_files_are_named(tmp_path, pictures):
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    refused(tmp_path, "MNIST/raw/t10k-labels-idx1-ubyte", "--data.dataset.download true", part="train")


def test_missing_writers_are_named(tmp_path, pictures):
    write_writers(tmp_path, "test", TEST, [1, 2])
    assert len(load(tmp_path, part="test", by_writer=True).names) == 2
    refused(tmp_path, "QMNIST/raw/qmnist-train-labels-idx2-int", by_writer=True)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("train-images-idx3-ubyte", cut, ("cannot be read", "delete its files")),
        ("train-labels-idx1-ubyte", lambda path: path.write_bytes(b""), ("cannot be read",)),
        (
            "train-images-idx3-ubyte",
            lambda path: write_idx(path, np.zeros((5, 8, 8), np.uint8)),
            ("[5, 1, 8, 8]", "28 x"),
        ),
        ("train-labels-idx1-ubyte", lambda path: write_idx(path, np.zeros(4, np.uint8)), ("4 labels",)),
    ],
    ids=["cut", "empty", "another size", "fewer labels"],
)
def test_damaged_files_are_refused(tmp_path, pictures, file, damage, words):
    damage(tmp_path / "MNIST/raw" / file)
    refused(tmp_path, *words)


def test_download_takes_torchvisions_addresses(tmp_path, monkeypatch):
    """Every missing file is asked for by its official address and checksum, and nothing else."""
    kept, root, asked = tmp_path / "kept", tmp_path / "root", {}
    write_mnist(kept, TRAIN, TEST)
    write_writers(kept, "train", TRAIN, range(5))
    write_writers(kept, "test", TEST, range(5, 7))

    def fetch(url, download_root, filename=None, md5=None, **_):
        name = url.rpartition("/")[2]
        asked[name] = (url, md5)
        Path(download_root).mkdir(parents=True, exist_ok=True)
        shutil.copy(next(kept.rglob(name.removesuffix(".gz"))), download_root)

    for module in (torchvision.datasets.mnist, torchvision.datasets.utils):
        monkeypatch.setattr(module, "download_and_extract_archive", fetch)
    assert len(load(root, download=True, by_writer=True).names) == 7
    assert asked["train-images-idx3-ubyte.gz"] == (
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    )
    assert asked["qmnist-train-labels-idx2-int.gz"] == (
        "https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",
        "0058f8dd561b90ffdd0f734c6a30e5e4",
    )
    assert asked["qmnist-test-labels-idx2-int.gz"][1] == "5b5b05890a5e13444e108efe57b788aa"
    assert len(asked) == 6
    asked.clear()
    load(root, download=True, by_writer=True)
    assert asked == {}  # what is there is not fetched again


def test_a_failed_download_says_so(tmp_path, monkeypatch):
    def fail(url, **_):
        raise RuntimeError(f"no route to {url}")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", fail)
    refused(tmp_path, "cannot be downloaded", "no route to https://", download=True)
