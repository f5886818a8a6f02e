"""Whole commands from checkpoints with a forged value in one entry: each runs, or ends with a message.

The long lane runs 600 of them; `FUZZ_SECONDS=3600 python -m pytest -n 0 THIS_FILE` goes on for an hour.
"""

import itertools
import os
import random
import re
import shutil
import time
from collections import OrderedDict
from contextlib import chdir, suppress
from functools import cache
from pathlib import Path

import attacks_in_settings as attacks
import numpy as np
import pytest
import torch
from prepared import DRAWN
from running import SMALL
from watched import watch, watched

from lit_fed.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")

QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]

RUNS = {
    "digits": [
        *SMALL, *QUIET, "--model.client_memory_gb", "0", "--data.num_clients", "4", "--trainer.max_epochs", "1",
        "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=train/seen/loss",
        "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor=train/seen/loss",
        "--trainer.callbacks.filename=best", "--trainer.callbacks+=Timer", "--trainer.callbacks.interval=step",
    ],
    "files": [
        *SMALL, *QUIET, "--model.algorithm", "Local", "--model.client_memory_gb", "0", "--data.num_clients", "4",
        "--trainer.max_epochs", "1",
    ],
    "table": [
        *QUIET, "--data.dataset", "Table", "--data.dataset.path", "table.csv", "--data.dataset.client_column", "who",
        "--data.dataset.label_column", "y", "--model.algorithm", "FedAvg", "--model.privacy", "ClientPrivacy",
        "--model.privacy.noise_multiplier", "1", "--model.privacy.delta", "1e-3", "--model.privacy.clip_norm", "1",
        "--data.client_sampling", "poisson", "--data.client_fraction", "0.9",
        "--trainer.max_epochs", "1",
    ],
}  # fmt: skip

COMMANDS = {
    "fit": ["--trainer.max_epochs", "2", "--trainer.default_root_dir", "again"],
    "init_from": ["--trainer.default_root_dir", "other"],
    "test": [], "validate": [], "predict": ["--output", "predicted.csv"],
    "personalize": ["--output", "served"], "export": ["--client", "0", "--output", "new.pt2"],
}  # fmt: skip

FORGED = [
    None, True, -1, 0, 1, 2**40, 2**62, 2**80, -(2**63), 1.5, 1e300, float("nan"), float("inf"), 1j, "", "x" * 5000,
    "local://victim", "file:///victim/precious.txt", "../../x", "/victim", "a\0b", "canary.K", "1", b"x",
    {"class_path": "canary.K"}, {"canary.K": None}, [], [[[]]], [None], ["x"], [1.5], {}, {"x": {}}, {1: 2}, (), (1, 2),
    {1, "x"}, OrderedDict(a=1), torch.Size([2]), torch.float16, torch.zeros(0), torch.zeros(3, 2),
    torch.full((2,), torch.nan), torch.tensor(2**62), torch.tensor(1), torch.tensor(-1.5), torch.tensor([True]),
    torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse(), torch.zeros((), dtype=torch.float64),
    torch.zeros(1).expand(2**40), torch.zeros((), device="meta"), torch.zeros(3, 2, dtype=torch.uint16),
]  # fmt: skip
"""Values for the place of any entry."""

LIKE = [
    ("fill", -1),
    ("fill", 2**31),
    ("fill", 2**62),
    ("fill", float("nan")),
    ("type", torch.int64),
    ("type", torch.float16),
    ("type", torch.float8_e5m2),
]
"""Changes of a tensor that leave its shape."""

ALIKE = {
    int: [-1, 0, 1, 2, 7, 0.5, -0.5, 1e30, float("nan"), float("inf"), "x", [1], True],
    float: [-1, 0, 1, 2, 0.5, -0.5, 1e30, float("nan"), float("inf"), "x", [1], True],
    str: ["x", "lit_fed.Federation", "Federation", "Local", "train", "../x", "a b", "é", "{}", "null", "1", "cuda"],
}
"""Values that are nearer to those of a run."""

COMMONNESS = (4, 1, 3, 1, 1, 2, 0.3)
"""Of each command: an export takes seconds."""

# a column of the checkpoint may be missing in the file of --clients
CHECKPOINT = re.compile(r"theirs\.ckpt|the checkpoint|client [\w']+|--clients")

ABSENT, MORE = object(), object()
"""In the place of a value: the entry is left out, or has another one beside it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The working folder, with samples of new clients."""
    place = tmp_path_factory.mktemp("fuzzed")
    (place / "canary.py").write_text("from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n")
    rng = np.random.default_rng(0)
    rows = [f"{who},{a:.3f},{a * 2 + who:.3f}" for who in range(4) for a in rng.normal(size=12)]
    (place / "table.csv").write_text("\n".join(["who,a,y", *rows]))
    (place / "new_digits").mkdir()
    np.savez(place / "new_digits/new.npz", x_train=rng.random((12, 1, 8, 8), np.float32), y_train=np.arange(12) % 10)
    with chdir(place), pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(place / "inductor"))  # which an export makes
        patched.syspath_prepend(place)
        yield place
    assert not (place / "canary.ran").exists()


@pytest.fixture(scope="module")
def content_of(place):
    """The content of the checkpoint of each run, which is trained when it is first asked for."""

    @cache
    def content(run):
        main(["fit", *RUNS[run], "--trainer.default_root_dir", str(place / run)])
        return torch.load(next((place / run).rglob("last.ckpt")), weights_only=True)

    return content


def command_of(name, run, path):
    """A command that reads a checkpoint."""
    arguments = COMMANDS[name]
    if name in ("fit", "init_from"):
        arguments = [*RUNS[run], *arguments]
    if name == "personalize":
        arguments = [*arguments, "--clients", "table.csv" if run == "table" else "new_digits"]
    option = "--init_from" if name == "init_from" else "--ckpt_path"
    cpu = [] if name in ("fit", "init_from", "export") else QUIET[:2]
    return ["fit" if name == "init_from" else name, *cpu, *arguments, option, str(path)]


def places(value, path=()):
    """The path of each entry, and its value; of long lists the first two."""
    yield path, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in itertools.islice(inside, None if isinstance(value, dict) else 2):
        yield from places(one, (*path, key))


def replaced(value, path, forged):
    """A copy with another value in one place."""
    if not path:
        return {**value, "more": 1} if forged is MORE and isinstance(value, dict) else 1 if forged is MORE else forged
    key, *rest = path
    if isinstance(value, dict):
        if forged is ABSENT and not rest:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: replaced(value[key], rest, forged)}
    changed = list(value)
    if forged is ABSENT and not rest:
        del changed[key]
    else:
        changed[key] = replaced(changed[key], rest, forged)
    return type(value)(changed)


def forged(draw, path, value):
    """A value for the place of an entry; no setting asks for more time or memory than there is."""
    if isinstance(value, torch.Tensor) and value.numel() and draw.random() < 0.6:
        how, what = draw.choice(LIKE)
        with suppress(RuntimeError):  # numbers that the type does not hold
            return torch.full_like(value, what) if how == "fill" else value.to(what)
    if type(value) in ALIKE and draw.random() < 0.5:
        return draw.choice(ALIKE[type(value)])
    found = draw.choice([*FORGED, ABSENT, MORE])
    return -1 if path[:2] == ("lit_fed", "arguments") and type(found) is int and 2**20 < found < 2**64 else found


def attempt(place, content, run, command, path, value, capsys):
    """Run a command from a checkpoint with a forged value; returns what is wrong, or ""."""
    (place / "theirs").mkdir(exist_ok=True)
    torch.save(replaced(content, path, value), place / "theirs/theirs.ckpt")
    capsys.readouterr()
    shutil.rmtree("served", ignore_errors=True)
    Path("new.pt2").unlink(missing_ok=True)
    status = 0
    with watched(place, os.environ[DRAWN]) as written, watch(attacks.FORBIDDEN) as seen:
        try:
            main(command_of(command, run, place / "theirs/theirs.ckpt"))
        except SystemExit as stopped:
            status = stopped.code
        except Exception as error:  # would be a traceback
            return f"{type(error).__name__}: {error}"[:300]
    said = capsys.readouterr().err
    found = [one for one in seen if not one.startswith(("open ", "os.", "shutil.", "subprocess.Popen ('git'"))]
    if written or found:
        return f"touched {written or found}"
    if status not in (0, 2):
        return f"status {status}: {said[-300:]}"
    is_told = any(line.startswith("lit_fed: ") and CHECKPOINT.search(line) for line in said.splitlines())
    return "" if status == 0 or is_told else f"no name: {said[-300:]}"


@pytest.mark.parametrize("seed", range(120))
def test_whole_commands_from_forged_checkpoints(seed, place, content_of, capsys):
    """Five of each seed; each ends with status 0, or 2 and a message about the checkpoint, and touches nothing else."""
    run = list(RUNS)[seed % len(RUNS)]
    content, until, tried = content_of(run), time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "0")) / 120, 0
    entries = {path: value for path, value in places(content) if path}
    chances = [3 if path[0] == "state_dict" else 1 / 3 if path[0] == "loops" else 1 for path in entries]
    draw = random.Random(seed)
    while tried < 5 or time.monotonic() < until:
        path, command = draw.choices(list(entries), chances)[0], draw.choices(list(COMMANDS), COMMONNESS)[0]
        value = forged(draw, path, entries[path])
        assert not attempt(place, content, run, command, path, value, capsys), (run, command, path, value)
        tried += 1
