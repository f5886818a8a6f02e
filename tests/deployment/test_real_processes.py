"""One federation of real processes: a server, three nodes with certificates, and one of them killed in mid-round."""

import csv
import re
import signal
import socket
import time

import pytest
from background import until
from in_process import CLIENTS, equal_runs, node_folders
from running import start

from lit_fed.cli import main
from lit_fed.command_line.client import run_client
from lit_fed.deployment.certificates import make_certificates

FIT = [
    "fit", "--model.algorithm", "FedEM", "--model.solver.momentum", "0.9", "--model.solver.persist_optimizer", "true",
    "--model.client_trainer", "sequential", "--data.batch_size", "4", "--trainer.max_epochs", "20",
    "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false",
]  # fmt: skip


def start_node(folder, name, address):
    """A node's process, with what has been made for it."""
    return start([
        "client", "--server", address, "--data.root", str(folder / name), "--states", str(folder / f"states-{name}"),
        "--tls", str(folder / "tls" / name),
    ])  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Clients of all nodes, and of each one, and certificates."""
    node_folders(tmp_path)
    make_certificates(["127.0.0.1"], list(CLIENTS), tmp_path / "tls")
    return tmp_path


def stands_still(read, seconds=0.4):
    """A question whether what is read has been the same for some time."""
    seen, since = None, time.monotonic()

    def answer():
        nonlocal seen, since
        now, before = read(), seen
        seen = now
        since = since if now == before else time.monotonic()
        return time.monotonic() - since > seconds

    return answer


def test_a_killed_node_changes_nothing(folder):
    """Metrics, per-client accuracies and shared state equal those of the simulation, bit for bit."""
    fit = [*FIT, "--trainer.default_root_dir", str(folder / "runs")]
    main([*fit, "--name", "simulated", "--data.dataset", "ClientFolder", "--data.dataset.root", str(folder / "all")])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    server = start([
        *fit, "--name", "real", "--data.dataset", "Federation", "--data.dataset.listen", address, "--data.dataset.tls",
        str(folder / "tls"), "--data.dataset.num_nodes", "3", "--data.dataset.nodes", '["anna", "ben", "carl"]',
    ])  # fmt: skip
    nodes = {name: start_node(folder, name, address) for name in CLIENTS}
    try:
        until(lambda: list(folder.glob("states-carl/*/*.pt")) or server.process.exitcode is not None, 120)
        nodes["carl"].send_signal(signal.SIGSTOP)  # as one that takes long
        until(stands_still(lambda: len(list(folder.glob("states-*/*/*.pt")))), 60)
        nodes["carl"].kill()
        nodes["carl"].communicate(10)
        until(lambda: "carl disconnected before it answered" in server._files[1].read_text(), 60)
        nodes["carl"] = start_node(folder, "carl", address)
        _, err = server.communicate(120)
        assert server.returncode == 0, err
        ends = {name: node.communicate(20)[1] for name, node in nodes.items()}
        assert [node.returncode for node in nodes.values()] == [0, 0, 0], ends
    finally:
        for one in (server, *nodes.values()):
            one.kill()
            one.communicate(10)
    assert err.count("carl is here") == 2
    assert f"waiting at {address} for 3 of 3 nodes (anna, ben, carl)" in err.split("anna is here")[0]
    assert all(
        re.fullmatch(r"lit_fed: [-\d]+T[:\d]+Z .*", line) for said in ends.values() for line in said.splitlines()
    )
    assert all("Z the training is over; `lit-fed client measure" in said.splitlines()[-1] for said in ends.values())
    folders = [folder / "runs" / name / "version_0" for name in ("simulated", "real")]
    equal_runs(*folders)
    assert len((folders[1] / "metrics.csv").read_text().splitlines()) > 20
    nodes_give_the_numbers(folder, folders[1])


def nodes_give_the_numbers(folder, run_folder):
    """After the training each node measures its clients by itself, as the run's table has them."""
    with (run_folder / "clients.csv").open() as file:
        wanted = {row["client"]: row for row in csv.DictReader(file)}
    for name, clients in CLIENTS.items():
        own = ["--data.root", str(folder / name), "--states", str(folder / f"states-{name}")]
        for command in ("measure", "predict"):
            run_client([command, *own, "--output", str(folder / f"{name}-{command}.csv")])
        with (folder / f"{name}-measure.csv").open() as file:
            rows = {row["client"]: row for row in csv.DictReader(file)}
        with (folder / f"{name}-predict.csv").open() as file:
            said = list(csv.DictReader(file))
        assert rows.keys() == {*clients}
        for client, row in rows.items():
            assert float(row["pi_0"]) + float(row["pi_1"]) + float(row["pi_2"]) == pytest.approx(1)
            assert [row[key] for key in ("accuracy", "loss")] == [wanted[client][key] for key in ("accuracy", "loss")]
            hits = [one["label"] == one["prediction"] for one in said if one["client"] == client]
            assert sum(hits) / len(hits) == float(row["accuracy"])
