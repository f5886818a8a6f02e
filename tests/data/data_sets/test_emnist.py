import numpy as np
import pytest
import torchvision
from official_files import write_emnist, write_idx

from lit_fed.data import EMNIST
from lit_fed.errors import ConfigError


def test_characters_stand_upright(tmp_path):
    """A stored row is a column of the character."""
    column = np.zeros((1, 28, 28), dtype=np.uint8)
    column[0, 4, 2:26] = 255  # a vertical stroke, as the files hold it
    write_emnist(tmp_path, "digits", [1], [1])
    write_idx(tmp_path / "EMNIST/raw/emnist-digits-train-images-idx3-ubyte", column)
    picture = EMNIST(str(tmp_path), part="train", split="digits").load().x[0, 0]
    bright = picture == picture.max()
    assert bright[2:26, 4].all()
    assert bright.sum() == 24


def test_values_are_normalised(tmp_path):
    train, test = write_emnist(tmp_path, "byclass", [0, 10, 61], [36])
    samples = EMNIST(str(tmp_path)).load()
    stored = np.concatenate([train, test]).astype(np.float64).transpose(0, 2, 1)
    assert samples.x.dtype == np.float32
    assert samples.x.flags.c_contiguous
    np.testing.assert_allclose(samples.x[:, 0], (stored / 255 - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
    assert samples.y.tolist() == [0, 10, 61, 36]
    assert samples.y.dtype == np.int64


def test_letters_are_numbered_from_0(tmp_path):
    write_emnist(tmp_path, "letters", [1, 26], [2])
    assert EMNIST(str(tmp_path), split="letters").load().y.tolist() == [0, 25, 1]


@pytest.mark.parametrize("split", torchvision.datasets.EMNIST.splits)
def test_number_of_classes(split):
    classes = [name for name in torchvision.datasets.EMNIST.classes_split_dict[split] if name != "N/A"]
    assert EMNIST(split=split).num_classes == len(classes)


def test_unknown_split():
    with pytest.raises(ConfigError, match=r"--data.dataset.split is capitals; give byclass"):
        EMNIST(split="capitals")


def test_only_the_files_of_the_part_are_needed(tmp_path):
    write_emnist(tmp_path, "mnist", [1, 2], [3])
    for path in (tmp_path / "EMNIST/raw").glob("*-test-*"):
        path.unlink()
    assert EMNIST(str(tmp_path), part="train", split="mnist").load().y.tolist() == [1, 2]
    with pytest.raises(ConfigError, match=r"emnist-mnist-test-images-idx3-ubyte.*--data.dataset.download true"):
        EMNIST(str(tmp_path), split="mnist").load()


def test_download_takes_torchvisions_address(tmp_path, monkeypatch):
    asked = []

    def fetch(url, download_root, filename=None, md5=None):
        asked.append((url, md5))
        write_emnist(tmp_path, "balanced", [7], [8])
        (tmp_path / "EMNIST/raw/gzip").mkdir()

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", fetch)
    assert EMNIST(str(tmp_path), download=True, split="balanced").load().y.tolist() == [7, 8]
    assert asked == [("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e")]
