"""Two processes give the numbers of one, for every algorithm."""

import pytest
import torch
from exemptions import exempt
from fit_all import BATCH_NORM, IN_FILES, NAMES, WRAPPED, in_two, whole
from running import SMALL, folder, history, numbers, run

from lit_fed import algorithms

TWO = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"]

pytestmark = pytest.mark.every_combination


@pytest.fixture
def outs(shared_folder):
    """The run of one rank, and the folder of two ranks and their state."""

    def both(name, kind="memory"):
        return whole(name, shared_folder, kind), *in_two(name, shared_folder, kind)

    return both


INEXACT = [name for name in NAMES if name != "StackedAverage" and "ranks" in exempt(getattr(algorithms, name))]
"""Algorithms whose sums are not exact, for the reason that stands in `exemptions.py`."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INEXACT])
def test_two_ranks_equal_one_bit_for_bit(outs, name):
    one, two, state = outs(name)
    compare_runs(one, two, state)
    assert (one.folder / "clients.csv").read_text() == (two / "clients.csv").read_text()


@pytest.mark.parametrize("name", INEXACT)
def test_two_ranks_equal_one_up_to_rounding(outs, name):
    whole_run, folder_of_two, state = outs(name)
    one, two = numbers(whole_run.folder), numbers(folder_of_two)
    assert one.keys() == two.keys()
    assert all(
        two[key] == (pytest.approx(one[key], rel=1e-5) if isinstance(one[key], float) else one[key]) for key in one
    )
    for key, leaf in whole_run.state.items():
        assert torch.allclose(leaf.double(), state[key].double(), rtol=0, atol=1e-6), key


@pytest.mark.parametrize("kind", [*(f"{one} BatchNorm" for one in BATCH_NORM), *WRAPPED])
def test_two_ranks_equal_one_of_a_kind(outs, kind):
    """With batch normalisation, and inside wrappers; training losses are added up in float64, in the order of ranks."""
    compare_runs(*outs("FedEM", kind))


def compare_runs(one, two, state):
    found = numbers(one.folder), numbers(two)
    losses = [each.pop("train/seen/loss", 0.0) for each in found]  # added up in the order of ranks
    assert losses[0] == pytest.approx(losses[1], rel=1e-14)
    assert found[0] == found[1]
    assert history(one.folder) == history(two)
    compare_states(one.state, state)


def compare_states(one, two):
    assert one.keys() == two.keys()
    for key, leaf in one.items():
        assert torch.equal(leaf, two[key]), key


@pytest.mark.parametrize("name", IN_FILES)
def test_two_ranks_equal_one_with_states_in_files(outs, name):
    (alone, two, _), in_memory = outs(name, "files"), outs(name)[0].folder
    one = alone.folder
    assert numbers(one) == numbers(two) == numbers(in_memory)
    assert history(one) == history(two) == history(in_memory)
    assert (one / "clients.csv").read_text() == (two / "clients.csv").read_text()
    files = [sorted((path / "clients").iterdir()) for path in (one, two)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    for alone, shared in zip(*files, strict=True):
        own, others = (torch.load(path, weights_only=True) for path in (alone, shared))
        assert own.pop("lit_fed") == others.pop("lit_fed")  # whose state it is
        compare_states(own, others)


def test_a_rank_without_clients_on_the_command_line(tmp_path):
    one_client = ["--data.client_fraction", "1", "--data.clients_per_round", "1"]
    arguments = ["fit", *SMALL, *one_client, "--model.algorithm", "FedEM"]
    for ranks, extra in (("one", []), ("two", TWO)):
        finished = run(
            [*arguments, "--trainer.default_root_dir", str(tmp_path / ranks), *extra], ranks=2 if extra else 1
        )
        assert finished.returncode == 0, finished.stderr
        assert "sync_dist" not in finished.stderr, "numbers that all ranks have are no mistake"
    one, two = (folder(tmp_path / ranks, "FedEM") for ranks in ("one", "two"))
    for place, value in numbers(one).items():
        assert numbers(two)[place] == pytest.approx(value, abs=1e-5), place
