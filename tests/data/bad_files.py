"""Files with one thing wrong, and what has to be said of them."""

import io
import os
import signal
import struct
import tempfile
import zipfile

import numpy as np
import pytest

from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

X, Y = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 2, 1])
GOOD = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]}
EXECUTED = os.path.join(tempfile.gettempdir(), f"executed-{os.getpid()}")  # what a pickle would make, if one were read


def save(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def npy(shape, dtype="<f4", content=b""):
    """A .npy file whose header may promise more than there is."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("latin1")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def zipped(path, compression=zipfile.ZIP_STORED, **members):
    """An archive of the good arrays with some members replaced by raw bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in GOOD.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{name}.npy", members.get(name, buffer.getvalue()))


def text(content):
    return lambda path: path.write_text(content)


def raw(content):
    return lambda path: path.write_bytes(content)


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def _hangs(*_):
    raise AssertionError("a pipe that is opened waits for ever")


def refused(folder, load, words):
    """One message of one line, and no file more or less than before."""
    before = files(folder)
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(20)
    try:
        with pytest.raises(ConfigError) as caught:
            load()
    finally:
        signal.alarm(0)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert len(said) < 600
    for word in words:
        assert word in said, said
    assert files(folder) == before
    assert not os.path.exists(EXECUTED)


def set_up(dataset):
    return FederatedDataModule(dataset).setup
