"""The programs that lit_fed is measured with beside other frameworks learn the same from the same file."""

import gc
import math
import runpy
import sys

import bench_peers
import pytest
import torch


@pytest.mark.parametrize("workload", bench_peers.WORKLOADS)
def test_lit_fed_learns_what_the_lean_loop_learns(workload, tmp_path, monkeypatch, capsys):
    one = bench_peers.WORKLOADS[workload]._replace(num_clients=6, lr=0.1)
    bench_peers.write_data(one, tmp_path / "data.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # for the process of a command, not for that of all tests
    monkeypatch.syspath_prepend(str(bench_peers.PROGRAMS))
    learned = []
    for peer in ("lean", "lit_fed"):
        given = [str(tmp_path / "data.npz"), workload, "4", str(one.lr), str(one.batch_size)]
        monkeypatch.setattr(sys, "argv", [peer, *given])
        with torch.random.fork_rng(devices=[]):
            runpy.run_path(str(bench_peers.PROGRAMS / f"{peer}_fedavg.py"))
        learned.append(math.log(bench_peers.NUM_CLASSES) - float(capsys.readouterr().out.split()[-1]))
    assert learned[0] > 0.02  # nats below a guess
    assert learned[1] == pytest.approx(learned[0], rel=0.5)
