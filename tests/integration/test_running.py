"""What is forked in the place of a fresh process has loaded what takes long to load, and begins where that would."""

import os
import sys
from pathlib import Path

from running import ended, forked


def _look(place):
    found = ["warm" in sys.modules, Path.cwd() == place, os.environ.get("SOMETHING") == "set"]
    Path("found").write_text(str(found))


def test_a_forked_process_has_everything_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ended(forked(_look, tmp_path, SOMETHING="set"), timeout=120) == 0
    assert (tmp_path / "found").read_text() == "[True, True, True]"
