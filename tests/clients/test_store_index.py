import os

import numpy as np
import pytest
import torch

from lit_fed.clients import store_files as checkpoint_index
from lit_fed.clients.store_files import INDEX_KEY, CheckpointIndex


@pytest.fixture
def clients(tmp_path):
    """The folder of client files of a run with a folder of checkpoints."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "clients").mkdir()
    return tmp_path / "clients"


def save(path, *versions):
    path.parent.mkdir(exist_ok=True)
    state = {INDEX_KEY: torch.tensor(versions)} if versions else {"rounds": torch.tensor(1)}
    torch.save({"state_dict": state}, path)


def found(index):
    return sorted(one.tolist() for one in index.read())


def test_every_checkpoint_beside_the_files_counts_while_it_exists(clients):
    index, folder = CheckpointIndex(clients), clients.parent / "checkpoints"
    assert found(index) == []
    save(folder / "last.ckpt", 1, -1)
    save(folder / "best.ckpt", 0, 2)
    save(folder / "memory.ckpt")
    assert found(index) == [[], [0, 2], [1, -1]]
    save(folder / "last.ckpt", 3, 4)
    (folder / "best.ckpt").unlink()
    assert found(index) == [[], [3, 4]]


def test_a_checkpoint_elsewhere_is_announced_to_later_processes(clients, tmp_path):
    away, gone = tmp_path / "away/best.ckpt", tmp_path / "away/gone.ckpt"
    index = CheckpointIndex(clients)
    index.announce(gone)
    index.announce(clients.parent / "checkpoints/last.ckpt")
    index.announce(away)
    index.announce(away)
    assert (clients / "checkpoints.txt").read_text() == f"{away}\n"
    save(away, 5)
    assert found(CheckpointIndex(clients)) == [[5]]


def test_what_this_process_wrote_is_not_read_again(clients, monkeypatch):
    path, index = clients.parent / "checkpoints/last.ckpt", CheckpointIndex(clients)
    save(path, 1, 2)
    written = np.array([1, 2])
    index.written(path, written)
    written[:] = 7
    monkeypatch.setattr(checkpoint_index, "_load", lambda _: pytest.fail("read from the disk"))
    assert found(index) == [[1, 2]]
    monkeypatch.undo()
    save(path, 3, 4)
    os.utime(path, ns=(1, 1))
    assert found(index) == [[3, 4]], "another process put another one in its place"


def test_an_unreadable_checkpoint_is_told_once(clients):
    index = CheckpointIndex(clients)
    (clients.parent / "checkpoints/other.ckpt").write_bytes(b"no checkpoint")
    with pytest.warns(UserWarning, match=r"other\.ckpt cannot be read .* are kept; move it elsewhere"):
        assert index.read() is None
    assert index.read() is None
