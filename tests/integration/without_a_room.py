"""What runs in a copy of the package that lacks a room (`test_cut.py`): a plugin of pytest and three tests.

The plugin leaves, of what pytest collects, these tests and some of every file, drawn by the name of the room.
"""

import hashlib
import importlib
from pathlib import Path

import pytest
import running

import lit_fed

ROOMS = {
    "nodes": (
        "deployment",
        "command_line/deployed.py",
        "command_line/client.py",
        "command_line/flare_job.py",
        "command_line/flower_app.py",
    ),
    "benchmark": ("benchmark",),
    "results pages": ("command_line/report.py",),
    "sweep": ("command_line/sweep.py", "command_line/sweep_file.py", "command_line/sweep_results.py"),
    "export": ("training/export.py", "training/peft_folder.py"),
    "privacy": ("wrappers/privacy", "callbacks/guarantees.py"),
    "compression": ("wrappers/compression",),
    "robust": ("wrappers/robust", "callbacks/robust_rounds.py"),
    "faults": ("wrappers/faults", "callbacks/client_faults.py"),
    "personal": ("wrappers/personal",),
    "selection": ("wrappers/selection",),
    "serving": ("wrappers/serving",),
    "sums": ("wrappers/secure", "callbacks/secure_rounds.py"),
}
"""What each room is made of."""

COMMANDS = {
    "nodes": ("client", "federation", "certificates", "flare-job", "flower-app"), "benchmark": ("benchmark",),
    "results pages": ("report",), "sweep": ("sweep",), "export": ("export",),
}  # fmt: skip

DRAWN = 1 / 40
"""The part of the tests of each file that runs; at least one."""


def pytest_addoption(parser):
    parser.addoption("--without", choices=ROOMS, help="the room that is gone")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is long or not drawn."""
    room, files = config.option.without, {}
    for item in items:
        if item.path == Path(__file__) or not item.get_closest_marker("long"):
            files.setdefault(item.path, []).append(item)
    kept = set()
    for path, of_file in files.items():
        order = sorted(of_file, key=lambda item: hashlib.sha256(f"{room} {item.nodeid}".encode()).digest())
        kept.update(order if path == Path(__file__) else order[: max(1, round(DRAWN * len(order)))])
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture
def room(request):
    return request.config.option.without


def test_every_name_is_imported():
    package = Path(lit_fed.__file__).parent
    assert package == Path(__file__).parents[2] / "lit_fed"
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)
    assert {"FedEM", "FederatedTrainer"} <= set(dir(lit_fed))
    for name in dir(lit_fed):
        getattr(lit_fed, name)


def test_the_quickstart_runs_and_goes_on(tmp_path):
    fit = ["fit", "--config", "configs/experiment/quickstart.yaml", "--trainer.accelerator", "cpu"]
    fit += ["--trainer.default_root_dir", str(tmp_path), "--trainer.enable_progress_bar", "false"]
    for resumed in (["--trainer.max_epochs", "2"], ["--trainer.max_epochs", "3", "--ckpt_path", "last"]):
        done = running.run([*fit, *resumed])
        assert done.returncode == 0, done.stderr
    folder = tmp_path / "quickstart" / "version_0"
    assert len((folder / "metrics.csv").read_text().splitlines()) >= 4
    done = running.run(["test", "--ckpt_path", str(folder / "checkpoints" / "last.ckpt")])
    assert done.returncode == 0, done.stderr


def test_commands_of_the_room_are_refused_in_one_line(room):
    page = running.run(["--help"]).stdout
    assert "\n  fit " in page
    assert running.run(["fit", "--help"]).returncode == 0
    for command in COMMANDS.get(room, ()):
        assert f"\n  {command} " not in page
        done = running.run([command, "--help"])
        line = f"lit_fed: {command}: lit_fed is installed here without its {ROOMS[room][0]}\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_data_of_absent_nodes_is_unknown(room):
    if room != "nodes":
        pytest.skip("nodes are there")
    done = running.run(["fit", "--data.dataset", "Federation"])
    assert done.returncode == 2
    assert done.stderr.startswith("lit_fed: --data.dataset: ")
    assert "Digits" in done.stderr  # the data sets that are there
    assert "Federation," not in done.stderr
