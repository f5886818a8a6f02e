import resource

import pytest
import torch

from lit_fed.system import machine


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
