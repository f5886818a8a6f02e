"""Paths that no system can open are refused where they are given, by every check of what is read or written."""

import os
import re
from pathlib import Path

import pytest

from lit_fed.errors import ConfigError
from lit_fed.models import pretrained
from lit_fed.system.given_paths import given_path, require_file
from lit_fed.training.export import check_program_file
from lit_fed.training.output import check_creatable, check_new_folder, check_table_file

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
