"""Small files in the official formats, written by the formats' own descriptions and not by a library."""

import hashlib
import pickle
import struct

import numpy as np

IDX_TYPES = {"uint8": (0x08, ">u1"), "int32": (0x0C, ">i4")}


def write_idx(path, array):
    """The format of MNIST: two zero bytes, type, number of axes, their sizes, then the numbers, big end first."""
    code, stored = IDX_TYPES[array.dtype.name]
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + array.astype(stored).tobytes())


def digit_pictures(num_pictures, first=0):
    """Pictures [n, 28, 28] uint8 that all differ; the last column is dark, so a picture is not its transpose."""
    pixels = (np.arange(num_pictures * 28 * 28).reshape(num_pictures, 28, 28) * 7 + first) % 251
    pixels[:, :, -1] = 0
    return pixels.astype(np.uint8)


def write_mnist(root, train_labels, test_labels):
    """All four files of MNIST; returns the pictures of both parts."""
    pictures = digit_pictures(len(train_labels)), digit_pictures(len(test_labels), first=100)
    for prefix, labels, pixels in zip(("train", "t10k"), (train_labels, test_labels), pictures, strict=True):
        write_idx(root / f"MNIST/raw/{prefix}-images-idx3-ubyte", pixels)
        write_idx(root / f"MNIST/raw/{prefix}-labels-idx1-ubyte", np.array(labels, dtype=np.uint8))
    return pictures


def write_writers(root, part, classes, writers):
    """QMNIST's extended labels of a part: class, series, writer and five more columns."""
    table = np.zeros((len(classes), 8), dtype=np.int32)
    table[:, 0], table[:, 1], table[:, 2], table[:, 3] = classes, 4, writers, 99
    write_idx(root / f"QMNIST/raw/qmnist-{part}-labels-idx2-int", table)


def write_emnist(root, split, train_labels, test_labels):
    """The four files of one split of EMNIST; returns the pictures of both parts as they are stored."""
    pictures = digit_pictures(len(train_labels)), digit_pictures(len(test_labels), first=100)
    for part, labels, pixels in zip(("train", "test"), (train_labels, test_labels), pictures, strict=True):
        write_idx(root / f"EMNIST/raw/emnist-{split}-{part}-images-idx3-ubyte", pixels)
        write_idx(root / f"EMNIST/raw/emnist-{split}-{part}-labels-idx1-ubyte", np.array(labels, dtype=np.uint8))
    return pictures


def write_cifar(root, source, labels, monkeypatch):
    """The files of a torchvision class, in which `labels` lists the labels of each, training files first.

    The checksums that torchvision knows are replaced by those of the files. Returns the rows [n, 3072] of all files.
    """
    folder, kind = root / source.base_folder, "labels" if "10-" in source.base_folder else "fine_labels"
    folder.mkdir(parents=True)
    rows, checksums = [], {}
    for file_idx, (name, _) in enumerate(source.train_list + source.test_list):
        num_pictures = len(labels[file_idx])
        data = (np.arange(num_pictures * 3072).reshape(num_pictures, 3072) * 11 + 31 * file_idx) % 253
        rows.append(data.astype(np.uint8))
        checksums[name] = _pickle(folder / name, {"data": rows[-1], kind: labels[file_idx], "coarse_labels": [0]})
    meta = _pickle(folder / source.meta["filename"], {source.meta["key"]: ["class"]})
    for name in ("train_list", "test_list"):
        monkeypatch.setattr(source, name, [[file, checksums[file]] for file, _ in getattr(source, name)])
    monkeypatch.setattr(source, "meta", source.meta | {"md5": meta})
    return np.concatenate(rows)


def _pickle(path, content):
    path.write_bytes(pickle.dumps(content, protocol=2))
    return hashlib.md5(path.read_bytes()).hexdigest()
