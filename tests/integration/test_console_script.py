"""The script `lit-fed` finds user-defined classes where `python -m lit_fed` does: in the current folder."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from running import CHILDREN, SMALL

SCRIPT = Path(sysconfig.get_path("scripts")) / "lit-fed"
OWN = "from lit_fed import FedAvg\nclass Mine(FedAvg):\n    pass\n"


def fit(place, **environment):
    (place / "own.py").write_text(OWN)
    arguments = [*SMALL, "--model.algorithm", "own.Mine", "--trainer.max_epochs", "1", "--trainer.logger", "false"]
    given = {**os.environ, **CHILDREN, **environment}
    return subprocess.run(
        [SCRIPT, "fit", *arguments], cwd=place, env=given, capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(not SCRIPT.is_file(), reason="lit_fed is not installed with its script")
def test_the_script_finds_classes_in_the_current_folder(tmp_path):
    ended = fit(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "accuracy" in ended.stdout


@pytest.mark.skipif(not SCRIPT.is_file(), reason="lit_fed is not installed with its script")
def test_the_script_respects_a_safe_path(tmp_path):
    ended = fit(tmp_path, PYTHONSAFEPATH="1")
    assert ended.returncode == 2
    assert "No module named 'own'" in ended.stderr
