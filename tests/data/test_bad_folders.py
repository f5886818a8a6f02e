"""Folders that people bring, each with one thing wrong: one message that names file, value and fix, nothing written."""

import errno
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from bad_files import EXECUTED, GOOD, X, Y, npy, raw, refused, save, set_up, text, zipped
from federated_round import facts as facts_of_training

from lit_fed.core.targets import Multiclass, Sequences
from lit_fed.data import CIFAR10, MNIST, ClientFolder, FeatureBlocks, OfficeHome, Shakespeare
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.new_clients import NewClients
from lit_fed.errors import ConfigError
from lit_fed.system import machine


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch):
    """A machine of 1 GB, so that no test takes more where a check is missing."""
    monkeypatch.setattr(machine, "available_memory", lambda: 10**9)


def arrays(**changes):
    """What writes a client with these arrays changed; None leaves one out."""
    changed = {name: array for name, array in (GOOD | changes).items() if array is not None}
    return lambda path: save(path, **changed)


def members(**changes):
    return lambda path: zipped(path, **changes)


def cut(size):
    def make(path):
        save(path, **GOOD)
        path.write_bytes(path.read_bytes()[:size])

    return make


def damaged(path):
    np.savez_compressed(path, **GOOD | {"x_train": np.random.default_rng(0).random((4, 300)).astype(np.float32)})
    content = bytearray(path.read_bytes())
    content[300:340] = bytes(40)
    path.write_bytes(content)


def encrypted(path):
    save(path, **GOOD)
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(signature, place + 1)
    path.write_bytes(content)


class Code:
    """What would run if pickles were read."""

    def __reduce__(self):
        return os.mkdir, (EXECUTED,)


BOB = {
    # not a file that could be read
    "pipe": (os.mkfifo, ("bob.npz", "pipe", "remove it")),
    "folder": (os.mkdir, ("bob.npz", "a folder", "remove it")),
    "broken link": (lambda path: path.symlink_to("nowhere"), ("bob.npz", "a broken link")),
    "link to itself": (lambda path: path.symlink_to(path), ("bob.npz",)),
    "empty": (raw(b""), ("bob.npz", "no complete .npz", "numpy.savez")),
    "text": (text("x_train,y_train\n1,2\n"), ("bob.npz", "no complete .npz", "numpy.savez")),
    "one array": (lambda path: path.write_bytes(npy((2,), content=bytes(8))), ("bob.npz", "no complete .npz")),
    "a pickle": (raw(pickle.dumps(GOOD)), ("bob.npz", "no complete .npz")),
    "cut in the middle": (cut(500), ("bob.npz", "no complete .npz")),
    "cut at the end": (cut(-10), ("bob.npz", "no complete .npz")),
    "damaged": (damaged, ("bob.npz", "cannot be read", "save it again")),
    "encrypted": (encrypted, ("bob.npz", "cannot be read", "password")),
    "a zip of something else": (
        lambda path: zipfile.ZipFile(path, "w").close(), ("bob.npz", "array x_train is missing"),
    ),
    # arrays that are not what they say
    "more rows than bytes": (members(x_train=npy((1000, 3), content=X.tobytes())), ("x_train", "[1000, 3]", "48")),
    "1e12 rows": (members(x_train=npy((10**12, 3), content=X.tobytes())), ("x_train", "[1000000000000, 3]", "48")),
    "1e30 rows": (members(x_train=npy((10**30, 3), content=X.tobytes())), ("x_train", "bob.npz")),
    "negative rows": (members(x_train=npy((-4, 3), content=X.tobytes())), ("bob.npz", "save it again")),
    "header of nonsense": (members(y_train=b"\x93NUMPY\x01\x00\x10\x00{'descr': import "), ("bob.npz", "save it")),
    "header without shape": (members(y_train=b"\x93NUMPY\x01\x00\x03\x00{}\n"), ("bob.npz", "cannot be read")),
    "unknown type": (members(y_train=npy((4,), "<q9", bytes(36))), ("bob.npz", "cannot be read")),
    "future version": (members(y_train=b"\x93NUMPY\x09\x00" + bytes(60)), ("bob.npz",)),
    "no array": (members(y_train=b"hello"), ("bob.npz", "cannot be read", "save it again")),
    "bomb": (
        members(compression=zipfile.ZIP_DEFLATED, x_train=npy((3_000_000, 1), content=bytes(12_000_000))),
        ("bob.npz", "x_train of shape [3000000, 1]", "0.012 GB", "0.01 GB are free", "fewer samples"),
    ),
    "executable objects": (
        arrays(y_train=np.array([Code()] * 4, dtype=object)), ("y_train", "Python objects", "store numbers"),
    ),
    "ragged": (
        arrays(x_train=np.array([[1, None, 2]] * 4, dtype=object)), ("x_train", "Python objects", "store numbers"),
    ),
    # arrays that are missing, or do not belong together
    "no x_train": (arrays(x_train=None), ("array x_train is missing", "save")),
    "no y_test": (arrays(y_test=None), ("array y_test is missing", "save")),
    "x_val without y_val": (arrays(x_val=X), ("array y_val is missing", "beside x_val")),
    "other names": (lambda path: save(path, x=X, y=Y), ("array x_train is missing", "save x_train, y_train")),
    "fewer labels": (arrays(y_train=Y[:3]), ("x_train has 4", "y_train has 3", "equally long")),
    "more test labels": (arrays(y_test=Y), ("x_test has 2", "y_test has 4", "equally long")),
    "no samples": (arrays(x_train=X[:0], y_train=Y[:0]), ("x_train is empty", "at least one")),
    "no features": (arrays(x_train=X[:, :0]), ("x_train has shape [4, 0]", "without features")),
    "single number": (arrays(x_train=np.array(3.0)), ("x_train is a single number",)),
    "label of all": (arrays(y_train=np.array(1)), ("y_train is a single number", "one entry per sample")),
    "other width": (arrays(x_train=X[:, :2], x_test=X[:2, :2]), ("bob.npz", "ann.npz", "shape [2]", "shape [3]")),
    "other width in test": (arrays(x_test=X[:2, :2]), ("x_test", "shape [2]", "shape [3]")),
    "flat": (arrays(x_train=X[:, 0], x_test=X[:2, 0]), ("x_train", "shape []", "shape [3]")),
    "labels of another kind": (arrays(y_train=Y / 2, y_test=Y[:2] / 2), ("y_train", "float32", "int64", "one type")),
    "whole numbers beside floats": (
        arrays(x_train=np.arange(12).reshape(4, 3), x_test=np.arange(6).reshape(2, 3)), ("x_train", "int64", "float32"),
    ),
    # types that are converted in different ways
    "pixels beside floats": (
        arrays(x_train=(X * 255).astype(np.uint8), x_test=(X[:2] * 255).astype(np.uint8)),
        ("bob.npz", "x_train is stored as uint8", "x_train in ", "ann.npz as float32", "one type", "0..1"),
    ),
    "pixels in test alone": (
        arrays(x_test=(X[:2] * 255).astype(np.uint8)), ("bob.npz", "x_test is stored as uint8", "float32", "one type"),
    ),
    # values
    "NaN": (arrays(x_train=np.where(X > 0.8, np.nan, X)), ("x_train", "NaN", "sample 3", "clean")),
    "infinity": (arrays(x_test=np.full((2, 3), np.inf)), ("x_test", "infinity", "sample 0", "clean")),
    "beyond float32": (arrays(x_train=np.full((4, 3), 1e300)), ("x_train", "infinity", "sample 0")),
    "negative integers": (
        arrays(x_train=np.full((4, 3), -7), x_test=np.full((2, 3), 2)), ("x_train", "token ids", "store features as"),
    ),
    "negative label": (arrays(y_train=np.array([0, 1, -1, 2])), ("y_train", "negative label", "sample 2", "from 0")),
    "labels NaN": (arrays(y_train=np.array([0.0, np.nan, 0, 0])), ("y_train", "NaN", "sample 1")),
    "labels [n, 1]": (arrays(y_train=Y[:, None]), ("y_train has shape [4, 1]", "[4]", "squeeze")),
    "strings": (arrays(x_train=np.full((4, 3), "a")), ("x_train", "<U1", "store numbers")),
    "bytes": (arrays(x_train=np.full((4, 3), b"a")), ("x_train", "|S1", "store numbers")),
    "complex": (arrays(x_train=X + 1j), ("x_train", "complex64", "float")),
    "dates": (arrays(x_train=np.full((4, 3), "2020-01-01", "datetime64[D]")), ("x_train", "datetime64", "store")),
    "records": (arrays(x_train=np.zeros(4, dtype="f4,i4")), ("x_train", "cannot be trained on")),
    "records with names of any script": (
members(x_train=b"\x93NUMPY\x03\x00" + bytes(60)), ("x_train", "records", "store numbers"),
    ),
    "words as labels": (arrays(y_train=np.array(["cat", "dog", "cat", "cow"])), ("y_train", "<U3", "from 0")),
    "complex labels": (arrays(y_train=Y + 1j), ("y_train", "complex128", "from 0")),
    "dates as labels": (arrays(y_train=np.full(4, "2020-01-01", "datetime64[D]")), ("y_train", "datetime64")),
    "label 57 of three classes": (
        arrays(y_train=np.array([0, 57, 2, 1])), ("'bob'", "label 57", "58 classes", "class 3", "dataset.num_classes"),
    ),
    "label 1e9": (arrays(y_train=np.array([0, 10**9, 2, 1])), ("'bob'", "label 1000000000", "no sample has class 3")),
    "label 2^62": (arrays(y_train=np.array([0, 2**62, 2, 1])), ("'bob'", f"label {2**62}", "no sample has class 3")),
    "label 2^63 - 1": (arrays(y_train=np.array([0, 2**63 - 1, 2, 1])), ("'bob'", f"label {2**63 - 1}", "class 3")),
    "test label that nobody trains": (arrays(y_test=np.array([0, 7])), ("'bob'", "test split", "label 7", "0 … 2")),
}  # fmt: skip


@pytest.mark.parametrize("name", BOB)
def test_clients(tmp_path, monkeypatch, name):
    make, words = BOB[name]
    save(tmp_path / "seen/ann.npz", **GOOD)
    make(tmp_path / "seen/bob.npz")
    if name == "bomb":
        monkeypatch.setattr(machine, "available_memory", lambda: 10**7)
    refused(tmp_path, set_up(ClientFolder(str(tmp_path))), words)


UNSEEN = {
    name: BOB[name] for name in ("damaged", "no x_train", "fewer labels", "no samples", "NaN", "negative label")
} | {
    "whole numbers": (
        arrays(x_train=np.arange(12).reshape(4, 3), x_test=np.arange(6).reshape(2, 3)), ("x_train", "int64", "float32"),
    ),
    "no x_test": (arrays(x_test=None), ("array x_test is missing", "beside y_test")),
    "width": (arrays(x_train=X[:, :2], x_test=X[:2, :2]), ("x_train", "shape [2]", "the checkpoint's training", "[3]")),
    "kind of labels": (arrays(y_train=Y / 2, y_test=Y[:2] / 2), ("y_train", "float32", "int64", "checkpoint")),
    "pixels": (
        arrays(x_train=(X * 255).astype(np.uint8), x_test=X[:2].astype(np.uint8)),
        ("bob.npz: x_train is stored as uint8", "inputs of the checkpoint's training as float32"),
    ),
    "class": (arrays(y_train=np.array([0, 1, 3, 1])), ("'bob'", "label 3", "0 … 2")),
    "label 2^62": (arrays(y_train=np.array([0, 1, 2**62, 1])), ("'bob'", f"label {2**62}", "0 … 2")),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_unseen_clients(tmp_path, name):
    facts = facts_of_training(Multiclass(3), (3,))._replace(stored_type="float32")
    make, words = UNSEEN[name]
    save(tmp_path / "ann.npz", **GOOD)
    make(tmp_path / "bob.npz")
    refused(tmp_path, lambda: NewClients(str(tmp_path), facts), ("bob", *words))


def touch(*names):
    """A folder with these files of nothing; a name that ends with / is a folder."""

    def make(root):
        for name in names:
            path = root / name
            path.mkdir(parents=True) if name.endswith("/") else (
                path.parent.mkdir(parents=True, exist_ok=True),
                path.touch(),
            )

    return make


def clients_in_the_root(root):
    save(root / "ann.npz", **GOOD)


def regression(root):
    save(root / "seen/ann.npz", **GOOD | {"y_train": Y / 1, "y_test": Y[:2] / 1})


def one_hot(root):
    save(root / "seen/ann.npz", **GOOD | {"y_train": np.eye(3)[Y], "y_test": np.eye(3)[Y[:2]]})


def one_half_of_leaf(root):
    (root / "train").mkdir()
    (root / "train/a.json").write_text('{"users": ["u"], "user_data": {"u": {"x": [[1.0]], "y": [1]}}}')


def odd_name(root):
    save(root / "seen/ann.npz", **GOOD)
    os.rename(root / "seen/ann.npz", os.fsencode(root / "seen") + b"/\xff\xfe.npz")


FOLDERS = {
    "not set": (touch(), lambda root: ClientFolder(), ("--data.dataset.root",)),
    "nothing": (touch(), lambda root: ClientFolder(str(root / "no")), ("no such folder", "--data.dataset.root")),
    "a file": (touch("file"), lambda root: ClientFolder(str(root / "file")), ("no such folder",)),
    "name too long": (touch(), lambda root: ClientFolder(f"{root}/{'x' * 5000}"), ("too long", "…", "another path")),
    "path too long": (touch(), lambda root: ClientFolder(f"{root}{'/xxxxxxx' * 700}"), ("too long", "…")),
    "zero byte": (touch(), lambda root: ClientFolder(f"{root}/\0"), ("embedded null", "--data.dataset.root")),
    "home of nobody": (touch(), lambda root: ClientFolder("~no-such-user/data"), ("home", "--data.dataset.root")),
    "loop": (lambda root: (root / "l").symlink_to(root / "l"), lambda root: ClientFolder(str(root / "l")), ("links",)),
    "empty": (touch(), lambda root: ClientFolder(str(root)), ("neither a folder 'seen'", "add one")),
    "no seen": (clients_in_the_root, lambda root: ClientFolder(str(root)), ("'seen'", "move its .npz files there")),
    "empty seen": (touch("seen/"), lambda root: ClientFolder(str(root)), ("seen: no .npz file", "save one")),
    "other files": (touch("seen/a.csv"), lambda root: ClientFolder(str(root)), ("seen: no .npz file",)),
    "upper case": (touch("seen/A.NPZ"), lambda root: ClientFolder(str(root)), ("seen: no .npz file",)),
    "seen is a file": (touch("seen"), lambda root: ClientFolder(str(root)), ("neither a folder 'seen'",)),
    "odd name": (odd_name, lambda root: ClientFolder(str(root)), ("UTF-8", "rename")),
    "LEAF without test": (one_half_of_leaf, lambda root: ClientFolder(str(root)), ("test: no .json file",)),
    "LEAF without files": (touch("train/", "test/"), lambda root: ClientFolder(str(root)), ("train: no .json file",)),
    "one class": (touch(), lambda root: ClientFolder(str(root), num_classes=1), ("num_classes is 1", ">= 2")),
    "classes that are floats": (
        regression, lambda root: ClientFolder(str(root), num_classes=3), ("num_classes", "is 3", "floating", "leave"),
    ),
    "one-hot floats": (
        one_hot, lambda root: ClientFolder(str(root)), ("labels have shape [4, 3]", "y.argmax(1)"),
    ),
    "parties": (touch("labels.npz/", "parties/"), lambda root: FeatureBlocks(root=str(root)), ("labels.npz",)),
    "parties, path": (touch(), lambda root: FeatureBlocks(root="x" * 5000), ("too long",)),
    "MNIST": (touch("MNIST/raw/train-images-idx3-ubyte"), lambda root: MNIST(str(root)), ("--data.dataset.root",)),
    "MNIST, path": (touch(), lambda root: MNIST("x" * 5000), ("too long", "--data.dataset.root")),
    "CIFAR10": (
        touch(*(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")),
              "cifar-10-batches-py/batches.meta"),
        lambda root: CIFAR10(str(root)), ("CIFAR10 cannot be read", "delete its files"),
    ),
    "OfficeHome": (touch("OfficeHome/features.npz"), lambda root: OfficeHome(str(root)), ("features.npz", "complete")),
    "roles": (touch("roles.json/"), lambda root: Shakespeare(str(root)), ("roles.json",)),
    "roles of nothing": (touch("roles.json"), lambda root: Shakespeare(str(root)), ("roles.json", "not valid JSON")),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(tmp_path, name):
    make, dataset, words = FOLDERS[name]
    make(tmp_path)
    refused(tmp_path, lambda: set_up(dataset(tmp_path))(), words)


def test_a_file_that_nobody_may_read(tmp_path, monkeypatch):
    save(tmp_path / "seen/ann.npz", **GOOD)

    def refuse(path, *args, **kwargs):  # root may read everything, so the system's answer is played
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"ann\.npz cannot be read \(Permission denied\)"):
        ClientFolder(str(tmp_path)).load()


def test_a_class_without_samples_is_fine_where_the_number_is_given(tmp_path):
    save(tmp_path / "seen/ann.npz", **GOOD | {"y_train": np.array([0, 5, 2, 1])})
    data = FederatedDataModule(ClientFolder(str(tmp_path), num_classes=8))
    data.setup()
    assert data.target == Multiclass(8)
    save(tmp_path / "seen/bob.npz", **GOOD | {"y_test": np.array([3, 4])})  # a class may be in any split
    data = FederatedDataModule(ClientFolder(str(tmp_path)))
    data.setup()
    assert data.target == Multiclass(6)


def test_labels_from_one_have_a_class_too_many(tmp_path):
    save(tmp_path / "seen/ann.npz", **GOOD | {"y_train": Y + 1, "y_test": Y[:2] + 1})
    refused(tmp_path, set_up(ClientFolder(str(tmp_path))), ("'ann'", "label 3", "no sample has class 0", "0, 1, 2"))


def test_a_vocabulary_may_have_gaps(tmp_path):
    tokens = np.array([[5, 900, 3], [5, 3, 900]] * 2)
    save(tmp_path / "seen/ann.npz", x_train=tokens, y_train=tokens, x_test=tokens, y_test=tokens)
    data = FederatedDataModule(ClientFolder(str(tmp_path)))
    data.setup()
    assert data.target == Sequences(901)
