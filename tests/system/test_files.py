import errno
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
import torch
from interruptions import file_size_limit

from lit_fed.errors import ConfigError, WriteError
from lit_fed.models import pretrained
from lit_fed.system.files import given_path, owner_only, require_file, whole_file, write_atomically
from lit_fed.training.export import check_program_file
from lit_fed.training.output import check_creatable, check_new_folder, check_table_file, check_writable


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def save_zeros(path):
    with whole_file(path) as file:
        torch.save(torch.zeros(2000), file)


@pytest.mark.parametrize("write", [save_zeros, lambda path: write_atomically(path, "x" * 2000)])
def test_what_stood_there_stands_if_the_new_file_is_refused(tmp_path, write):
    path = tmp_path / "file"
    write_atomically(path, "before")
    refused = r"file cannot be written: File too large; lift the limit \(ulimit -f\)"
    with file_size_limit(1000), pytest.raises(WriteError, match=refused):
        write(path)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_told_from_an_error_of_ones_own(tmp_path):
    with pytest.raises(WriteError, match="No space left on device; free space"), whole_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(RuntimeError, match="wrong shape") as raised, whole_file(tmp_path / "a"):
        raise RuntimeError("wrong shape")
    assert type(raised.value) is RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(WriteError, match="none/file cannot be written: No such file or directory; see to its folder"):
        write_atomically(tmp_path / "none/file", "")


def test_the_umask_decides_unless_a_file_is_private(tmp_path):
    before = os.umask(0o022)
    try:
        (tmp_path / ".secret.partial").touch()  # of a process that was killed
        with whole_file(tmp_path / "secret", private=True) as file:
            file.write(b"x")
        write_atomically(tmp_path / "table", "x")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "secret"), mode(tmp_path / "table")) == (0o600, 0o644)


def test_files_of_a_private_run_are_for_their_owner(tmp_path):
    """Those of other libraries, too, and of processes that are started."""
    before = os.umask(0o022)
    try:
        with owner_only(True):
            write_atomically(tmp_path / "table", "x")
            (tmp_path / "folder").mkdir()
            subprocess.run(["touch", tmp_path / "media"], check=True)
        with owner_only(False):
            write_atomically(tmp_path / "open", "x")
    finally:
        assert os.umask(before) == 0o022
    modes = {one.name: mode(one) for one in tmp_path.iterdir()}
    assert modes == {"table": 0o600, "folder": 0o700, "media": 0o600, "open": 0o644}


@pytest.mark.parametrize("private", [True, False])
def test_a_temporary_file_is_no_link_of_somebody_else(tmp_path, private, monkeypatch):
    """One that appears between the look and the write: another user's in a folder that both may write to."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    (tmp_path / ".table.partial").symlink_to(victim)
    with pytest.raises(WriteError, match="File exists"), whole_file(tmp_path / "table", private=private) as file:
        file.write(b"x")
    assert victim.read_text() == "kept"
    check_writable(tmp_path, "--output")
    (tmp_path / f".lit_fed_{os.getpid()}").symlink_to(tmp_path / "new")
    check_writable(tmp_path, "--output")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("linked", [True, False])
def test_what_stood_there_is_kept(tmp_path, monkeypatch, linked):
    path, kept = tmp_path / "last", tmp_path / "previous"
    if not linked:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    for content in (b"1", b"2", b"3"):
        with whole_file(path, keep=kept) as file:
            file.write(content)
    assert (path.read_bytes(), kept.read_bytes()) == (b"3", b"2")
    with pytest.raises(ZeroDivisionError), whole_file(path, keep=kept):
        raise ZeroDivisionError
    assert (path.read_bytes(), kept.read_bytes()) == (b"3", b"2")
    kept.unlink()
    os.link(path, kept) if linked else kept.write_bytes(b"3")  # killed between the two
    with whole_file(path, keep=kept) as file:
        file.write(b"4")
    assert (path.read_bytes(), kept.read_bytes()) == (b"4", b"3")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["last", "previous"]


LONG = "/tmp" + "/xxxxxxx" * 600
SHOWN = r"'/tmp/x.*… \(\d+ letters\)'"


def test_paths_that_may_stand(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", tmp_path / "file/below", tmp_path / "not yet"):
        assert given_path(str(path), "--output") == path
    assert given_path("~/data", "--output") == Path.home() / "data"


@pytest.mark.parametrize(
    "check",
    [
        lambda path: given_path(path, "--output"),
        lambda path: check_creatable(Path(path), "--output"),
        lambda path: check_table_file(Path(f"{path}.csv")),
        lambda path: check_new_folder(Path(path)),
        lambda path: check_program_file(Path(f"{path}.pt2"), "pt"),
    ],
)
def test_a_path_too_long(check):
    with pytest.raises(ConfigError, match=rf"^--output {SHOWN}: File name too long; give another path$"):
        check(LONG)


def test_weights_under_a_path_too_long():
    with pytest.raises(ConfigError, match=rf"^--model\.network\.weights {SHOWN}: File name too long; give another"):
        pretrained.read_weights(f"{LONG}.pt")


def test_files_that_are_none(tmp_path):
    (tmp_path / "file").touch()
    require_file(tmp_path / "file", "fix")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    for name, kind in ((".", "a folder"), ("pipe", "no file, but a pipe or a device"), ("link", "a broken link")):
        with pytest.raises(ConfigError, match=rf"{re.escape(str(tmp_path))}.* is {kind}; fix$"):
            require_file(tmp_path / name, "fix")
    with pytest.raises(ConfigError, match=r"nothing: there is no such file; fix$"):
        require_file(tmp_path / "nothing", "fix")
