"""Deployment is a room that can be taken out: without it and its commands everything else runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_THE_ROOM = ("deployment", "command_line/deployed.py", "command_line/client.py", "command_line/flower_app.py")

EVERY_MODULE = """
import importlib, pathlib, sys
import lit_fed
package = pathlib.Path(lit_fed.__file__).parent
assert str(package) == sys.argv[1], package
names = [path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py")]
for name in sorted(".".join(one.parts).removesuffix(".__init__") for one in names):
    if not name.endswith("__main__"):
        importlib.import_module(name)
assert "Federation" not in dir(lit_fed)
assert {"FedEM", "FederatedTrainer"} <= set(dir(lit_fed))
"""


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A folder with the rest of the package, and the configurations."""
    place = tmp_path_factory.mktemp("cut")
    shutil.copytree(ROOT / "lit_fed", place / "lit_fed", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", place / "configs")
    for name in OF_THE_ROOM:
        path = place / "lit_fed" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return place


def python(cut, *arguments):
    environment = os.environ | {"PYTHONPATH": str(cut)}
    return subprocess.run([sys.executable, *arguments], cwd=cut, env=environment, capture_output=True, text=True)


def test_every_other_module_is_imported(cut):
    done = python(cut, "-c", EVERY_MODULE, str(cut / "lit_fed"))
    assert done.returncode == 0, done.stderr


def test_the_quickstart_runs_and_goes_on(cut):
    fit = ["-m", "lit_fed", "fit", "--config", "configs/experiment/quickstart.yaml", "--trainer.accelerator", "cpu"]
    for rounds in ("2", "3"):
        resumed = [] if rounds == "2" else ["--ckpt_path", "last"]
        done = python(cut, *fit, "--trainer.max_epochs", rounds, "--trainer.enable_progress_bar", "false", *resumed)
        assert done.returncode == 0, done.stderr
    folder = cut / "runs" / "quickstart" / "version_0"
    assert len((folder / "metrics.csv").read_text().splitlines()) >= 4
    done = python(cut, "-m", "lit_fed", "test", "--ckpt_path", str(folder / "checkpoints" / "last.ckpt"))
    assert done.returncode == 0, done.stderr


def test_commands_of_the_room_are_refused_in_one_line(cut):
    page = python(cut, "-m", "lit_fed", "--help").stdout
    assert "\n  fit " in page
    assert python(cut, "-m", "lit_fed", "fit", "--help").returncode == 0
    for command in ("client", "federation", "certificates", "flower-app"):
        assert f"\n  {command} " not in page
        done = python(cut, "-m", "lit_fed", command, "--help")
        line = f"lit_fed: {command}: lit_fed is installed here without its deployment\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    done = python(cut, "-m", "lit_fed", "fit", "--data.dataset", "Federation")
    assert done.returncode == 2
    assert done.stderr.startswith("lit_fed: --data.dataset: ")
    assert "Digits" in done.stderr  # the data sets that are there
    assert "Federation," not in done.stderr


def test_tests_of_the_rest_do_without_the_room():
    own = re.compile(
        r"^\s*(?:from|import) .*(?:lit_fed\.deployment|command_line\.(?:deployed|client|flower_app))", re.MULTILINE
    )
    tests = [path for path in (ROOT / "tests").rglob("*.py") if "deployment" not in path.parts]
    assert [path for path in tests if own.search(path.read_text())] == []
