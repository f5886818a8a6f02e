import json

import numpy as np
import pytest
import torch

from lit_fed.data.data_sets.client_folder import ClientFolder
from lit_fed.errors import ConfigError


def arrays(num_train=4, num_test=2, **changes):
    rng = np.random.default_rng(num_train)
    content = {
        "x_train": rng.random((num_train, 3)),
        "y_train": np.arange(num_train) % 2,
        "x_test": rng.random((num_test, 3)),
        "y_test": np.arange(num_test) % 2,
    }
    content.update(changes)
    return {name: array for name, array in content.items() if array is not None}


def save(root, name, content, population="seen"):
    folder = root / population
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **content)
    return folder / f"{name}.npz"


def load(root):
    return ClientFolder(str(root)).load()


def refused(root, *words):
    with pytest.raises(ConfigError) as caught:
        load(root)
    for word in words:
        assert str(word) in str(caught.value)


def test_clients_are_the_sorted_file_names(tmp_path, capsys):
    save(tmp_path, "b", arrays(5))
    save(tmp_path, "a", arrays(4))
    (tmp_path / "seen/c.NPZ").write_bytes((tmp_path / "seen/b.npz").read_bytes())
    seen, unseen = load(tmp_path)
    assert (
        capsys.readouterr().err == f"lit_fed: {tmp_path / 'seen'}: files that do not end in .npz are not read: c.NPZ\n"
    )
    assert unseen is None
    assert seen.names == ["a", "b"]
    assert seen.train.sizes.tolist() == [4, 5]
    assert seen.val.sizes.tolist() == [0, 0]
    assert (seen.train.x.dtype, seen.train.y.dtype) == (torch.float32, torch.int64)
    np.testing.assert_allclose(seen.train.client(1).x, arrays(5)["x_train"], rtol=1e-6)


def test_unseen_and_validation(tmp_path):
    save(tmp_path, "a", arrays(x_val=np.ones((3, 3)), y_val=np.zeros(3, dtype=int)))
    save(tmp_path, "b", arrays())
    save(tmp_path, "c", arrays(), "unseen")
    seen, unseen = load(tmp_path)
    assert seen.val.sizes.tolist() == [3, 0]
    assert unseen.names == ["c"]


def test_types(tmp_path):
    pixels = np.full((4, 3), 255, dtype=np.uint8)
    save(tmp_path, "a", arrays(x_train=pixels, x_test=pixels[:2], y_train=np.ones(4), y_test=np.ones(2)))
    seen, _ = load(tmp_path)
    assert seen.train.x.tolist() == [[1.0] * 3] * 4
    assert seen.train.y.dtype == torch.float32


def test_token_ids_stay_whole(tmp_path):
    tokens = np.full((4, 3), 300, dtype=np.int32)
    save(tmp_path, "a", arrays(x_train=tokens, y_train=tokens, x_test=tokens[:2], y_test=tokens[:2]))
    seen, _ = load(tmp_path)
    assert seen.train.x.dtype == seen.train.y.dtype == torch.int64
    assert seen.test.y.shape == (2, 3)


def test_empty_test_split(tmp_path):
    save(tmp_path, "a", arrays(x_test=np.array([]), y_test=np.array([])))
    save(tmp_path, "b", arrays())
    seen, _ = load(tmp_path)
    assert seen.test.sizes.tolist() == [0, 2]


def test_root_is_needed():
    with pytest.raises(ConfigError, match=r"--data\.dataset\.root"):
        ClientFolder().load()


def test_missing_and_empty_folders(tmp_path):
    refused(tmp_path / "nowhere", tmp_path / "nowhere", "no such folder", "--data.dataset.root")
    refused(tmp_path, tmp_path, "neither", "add one")
    (tmp_path / "seen").mkdir()
    refused(tmp_path, tmp_path / "seen", "no .npz file")
    save(tmp_path, "a", arrays())
    (tmp_path / "unseen").mkdir()
    refused(tmp_path, tmp_path / "unseen", "no .npz file")


@pytest.mark.parametrize("keep", [0, 1, 100, 400, -30])
def test_truncated_file(tmp_path, keep):
    path = save(tmp_path, "a", arrays())
    path.write_bytes(path.read_bytes()[:keep])
    refused(tmp_path, path, "cannot be read", "numpy.savez")


def test_damaged_bytes(tmp_path):
    path = tmp_path / "seen" / "a.npz"
    path.parent.mkdir()
    np.savez_compressed(path, **arrays(400))
    content = bytearray(path.read_bytes())
    content[500:540] = bytes(40)
    path.write_bytes(content)
    refused(tmp_path, path, "cannot be read")


def test_single_array_in_place_of_an_archive(tmp_path):
    path = save(tmp_path, "a", arrays())
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    refused(tmp_path, path, "numpy.savez")


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_missing_array(tmp_path, name):
    refused(tmp_path, save(tmp_path, "a", arrays(**{name: None})), f"array {name} is missing", "save")


def test_half_a_validation_split(tmp_path):
    refused(tmp_path, save(tmp_path, "a", arrays(x_val=np.ones((2, 3)))), "array y_val is missing", "beside x_val")


def test_object_array(tmp_path):
    ragged = np.array([np.ones(1), np.ones(2), None, None], dtype=object)
    refused(tmp_path, save(tmp_path, "a", arrays(x_train=ragged)), "x_train", "Python objects", "store numbers")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_train": np.zeros(3, dtype=int)}, ("x_train has 4", "y_train has 3", "equally long")),
        ({"y_test": np.zeros(0, dtype=int)}, ("x_test has 2", "y_test has 0")),
        ({"x_train": np.ones((0, 3)), "y_train": np.ones(0, dtype=int)}, ("x_train is empty", "at least one")),
        ({"x_train": np.array(3.0)}, ("x_train is a single number",)),
        ({"x_test": np.array([[1, 2, np.nan]] * 2)}, ("x_test contains NaN", "clean")),
        ({"x_train": np.full((4, 3), 1e300)}, ("x_train contains NaN or infinity",)),
        ({"y_train": np.array([0.0, np.inf, 0, 0])}, ("y_train contains NaN or infinity",)),
        ({"y_train": np.array([0, -1, 0, 0])}, ("y_train contains a negative label", "from 0")),
        ({"y_train": np.array(list("abcd"))}, ("y_train", "<U1", "number the classes")),
        ({"x_test": np.ones((2, 4))}, ("x_test are float32 of shape [4]", "x_train in", "are float32 of shape [3]")),
        ({"y_test": np.ones(2)}, ("y_test are float32", "int64", "one type")),
    ],
)
def test_wrong_arrays(tmp_path, changes, words):
    refused(tmp_path, save(tmp_path, "a", arrays(**changes)), *words)


def test_clients_must_be_alike(tmp_path):
    first = save(tmp_path, "a", arrays())
    second = save(tmp_path, "b", arrays(x_train=np.ones((4, 2)), x_test=np.ones((2, 2))), "unseen")
    refused(tmp_path, first, second, "[2]", "[3]", "store all clients")


def user_data(num_samples=3, **changes):
    return {"x": [[0.5, 1.0]] * num_samples, "y": [0, 1, 2][:num_samples], **changes}


def save_leaf(root, split, users, file="part0"):
    folder = root / split
    folder.mkdir(exist_ok=True)
    counts = [len(data["y"]) if "y" in data else 0 for data in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": users}
    path = folder / f"{file}.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_leaf(tmp_path):
    save_leaf(tmp_path, "train", {"v": user_data(3)}, "part1")
    save_leaf(tmp_path, "train", {"u": user_data(2)})
    save_leaf(tmp_path, "test", {"v": user_data(1)})
    seen, unseen = load(tmp_path)
    assert unseen is None
    assert seen.names == ["u", "v"]
    assert seen.train.sizes.tolist() == [2, 3]
    assert seen.test.sizes.tolist() == [0, 1]
    assert (seen.train.x.dtype, seen.train.y.dtype) == (torch.float32, torch.int64)


def test_leaf_whole_numbers_beside_fractions(tmp_path):
    save_leaf(tmp_path, "train", {"u": user_data(x=[[2, 1]] * 3), "v": user_data(x=[[0, 1]] * 3)})
    save_leaf(tmp_path, "test", {"u": user_data(x=[[1, 1.5]] * 3)})
    seen, _ = load(tmp_path)
    assert seen.train.client(1).x.tolist() == [[0.0, 1.0]] * 3
    assert seen.test.x.dtype == torch.float32


def test_leaf_tokens(tmp_path):
    save_leaf(tmp_path, "train", {"u": user_data(x=[[4, 1]] * 3)})
    save_leaf(tmp_path, "test", {"u": user_data(x=[[4, 1]] * 3)})
    assert load(tmp_path)[0].train.x.dtype == torch.int64


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"x": [[1.0], [1.0, 2.0], [1.0]]}, ("x differ in shape", "the same shape")),
        ({"x": ["to be", "or", "not"]}, ("array x_train", "<U5", "store numbers")),
        ({"x": [[1.0, float("nan")]] * 3}, ("x_train contains NaN",)),
        ({"y": [0]}, ("x_train has 3", "y_train has 1")),
        ({"x": [], "y": []}, ("x_train is empty",)),
    ],
)
def test_wrong_leaf_samples(tmp_path, train, words):
    path = save_leaf(tmp_path, "train", {"u": user_data(**train)})
    save_leaf(tmp_path, "test", {"u": user_data()})
    refused(tmp_path, path, "'u'", *words)


def test_wrong_leaf_test_samples_are_located(tmp_path):
    save_leaf(tmp_path, "train", {"u": user_data()})
    path = save_leaf(tmp_path, "test", {"u": user_data(x=[[float("inf"), 0.0]] * 3)})
    refused(tmp_path, path, "'u'", "x_test contains NaN or infinity")
    path = save_leaf(tmp_path, "test", {"u": user_data(x=[[0.5]] * 3)})
    refused(tmp_path, path, "'u'", "x_test are float32 of shape [1]")


def test_leaf_user_without_training_samples(tmp_path):
    save_leaf(tmp_path, "train", {"u": user_data()})
    path = save_leaf(tmp_path, "test", {"u": user_data(), "w": user_data()})
    refused(tmp_path, path, "'w'", "no training samples", "remove the user")


def test_leaf_users_that_are_split_by_user_are_unseen(tmp_path):
    """No user is in both folders: those of the test take no part in the training, and have nothing to adapt on."""
    save_leaf(tmp_path, "train", {"u": user_data(), "v": user_data()})
    save_leaf(tmp_path, "test", {"w": user_data()})
    seen, unseen = load(tmp_path)
    assert (seen.names, unseen.names) == (["u", "v"], ["w"])
    assert [split.num_samples for split in (seen.test, unseen.train, unseen.val)] == [0, 0, 0]
    assert unseen.test.x.shape[1:] == unseen.train.x.shape[1:] == seen.train.x.shape[1:]
    assert unseen.test.num_samples == len(user_data()["y"])


def test_unseen_clients_may_have_test_samples_alone(tmp_path):
    save(tmp_path, "a", arrays())
    save(tmp_path, "all", arrays(num_test=7, x_train=None, y_train=None), "unseen")
    save(tmp_path, "none", arrays(num_test=3, x_train=np.zeros((0, 3)), y_train=np.zeros(0, dtype=int)), "unseen")
    _, unseen = load(tmp_path)
    assert (unseen.train.sizes.tolist(), unseen.test.sizes.tolist()) == ([0, 0], [7, 3])
    save(tmp_path, "none", arrays(num_test=0, x_train=None, y_train=None), "unseen")
    refused(tmp_path, "none.npz", "x_train is empty")
    save(tmp_path, "none", arrays(y_train=None), "unseen")
    refused(tmp_path, "none.npz", "array y_train is missing; save it beside x_train")


def test_leaf_user_twice(tmp_path):
    save_leaf(tmp_path, "train", {"u": user_data()})
    refused(tmp_path, save_leaf(tmp_path, "train", {"u": user_data()}, "part1"), "'u'", "another file")


def test_leaf_folder_without_files(tmp_path):
    save_leaf(tmp_path, "train", {"u": user_data()})
    (tmp_path / "test").mkdir()
    refused(tmp_path, tmp_path / "test", "no .json file")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"users": [', ("not valid JSON", "write it again")),
        ('{"users": ["u"]}', ("'user_data' is missing", "LEAF")),
        ('{"users": ["u"], "user_data": {"u": {"x": [[1]]}}}', ("'u'", "x or y is missing")),
        ('{"users": ["u"], "user_data": {}}', ("'u'", "x or y is missing")),
    ],
)
def test_wrong_json(tmp_path, text, words):
    path = save_leaf(tmp_path, "train", {"u": user_data()})
    path.write_text(text, encoding="utf-8")
    save_leaf(tmp_path, "test", {"u": user_data()})
    refused(tmp_path, path, *words)
