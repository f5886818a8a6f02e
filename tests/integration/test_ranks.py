"""Two processes give the numbers of one, for every algorithm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fit_all import BATCH_NORM, IN_FILES, NAMES
from running import SMALL, folder, history, numbers, run

from lit_fed import algorithms

TWO = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"]
SCRIPT = Path(__file__).parent / "fit_all.py"


@pytest.fixture(scope="module")
def outs(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for ranks, how in (("1", []), ("2", launcher)):
        (out / ranks).mkdir()
        command = [sys.executable, *how, str(SCRIPT), str(out / ranks), ranks]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env, check=False)
        assert finished.returncode == 0, finished.stderr[-3000:]
    return out


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_equal_one_bit_for_bit(outs, name):
    if "ranks" in getattr(getattr(algorithms, name, None), "conformance_exempt", {}):
        pytest.skip(getattr(algorithms, name).conformance_exempt["ranks"])
    one, two = (folder(outs / ranks, name) for ranks in ("1", "2"))
    assert numbers(one) == numbers(two)
    assert history(one) == history(two)
    assert (one / "clients.csv").read_text() == (two / "clients.csv").read_text()
    compare_states(outs, name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "StackedAverage"])
def test_two_ranks_equal_one_up_to_rounding(outs, name):
    """Also where sums cannot be exact."""
    one, two = (numbers(folder(outs / ranks, name)) for ranks in ("1", "2"))
    assert one.keys() == two.keys()
    assert all(
        two[key] == (pytest.approx(one[key], rel=1e-5) if isinstance(one[key], float) else one[key]) for key in one
    )
    states = [torch.load(outs / ranks / f"{name}.pt", weights_only=True) for ranks in ("1", "2")]
    for key, leaf in states[0].items():
        assert torch.allclose(leaf.double(), states[1][key].double(), rtol=0, atol=1e-6), key


@pytest.mark.parametrize("batch_norm", BATCH_NORM)
def test_two_ranks_equal_one_with_batch_norm(outs, batch_norm):
    one, two = (folder(outs / ranks / batch_norm, "FedEM") for ranks in ("1", "2"))
    assert numbers(one) == numbers(two)
    assert history(one) == history(two)
    compare_states(outs, batch_norm)


def compare_states(outs, name):
    states = [torch.load(outs / ranks / f"{name}.pt", weights_only=True) for ranks in ("1", "2")]
    assert states[0].keys() == states[1].keys()
    for key, leaf in states[0].items():
        assert torch.equal(leaf, states[1][key]), key


@pytest.mark.parametrize("name", IN_FILES)
def test_two_ranks_equal_one_with_states_in_files(outs, name):
    one, two, in_memory = (folder(outs / ranks, name) for ranks in ("1/files", "2/files", "1"))
    assert numbers(one) == numbers(two) == numbers(in_memory)
    assert history(one) == history(two) == history(in_memory)
    assert (one / "clients.csv").read_text() == (two / "clients.csv").read_text()
    files = [sorted((path / "clients").iterdir()) for path in (one, two)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    for alone, shared in zip(*files, strict=True):
        contents = [torch.load(path, weights_only=True) for path in (alone, shared)]
        assert all(torch.equal(leaf, contents[1][key]) for key, leaf in contents[0].items()), alone.name


def test_a_rank_without_clients_on_the_command_line(tmp_path):
    one_client = ["--data.client_fraction", "1", "--data.clients_per_round", "1"]
    arguments = ["fit", *SMALL, *one_client, "--model.algorithm", "FedEM"]
    for ranks, extra in (("one", []), ("two", TWO)):
        finished = run([*arguments, "--trainer.default_root_dir", str(tmp_path / ranks), *extra])
        assert finished.returncode == 0, finished.stderr
    one, two = (folder(tmp_path / ranks, "FedEM") for ranks in ("one", "two"))
    for place, value in numbers(one).items():
        assert numbers(two)[place] == pytest.approx(value, abs=1e-5), place
