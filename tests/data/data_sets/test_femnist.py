import json

import numpy as np
import pytest

from lit_fed.data import FEMNIST, build_populations
from lit_fed.errors import ConfigError

BLANK = [1.0] * 784


def picture(number):
    """784 pixels as LEAF writes them: bytes divided by 255, white paper, all pictures and all rows different."""
    grey = (np.arange(784) * 7 + 13 * number) % 256
    grey[:28] = 255
    return [value / 255 for value in grey.tolist()]


def write(root, folder, *files):
    """LEAF's files of a folder; in each, the pictures' numbers of every writer, which are their characters too."""
    place = root / "femnist" / folder
    place.mkdir(parents=True)
    for file_idx, writers in enumerate(files):
        data = {name: {"x": [picture(one) for one in numbers], "y": numbers} for name, numbers in writers.items()}
        save(place / f"all_data_{file_idx}_niid_0_keep_0_{folder}_9.json", data)
    return root


def save(path, data):
    counts = [len(user["y"]) for user in data.values()]
    path.write_text(json.dumps({"users": list(data), "num_samples": counts, "user_data": data}))


def load(root, **fields):
    return FEMNIST(str(root), **fields).load()


def of(samples, name):
    """The characters of a writer."""
    return samples.y[samples.owner == samples.names.index(name)].tolist()


def refused(root, *words, **fields):
    with pytest.raises(ConfigError) as caught:
        load(root, **fields)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture
def root(tmp_path):
    """Two files of training samples, one of test samples."""
    write(tmp_path, "train", {"f0001_41": [61, 0, 35]}, {"f0000_14": [10, 36, 3, 3]})
    return write(tmp_path, "test", {"f0000_14": [5], "f0001_41": [7, 9]})


def test_values_are_normalised_and_upright(root):
    samples = load(root)
    assert samples.x.dtype == np.float32
    assert samples.x.shape == (10, 1, 28, 28)
    for stored, number in zip(samples.x, samples.y, strict=True):
        expected = (np.array(picture(number)).reshape(28, 28) - 0.1307) / 0.3081  # row by row
        np.testing.assert_allclose(stored[0], expected, rtol=1e-5, atol=1e-6)
    assert samples.x[0, 0, 0, 0] == pytest.approx(2.8214867)  # white paper
    assert samples.y.dtype == np.int64


def test_training_and_test_files_of_a_writer_are_pooled(root):
    samples = load(root)
    assert samples.names == ["f0000_14", "f0001_41"]
    assert samples.owner.tolist() == [0] * 5 + [1] * 5
    assert of(samples, "f0000_14") == [10, 36, 3, 3, 5]
    assert of(samples, "f0001_41") == [61, 0, 35, 7, 9]


def test_writers_of_one_folder_only_stay(tmp_path):
    """As LEAF writes them if it divides the writers instead of each writer's samples."""
    write(tmp_path, "train", {"a": [1, 2, 3]})
    samples = load(write(tmp_path, "test", {"b": [4, 5, 6]}))
    assert of(samples, "a") == [1, 2, 3]
    assert of(samples, "b") == [4, 5, 6]


def test_writers_become_clients_of_the_usual_fractions(root):
    seen, _ = build_populations(FEMNIST(str(root)), test_fraction=0.4)
    assert seen.names == ["f0000_14", "f0001_41"]
    assert seen.train.sizes.tolist() == [3, 3]
    assert seen.test.sizes.tolist() == [2, 2]
    pooled = sorted(seen.train.client(1).y.tolist() + seen.test.client(1).y.tolist())
    assert pooled == [0, 7, 9, 35, 61]
    with pytest.raises(ConfigError, match="num_clients"):
        build_populations(FEMNIST(str(root)), num_clients=3)


def test_samples_that_are_not_divided_yet(tmp_path):
    samples = load(write(tmp_path, "all_data", {"a": [1, 2, 3]}, {"b": [4, 5, 6, 7]}))
    assert samples.names == ["a", "b"]
    assert of(samples, "b") == [4, 5, 6, 7]


def test_divided_samples_come_first(root):
    write(root, "all_data", {"other": [1, 2, 3]})
    assert load(root).names == ["f0000_14", "f0001_41"]


def test_half_of_the_division_is_no_division(tmp_path):
    write(tmp_path, "train", {"half": [1, 2, 3]})
    assert load(write(tmp_path, "all_data", {"whole": [1, 2, 3]})).names == ["whole"]


def test_writers_with_few_samples_are_left_out(tmp_path, capsys):
    write(tmp_path, "train", {"none": [], "two": [1, 2], "three": [1, 2], "four": [1, 2, 3, 4]})
    root = write(tmp_path, "test", {"none": [], "three": [3]})
    assert load(root).names == ["four", "three"]
    assert load(root, min_samples=4).names == ["four"]
    assert "clients without 4 samples are left out: 'none', 'three', 'two'\n" in capsys.readouterr().err
    assert load(root, min_samples=1).names == ["four", "three", "two"]
    refused(root, f"--data.dataset.root {root}", "none of 4 writers", "5 samples", min_samples=5)


def test_fraction_is_a_share_of_the_writers(tmp_path):
    writers = {f"writer {number:02d}": [number, number, number + 1] for number in range(20)}
    root = write(tmp_path, "all_data", writers, {f"too few {number}": [0] for number in range(10)})
    some, more, other = (load(root, fraction=fraction, seed=seed) for fraction, seed in ((0.3, 1), (0.7, 1), (0.3, 2)))
    assert (len(some.names), len(more.names)) == (6, 14)
    assert some.names == sorted(some.names) != other.names
    assert set(some.names) < set(more.names)
    for name in some.names:
        assert of(some, name) == writers[name]


def test_whole_numbers_are_pixels_too(tmp_path):
    root = write(tmp_path, "all_data", {"a": [1]})
    save(root / "femnist/all_data/more.json", {"b": {"x": [[0] * 783 + [1]], "y": [2]}})
    last = load(root, min_samples=1).x[1, 0, -1, -2:]
    np.testing.assert_allclose(last, [-0.42421296, 2.8214867], rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([BLANK, BLANK[:783]], [1, 2], ("differ in shape",)),
        ([BLANK[:783]], [1], ("[783]", "lists of 784 pixels")),
        ([[BLANK]], [1], ("[1, 784]",)),
        (["a" * 784], [1], ("lists of 784 pixels",)),
        ([[255] * 784], [1], ("pixels from 255 to 255", "0..1")),
        ([[-0.5, *BLANK[1:]]], [1], ("pixels from -0.5 to 1",)),
        ([[float("nan"), *BLANK[1:]]], [1], ("pixels from nan",)),
        ([BLANK], [62], ("0 to 61",)),
        ([BLANK], [-1], ("0 to 61",)),
        ([BLANK], [1.5], ("0 to 61",)),
        ([BLANK], [[1]], ("0 to 61",)),
        ([BLANK], ["a"], ("0 to 61",)),
        ([BLANK, BLANK], [1], ("2 samples in x, but 1 in y",)),
    ],
)
def test_samples_of_another_kind(tmp_path, x, y, words):
    root = write(tmp_path, "all_data", {"anna": [1, 2, 3]})
    save(root / "femnist/all_data/more.json", {"bela": {"x": x, "y": y}})
    refused(root, "more.json, user 'bela'", *words)


def test_a_writer_twice_in_a_folder_is_refused(tmp_path):
    refused(write(tmp_path, "all_data", {"anna": [1]}, {"anna": [2]}), "user 'anna'", "also in another file")


def test_nothing_there(tmp_path):
    refused(tmp_path, f"--data.dataset.root {tmp_path}", "femnist/train and femnist/test", "femnist/all_data")
    (tmp_path / "femnist/all_data").mkdir(parents=True)
    refused(tmp_path, "no .json file")


@pytest.mark.parametrize(
    ("field", "value"), [("fraction", 0.0), ("fraction", 1.1), ("seed", -1), ("min_samples", 0), ("min_samples", -3)]
)
def test_fields_out_of_range(field, value):
    with pytest.raises(ConfigError, match=f"--data.dataset.{field} is {value}"):
        FEMNIST(**{field: value})


def test_home_folder_is_expanded(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root))
    assert len(FEMNIST("~").load().y) == 10
