import os
import sys

import numpy as np
import pytest
import torch

from lit_fed.clients import store_files as checkpoint_index
from lit_fed.clients import store_files as client_files
from lit_fed.clients.store import ClientStore
from lit_fed.clients.store_files import INDEX_KEY, CheckpointIndex, ClientFiles, choose_leaves, folder_beside
from lit_fed.core import tree
from lit_fed.errors import ClientError, ConfigError

T = 6


def initial(client_id):
    """A large leaf, a small one, and the mixture weights."""
    return {
        "state": {"w": torch.full((500,), float(client_id)), "n": torch.tensor(client_id), "mixture": torch.ones(2)}
    }


def states(client_ids, value):
    rng, rows = torch.Generator().manual_seed(value), len(client_ids)
    w, mixture = torch.rand(rows, 500, generator=rng), torch.rand(rows, 2, generator=rng)
    return {"state": {"w": w, "n": torch.full((rows,), value), "mixture": mixture}}


def opened(folder):
    kept = ClientStore(initial, T, memory_bytes=0)
    kept.open(folder / "clients", folder)
    return kept


def names(folder):
    return sorted(path.name for path in (folder / "clients").iterdir())


def one_round(kept, client_ids, value):
    ids = torch.tensor(client_ids)
    kept.stage(ids, states(client_ids, value))
    kept.exchange(torch.arange(len(ids)), [len(ids)], ids)


def checkpoint(kept, path):
    """What Lightning writes, as far as the index of client files goes."""
    path.parent.mkdir(exist_ok=True)
    with kept.saving(path, True):
        torch.save({"state_dict": {f"store.{key}": value.clone() for key, value in kept.state_dict().items()}}, path)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


# ---------------------------------------------------------------------- which leaves go to files
@pytest.mark.parametrize(
    ("memory_bytes", "chosen"),
    [
        (10 * 25_008, []),
        (10 * 25_007, [1]),
        (10 * 9_008, [1]),
        (10 * 9_007, [1, 3]),
        (10 * 2_008, [1, 3]),
        (0, [0, 1, 3]),
    ],
)
def test_the_largest_leaves_go_to_files_until_the_rest_fits(memory_bytes, chosen):
    assert choose_leaves([2000, 16_000, 8, 7000], 10, memory_bytes) == chosen


def test_small_leaves_stay_in_memory_whatever_the_budget():
    assert choose_leaves([1024, 1025, 8], 1_000_000, 0) == [1]
    assert choose_leaves([], 10, 0) == []


def test_a_store_within_its_budget_has_no_files():
    kept = ClientStore(initial, T, memory_bytes=T * (2000 + 8 + 8))
    assert kept.files is None
    assert kept.clients_per_block == sys.maxsize
    assert "versions" not in dict(kept.named_buffers())


# ---------------------------------------------------------------------- the store
def test_files_and_memory_hold_the_same_states_at_every_moment(tmp_path):
    in_files, in_memory = opened(tmp_path), ClientStore(initial, T)
    assert in_files.in_files == ["w"]
    assert set(dict(in_files.named_buffers())) == {"n", "mixture_weights", "versions"}
    everyone = torch.tensor([5, 0, 3, 1, 4, 2])
    for value, phases in enumerate([[[0, 2]], [[2, 3], [3, 0]], [[5]]]):
        for phase in phases:
            for kept in (in_files, in_memory):
                one_round(kept, phase, value)
            assert same(in_files.gather(everyone), in_memory.gather(everyone))
            assert same(in_files.table, in_memory.table)
        for kept in (in_files, in_memory):
            kept.commit()
        assert same(in_files.table, in_memory.table)
        assert same(in_files.gather(everyone[:0]), in_memory.gather(everyone[:0]))
    assert (in_files.versions >= 0).tolist() == [True, False, True, True, False, True]
    assert [int(name.split(".")[0]) for name in names(tmp_path)] == [0, 2, 3, 5]


def test_staged_states_are_written_at_once_and_a_discarded_round_changes_nothing(tmp_path):
    kept = opened(tmp_path)
    kept.stage(torch.tensor([4]), states([4], 7))
    assert names(tmp_path) == ["4.0.pt"]
    assert kept.versions.tolist() == [-1] * T
    kept.discard()
    assert same(kept.gather(torch.tensor([4])), tree.map_leaves(lambda leaf: leaf[None], initial(4)))
    kept.open(tmp_path / "clients", tmp_path)
    assert names(tmp_path) == []


def test_a_file_holds_one_row_and_no_more(tmp_path):
    kept = opened(tmp_path)
    kept.stage(torch.arange(T), states(range(T), 1))
    assert (tmp_path / "clients/3.0.pt").stat().st_size < 2 * 500 * 4
    content = torch.load(tmp_path / "clients/3.0.pt", weights_only=True)
    assert torch.equal(content["w"], states(range(T), 1)["state"]["w"][3])


def test_a_block_of_clients_fits_into_memory(monkeypatch):
    assert ClientStore(initial, T, memory_bytes=0).clients_per_block == 16 * 2**20 // 2000
    monkeypatch.setattr("lit_fed.clients.store.BYTES_PER_BLOCK", 100)
    assert ClientStore(initial, T, memory_bytes=0).clients_per_block == 1


def test_only_rank_zero_deletes(tmp_path):
    kept = ClientStore(initial, T, memory_bytes=0)
    (tmp_path / "clients").mkdir()
    heard = (tmp_path / "clients", 3, None)
    kept.open(tmp_path / "clients", tmp_path, is_global_zero=False, broadcast=lambda value: heard)
    for value in range(3):
        one_round(kept, [1], value)
        kept.commit()
    assert names(tmp_path) == ["1.3.pt", "1.4.pt", "1.5.pt"]


# ---------------------------------------------------------------------- garbage
def test_what_neither_index_nor_checkpoint_needs_is_deleted(tmp_path):
    kept, last, best = opened(tmp_path), tmp_path / "checkpoints/last.ckpt", tmp_path / "elsewhere/best.ckpt"
    one_round(kept, [0, 1], 0)
    kept.commit()
    checkpoint(kept, last)
    checkpoint(kept, best)
    one_round(kept, [0], 1)
    kept.commit()
    assert names(tmp_path) == ["0.0.pt", "0.1.pt", "1.0.pt", "checkpoints.txt"]
    checkpoint(kept, last)
    assert "0.0.pt" in names(tmp_path), "best.ckpt needs it"
    best.unlink()
    kept.collect()
    assert names(tmp_path) == ["0.1.pt", "1.0.pt", "checkpoints.txt"]


def test_a_later_process_knows_the_checkpoints_and_sweeps_the_rest(tmp_path):
    kept, best = opened(tmp_path), tmp_path / "elsewhere/best.ckpt"
    one_round(kept, [0, 1], 0)
    kept.commit()
    checkpoint(kept, best)
    one_round(kept, [0, 2], 1)
    kept.commit()
    checkpoint(kept, tmp_path / "checkpoints/last.ckpt")
    one_round(kept, [0, 3], 2)  # cut off
    (tmp_path / "clients/.5.9.pt.partial").write_bytes(b"half")
    later = ClientStore(initial, T, memory_bytes=0)
    later.find({"store.versions": kept.versions}, tmp_path / "checkpoints/last.ckpt", None)
    later.versions.copy_(kept.versions)
    later.open(tmp_path / "clients", tmp_path)
    kept.discard()
    assert names(tmp_path) == ["0.0.pt", "0.1.pt", "1.0.pt", "2.1.pt", "checkpoints.txt"]
    assert same(later.table["state"]["w"], kept.table["state"]["w"])
    one_round(later, [0], 3)
    assert "0.2.pt" in names(tmp_path), "a new version, whatever is there"
    later.commit()
    best.unlink()
    checkpoint(later, tmp_path / "checkpoints/last.ckpt")
    assert names(tmp_path) == ["0.2.pt", "1.0.pt", "2.1.pt", "checkpoints.txt"]


def test_a_checkpoint_that_cannot_be_read_keeps_everything(tmp_path):
    kept = opened(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/other.ckpt").write_bytes(b"nothing that torch knows")
    one_round(kept, [0], 0)
    kept.commit()
    one_round(kept, [0], 1)
    with pytest.warns(UserWarning, match=r"other\.ckpt cannot be read"):
        kept.commit()
    assert names(tmp_path) == ["0.0.pt", "0.1.pt"]


# ---------------------------------------------------------------------- another folder
@pytest.mark.parametrize("linked", [True, False])
def test_a_new_folder_takes_the_files_along(tmp_path, monkeypatch, linked):
    old, new = tmp_path / "old", tmp_path / "new"
    kept = opened(old)
    one_round(kept, [0, 1], 0)
    kept.commit()
    one_round(kept, [1], 1)
    kept.commit()
    before = kept.table
    if not linked:
        monkeypatch.setattr(client_files.os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    kept.open(new / "clients", new)
    assert names(new) == ["0.0.pt", "1.1.pt"]
    assert same(kept.table, before)
    assert ((new / "clients/1.1.pt").stat().st_ino == (old / "clients/1.1.pt").stat().st_ino) == linked
    one_round(kept, [1], 2)
    kept.commit()
    assert names(old) == ["0.0.pt", "1.1.pt"]
    assert names(new) == ["0.0.pt", "1.2.pt"]


def test_files_whose_names_are_taken_are_written_anew(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    first, kept = opened(new), opened(old)
    for store, salt in ((first, 0), (kept, 1)):
        one_round(store, [0, 1], salt)
        store.commit()
    checkpoint(first, new / "checkpoints/best.ckpt")
    before, theirs = kept.table, first.table
    kept.open(new / "clients", new)
    assert names(new) == ["0.0.pt", "0.1.pt", "1.0.pt", "1.1.pt"]
    assert same(kept.table, before)
    assert same(first.table, theirs)


def test_without_checkpoints_files_are_temporary(tmp_path):
    kept = ClientStore(initial, T, memory_bytes=0)
    kept.open(None, tmp_path)
    one_round(kept, [0], 0)
    kept.commit()
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("clients-")
    assert [path.name for path in folder.iterdir()] == ["0.0.pt"]
    del kept
    assert list(tmp_path.iterdir()) == []


def test_files_lie_beside_a_folder_of_checkpoints(tmp_path):
    assert folder_beside(tmp_path / "run/checkpoints") == tmp_path / "run/clients"
    assert folder_beside(tmp_path / "best") == tmp_path / "best/clients"


# ---------------------------------------------------------------------- errors
def test_a_missing_file_names_client_file_and_fix(tmp_path):
    index = {"store.versions": torch.tensor([-1, 4, 2, -1, -1, -1])}
    folder = tmp_path / "run/clients"
    folder.mkdir(parents=True)
    (folder / "1.4.pt").touch()
    kept = ClientStore(initial, T, memory_bytes=0)
    with pytest.raises(ConfigError, match=r"run/clients/2\.2\.pt of client 2, or .*gone.*folder `clients`"):
        kept.find(index, tmp_path / "run/checkpoints/last.ckpt", str(tmp_path / "gone"))
    (folder / "2.2.pt").touch()
    kept.find(index, tmp_path / "moved/checkpoints/last.ckpt", str(folder))
    assert kept.location == str(folder)
    kept.find({"store.versions": torch.full((T,), -1)}, None, None)
    assert kept.location is None


def test_a_damaged_file_names_its_client(tmp_path):
    files = ClientFiles(["w"])
    files.folder = tmp_path
    files.write(3, 0, [torch.ones(500)])
    path = tmp_path / "3.0.pt"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ClientError, match=r"^client 3, its kept state: cannot be read from .*3\.0\.pt"):
        files.read(3, 0)


def test_a_round_of_200_000_clients_touches_the_files_of_its_cohort(tmp_path, monkeypatch):
    asked, read = [], []
    large = ClientStore(
        lambda one: asked.append(one) or {"state": torch.full((500,), float(one))}, 200_000, memory_bytes=0
    )
    large.open(tmp_path / "clients", tmp_path)
    load = ClientFiles.read
    monkeypatch.setattr(ClientFiles, "read", lambda self, *pair: read.append(pair) or load(self, *pair))
    for cohort in ([7, 199_999], [7, 3]):
        ids = torch.tensor(cohort)
        large.stage(ids, tree.map_leaves(lambda leaf: leaf + 1, large.gather(ids)))
        large.exchange(torch.arange(2), [2], ids)
        large.commit()
    assert names(tmp_path) == ["199999.0.pt", "3.1.pt", "7.1.pt"]
    assert read == [(7, 0)]
    assert sorted(asked) == [0, 3, 7, 199_999]  # the first of all shows the shapes


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
