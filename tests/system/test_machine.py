"""Sizes from outside are compared with memory before anything is allocated; what fits is not changed by that."""

import resource
from functools import partial

import pytest
import torch
from torch import nn

from lit_fed.core.networks.stacked_network import check_network
from lit_fed.core.targets import Multiclass
from lit_fed.core.task import Task
from lit_fed.data import Sine, Synthetic
from lit_fed.errors import ConfigError
from lit_fed.models import CNN2, MLP, CharLSTM, Linear, ResNet18
from lit_fed.models.base import build_network
from lit_fed.system import machine
from lit_fed.system.machine import available_memory, require_memory


@pytest.fixture
def _one_gigabyte(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 10**9)


def memory_files(monkeypatch, tmp_path, meminfo, *limits):
    """Files where Linux would have its own; None for one that is not there."""
    for place, content in enumerate((meminfo, *limits)):
        if content is not None:
            (tmp_path / str(place)).write_text(content)
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "0")
    monkeypatch.setattr(machine, "LIMITS", tuple(tmp_path / str(place + 1) for place in range(len(limits))))


MEMINFO = "MemTotal: 8000 kB\nMemAvailable:    3000 kB\nSwapFree:   1000 kB\nHugePages_Total:       0\n"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((), 4000 * 1024), (("max\n", None), 4000 * 1024), (("1024\n",), 1024), ((None, str(2**62)), 4000 * 1024)],
)
def test_linux_and_its_containers(monkeypatch, tmp_path, limits, expected):
    memory_files(monkeypatch, tmp_path, MEMINFO, *limits)
    assert available_memory() == expected


@pytest.mark.parametrize("meminfo", [None, "", "no such table", "MemTotal: 8 kB\n"])
def test_systems_that_say_nothing_refuse_nothing(monkeypatch, tmp_path, meminfo):
    memory_files(monkeypatch, tmp_path, meminfo)
    monkeypatch.setattr(machine.os, "sysconf", {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert available_memory() == 20480

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(machine.os, "sysconf", unknown)
    assert available_memory() is None
    require_memory(10**30, "anything", "nothing")


def test_the_message_says_what_it_takes_and_what_there_is(_one_gigabyte):  # noqa: PT019
    require_memory(10**9, "a thing", "less")
    with pytest.raises(ConfigError, match=r"^a thing: takes 2\.5 GB, and 1 GB are free here; take less$"):
        require_memory(25 * 10**8, "a thing", "take less")


BUILDS = {
    "Linear": lambda: Linear((1, 8, 8), 10),
    "MLP": lambda: MLP((6,), 3, hidden_sizes=[5, 4]),
    "CNN2": lambda: CNN2((1, 28, 28), 10),
    "CharLSTM": lambda: CharLSTM((5,), 20),
    "ResNet18": lambda: ResNet18((3, 32, 32), 10),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_network_that_fits_is_the_same_bit_for_bit(name):
    torch.manual_seed(5)
    plain, after = BUILDS[name](), torch.get_rng_state()
    torch.manual_seed(5)
    check_network(BUILDS[name])
    built = BUILDS[name]()
    assert torch.equal(torch.get_rng_state(), after)
    assert all(torch.equal(leaf, plain.state_dict()[key]) for key, leaf in built.state_dict().items())


def test_draws_of_another_kind_are_the_same_too():
    def build():
        network = nn.Linear(2, 2)
        network.weight.data += torch.randint(0, 9, (2, 2), device="cpu") + torch.rand(()).item()  # no number on meta
        return network

    torch.manual_seed(5)
    plain, after = build(), torch.get_rng_state()
    torch.manual_seed(5)
    check_network(build)
    built = build()
    assert torch.equal(built.weight, plain.weight)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("size", [10**8, 10**12, 10**18, 10**19])
def test_a_network_that_does_not_fit_is_refused(_one_gigabyte, size):  # noqa: PT019
    def build():
        return build_network(partial(MLP, hidden_sizes=[size]), (6,), torch.float32, 3)

    with pytest.raises(ConfigError, match=r"--model\.network.*; (choose smaller sizes|correct the class)") as caught:
        Task.create(build, Multiclass(3))
    assert len(str(caught.value).splitlines()) == 1


def test_a_defect_of_a_network_is_left_to_its_build():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear()

    check_network(Broken)
    with pytest.raises(ConfigError, match="missing 2 required"):
        build_network(lambda shape, outputs: Broken(), (6,), torch.float32, 3)


def test_more_models_than_fit_are_refused(_one_gigabyte):  # noqa: PT019
    task = Task.create(lambda: Linear((64,), 10), Multiclass(10))
    assert task.init(3, 0).parameters["linear.weight"].shape == (3, 10, 64)
    with pytest.raises(ConfigError, match=r"1000000000 initial models of 2600 bytes each: takes 5\.2e\+03 GB.*lower"):
        task.init(10**9, 0)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"num_clients": 10**9}, "num_clients = 1000000000"),
        ({"num_components": 10**9}, "num_components = 1000000000"),
        ({"dimension": 10**9}, "dimension = 1000000000"),
        ({"test_size": 10**9}, "test_size = 1000000000"),
        ({"samples_per_client": 10**9}, "on_demand"),
        ({"test_size": 10**9, "on_demand": True, "variant": "corrected"}, "test_size = 1000000000"),
    ],
)
def test_generated_data_that_do_not_fit_are_refused(_one_gigabyte, sizes, named):  # noqa: PT019
    with pytest.raises(ConfigError, match=f"Synthetic: .*{named}.*1 GB are free here; choose smaller sizes|on_demand"):
        Synthetic(**sizes).load()


@pytest.mark.parametrize("size", ["num_clients", "samples_per_client", "test_size"])
def test_a_sine_that_does_not_fit_is_refused(_one_gigabyte, size):  # noqa: PT019
    with pytest.raises(ConfigError, match=r"Sine: num_clients = .* samples each: takes .*; choose smaller sizes"):
        Sine(**{size: 10**9}).load()


@pytest.fixture
def as_in_a_fresh_process(monkeypatch):
    for name in machine.BY_HAND:
        monkeypatch.delenv(name, raising=False)
    machine._tell_glibc.cache_clear()
    yield
    machine._tell_glibc.cache_clear()


def test_pages_of_freed_tensors_are_kept(as_in_a_fresh_process):
    if not machine.keep_freed_memory(torch.device("cpu")):
        pytest.skip("another C library than glibc")
    faults = []
    for _ in range(20):  # small blocks that the first tensors bring along may lie behind them and keep them apart
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(10 * 2**20)  # 40 MB, 10,240 pages
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 100


def test_what_users_set_themselves_stays(as_in_a_fresh_process, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not machine.keep_freed_memory(torch.device("cpu"))


def test_other_devices_and_libraries_are_left_alone(as_in_a_fresh_process, monkeypatch):
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: object())
    assert not machine.keep_freed_memory(torch.device("cpu"))
    assert not machine.keep_freed_memory(torch.device("meta"))
