"""Command lines that a person may type by mistake: one message that names value, place and fix, and nothing is left.

`wrong_command_lines.txt` has a line for each: `status | arguments | part of the message`. `fit…` stands for a fit of
two rounds on the digits, FILES for a folder of configurations and checkpoints that are wrong, each in its own way.
"""

import resource
import shlex
from pathlib import Path

import pytest
import torch
from running import run

HERE = Path(__file__).parent

FIT = [
    "fit", "--data.dataset", "Digits", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "2",
    "--trainer.enable_progress_bar", "false",
]  # fmt: skip

CONFIGS = {
    "syntax.yaml": "model:\n  a: b\n c: [\n",
    "tab.yaml": "model:\n\ta: 1\n",
    "empty.yaml": "",
    "comment.yaml": "# nothing\n",
    "list.yaml": "- a\n- b\n",
    "scalar.yaml": "hello\n",
    "binary.yaml": b"\x80\x02\xb2\xff" * 20,
    "nul.yaml": "model:\0\n",
    "latin1.yaml": "name: café\n".encode("latin1"),
    "section.yaml": "modell:\n  solver:\n    lr: 0.1\n",
    "option.yaml": "model:\n  solver:\n    lrr: 0.1\n",
    "rounds.yaml": "trainer:\n  epochs: 2\n",
    "argument.yaml": "model:\n  algorithm:\n    class_path: FedEM\n    init_args:\n      num_component: 3\n",
    "dataset.yaml": "data:\n  dataset:\n    class_path: Digits\n    init_args:\n      rot: 1\n",
    "twice.yaml": "model:\n  solver:\n    lr: 0.1\n    lr: 0.2\n",
    "object.yaml": 'name: !!python/object/apply:os.system ["true"]\n',
    "gone.yaml": "model:\n  algorithm: lit_fed.algorithms.old.FedOld\n",
    "string.yaml": "model:\n  solver:\n    lr: 1e-1x\n",
    "null.yaml": "model: null\n",
    "null_algorithm.yaml": "model:\n  algorithm: null\n",
    "null_argument.yaml": "model:\n  algorithm:\n    class_path: FedEM\n    init_args:\n      em_steps: null\n",
    "null_momentum.yaml": "model:\n  solver:\n    momentum: null\n",
    "null_seed.yaml": "data:\n  seed: null\n",
    "nan.json": '{"model": {"solver": {"lr": NaN}}}',
    "patients.csv": "a,b,label\n1,2,0\n",
    "trace.csv": "1,0\n0,1\n",
    "nets.py": "import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n",
    "junk.ckpt": b"\x80\xa9" * 50,
    "empty.ckpt": "",
    "big.yaml": "# " + "x" * 2**21,
}

CHECKPOINTS = {
    "foreign.ckpt": {"state_dict": {}, "epoch": 1},
    "tensor.ckpt": torch.zeros(3),
    "list.ckpt": [1, 2],
    "none.ckpt": None,
    "half.ckpt": {"lit_fed": {}},
    "more.ckpt": {"lit_fed": {"arguments": {}, "identity": {}}, "pytorch-lightning_version": "2.6.0", "state_dict": {}},
}


def rows():
    """Status, arguments and part of the message of every line of the table."""
    text = (HERE / "wrong_command_lines.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(part.strip() for part in line.split(" | ")) for line in lines]


ROWS = rows()


def arguments_of(line, files):
    """The arguments of a line of the table; ×N behind a letter repeats it."""
    given = [part.replace("FILES", str(files)) for part in shlex.split(line)]
    given = [part.partition("×")[0] * int(part.partition("×")[2]) if "×" in part else part for part in given]
    given = [part.encode().decode("unicode_escape") if "\\" in part else part for part in given]
    return [*FIT, *given[1:]] if given[:1] == ["fit…"] else given


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder of configurations and checkpoints that are wrong."""
    files = tmp_path_factory.mktemp("wrong")
    for name, content in CONFIGS.items():
        (files / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, content in CHECKPOINTS.items():
        torch.save(content, files / name)
    return files


@pytest.fixture
def _little_memory():
    """A command line that is believed too much fails in this process, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (16 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize(("wanted", "line", "part"), ROWS, ids=[row[1].removeprefix("fit… ")[:70] for row in ROWS])
@pytest.mark.usefixtures("_little_memory")
def test_line(files, tmp_path, monkeypatch, wanted, line, part):
    monkeypatch.chdir(tmp_path)
    done = run(arguments_of(line, files), timeout=60)
    said = done.stderr
    assert "Traceback" not in said, said
    assert done.returncode == int(wanted), said
    if wanted == "0":
        assert part in said + done.stdout, said
        return
    assert said.startswith("lit_fed: "), said
    assert part, line
    assert part in said, said
    assert len(said.splitlines()) <= 24, said
    assert not list(tmp_path.rglob("*"))
