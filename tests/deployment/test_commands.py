"""The commands of real federations: certificates, a node, a federation on one machine."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from background import until
from in_process import CLIENTS, equal_runs, node_folders
from running import run, start

import lit_fed.cli
from lit_fed.command_line import client
from lit_fed.command_line.deployed import DEPLOYED, run_deployed
from lit_fed.command_line.start_page import COMMANDS, OF_DEPLOYMENT
from lit_fed.deployment import node
from lit_fed.deployment.certificates import make_certificates
from lit_fed.deployment.https_node import AwayError
from lit_fed.errors import ConfigError
from lit_fed.system.folder_lock import FolderLock

ROOT = Path(__file__).parents[2]

CONFIG = ["--config", str(ROOT / "configs/algorithm/fedavg.yaml")]

FIT = [
    "--model.algorithm", "FedEM", "--data.dataset", "ClientFolder",
    "--trainer.max_epochs", "2",
    "--trainer.accelerator", "cpu", "--model.client_trainer", "sequential", "--trainer.enable_progress_bar", "false",
]  # fmt: skip


@pytest.fixture
def clients(folders):
    """A ClientFolder of five clients, and one that is not seen."""
    return folders["all"]


def command(name, *arguments):
    """Run a command here."""
    run_deployed(name, list(arguments), lambda: lit_fed.cli)


def refused(arguments):
    """Why a command ends."""
    with pytest.raises(ConfigError) as found:
        command(*arguments)
    return str(found.value)


@pytest.mark.parametrize("name", OF_DEPLOYMENT)
def test_help_of_commands(name, capsys):
    with pytest.raises(SystemExit):
        command(name, "--help")
    page = capsys.readouterr().out
    assert page.startswith(f"usage: python -m lit_fed {name}{' local' if name == 'federation' else ''} [options]")
    assert COMMANDS[name][:40] in page
    assert set(DEPLOYED) == set(OF_DEPLOYMENT)


def test_certificates_say_who_needs_what(tmp_path, capsys):
    arguments = ["--server", "server.example, 192.0.2.1", "--clients", "anna,ben", "--output", str(tmp_path / "tls")]
    command("certificates", *arguments)
    out = capsys.readouterr().out
    assert f"--data.dataset.tls {tmp_path / 'tls'}\n" in out
    assert f"--tls {tmp_path / 'tls' / 'anna'}\n" in out
    assert f"{tmp_path / 'tls' / 'ca.key'} must never leave this machine" in out
    command("certificates", "--clients", "carl", "--output", str(tmp_path / "tls"))
    assert (tmp_path / "tls" / "carl" / "node.key").is_file()
    assert refused(["certificates", *arguments]).endswith("leave anna out, or move it away for a new one")


def test_wrong_arguments_are_told_without_pytorch(tmp_path):
    script = """
import sys, lit_fed.command_line.client
from lit_fed.__main__ import main
print(sorted({'torch', 'lightning', 'numpy', 'jsonargparse', 'aiohttp', 'cryptography'} & set(sys.modules)), flush=True)
main()
"""
    given = [
        "client",
        "--sever",
        "x:1",
        "--server",
        "y:1",
        "--config",
        "x",
        "--data.root",
        ".",
        "--states",
        str(tmp_path),
    ]
    ended = subprocess.run([sys.executable, "-c", script, *given], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "[]\n")
    assert ended.stderr == "lit_fed: unrecognized arguments: --sever x:1\ndid you mean --server?\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing: --server, --config, --data.root, --states"),
        (["--server", "x"], "missing: --config, --data.root, --states"),
        (["--server", "x:1", "--data.root", "{clients}", "--trust", "mine"], "its own --config names, and no others"),
        (["serve"], "client serve: no such command; give one of measure, predict, verdict, export, or options"),
        (["measure"], "missing: --config, --data.root"),
        (["predict", "--data.root", "{clients}"], "missing: --config, --states, --output"),
        (["export", "--data.root", "{clients}", "--output", "x.pt2"], "missing: --config, --states, --client"),
        (["export", "--data.root", "{clients}", "--output", "{clients}/x.pt", "--client", "a"], "end the file's name"),
        (["measure", "--data.root", "{clients}/none"], "--data.root .*none: no such folder"),
        (["measure", "--data.root", "{clients}"], "states holds nothing of a finished training"),
        (["--server", "x", "--data.root", "{clients}"], "--server 'x': no address; give HOST:PORT"),
        (["--server", "x:1", "--data.root", "{clients}/none"], "--data.root .*none: no such folder; give"),
        (["--server", "x:1", "--data.root", "{clients}"], "--server x:1 is another machine; give --tls DIR"),
        (["--server", "x:1", "--data.root", "{clients}", "--tls", "{clients}"], "no node.pem, node.key, ca.pem in it"),
        (["--server", "localhost:1", "--data.root", "{clients}"], "neither --tls nor --name is given"),
        (["--server", "localhost:1", "--data.root", "{clients}", "--patience", "0"], "--patience is 0; give a number"),
        (["--server", "localhost:1", "--data.root", "{clients}", "--patience", "x"], "--patience: invalid float value"),
        (["--server", "localhost:1", "--data.root", "{empty}", "--name", "anna"], "no folder `seen` or `unseen`"),
        (
            ["--server", "localhost:9", "--data.root", "{clients}", "--name", "anna", "--patience", "0.01"],
            "cannot be reached for 0.01 s",
        ),
    ],
)
def test_nodes_that_cannot_start_say_why(clients, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "empty").mkdir()
    filled = [one.format(clients=clients, empty=tmp_path / "empty") for one in arguments]
    states = [] if "missing" in message else ["--states", str(tmp_path / "states"), *CONFIG]
    with pytest.raises(ConfigError, match=message):
        command("client", *filled, *states)


def test_a_folder_of_states_is_for_one_node(clients, tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with FolderLock(tmp_path / "states", "", ""):
        found = refused(["client", "--server", "localhost:9", "--data.root", str(clients), "--states",
                         str(tmp_path / "states"), "--name", "anna", *CONFIG])  # fmt: skip
    assert "is at work in it" in found
    assert found.endswith("give each node its own folder")


@pytest.mark.parametrize("over", [True, False])
def test_a_node_without_a_server_ends_in_order_only_after_the_training(clients, tmp_path, monkeypatch, capsys, over):
    """Also where the server was killed before it could say that the training is over."""

    def away(handle, link):
        raise AwayError("--server localhost:9: cannot be reached for 1 s; start it")

    monkeypatch.setattr(client, "run_node", away)
    monkeypatch.setattr(node, "Node", lambda *_, **__: SimpleNamespace(over=over, handle=bytes))
    states = str(tmp_path / "states")
    given = ["--server", "localhost:9", "--data.root", str(clients), "--states", states, "--name", "a", *CONFIG]
    if not over:
        with pytest.raises(ConfigError, match=r"^\d{4}-\S+Z --server localhost:9: cannot be reached for 1 s; start it"):
            command("client", *given)
        return
    command("client", *given)
    assert timed(capsys.readouterr().err.splitlines()[-1]).startswith("the training is over; `lit-fed client measure")
    with pytest.raises(ConfigError, match="cannot be reached"):
        command("client", *given, "--stay")


def timed(line):
    """The text of a line of a log, which begins with the time."""
    found = re.fullmatch(r"lit_fed: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (.*)\n?", line)
    return found and found[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_ends_at_once(clients, tmp_path, number):
    script = f"""
import sys, time
from lit_fed.command_line import client
sys.modules['lit_fed.deployment.node'] = type(sys)('node')
sys.modules['lit_fed.deployment.node'].Node = lambda *_, **__: type('Node', (), {{'handle': bytes}})
place, states = {str(clients)!r}, {str(tmp_path)!r}
client.settings_in = lambda *_: ()
client.run_client(
    ['--server', 'localhost:9', '--data.root', place, '--states', states, '--name', 'a', '--config', 'x'], None
)
"""
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as node:
        lines = [timed(node.stderr.readline()) for _ in range(2)]
        assert lines[0] == f"6 clients in {clients} are ready; asking localhost:9"
        assert lines[1] == "localhost:9 cannot be reached (Connection refused); trying again for 3600 s"
        begun = time.monotonic()
        node.send_signal(number)
        assert node.wait(30) == 128 + number
        assert time.monotonic() - begun < 10
        assert timed(node.stderr.read()) == ("interrupted" if number == signal.SIGINT else "terminated")


@pytest.mark.parametrize(
    ("dataset", "more", "left", "out"),
    [
        (["Federation"], [], (None, None, 0.0), "--data.partition, --data.num_clients, --data.unseen_fraction"),
        (["Federation"], ["--data.num_clients", "7"], (None, 7, 0.0), "--data.partition, --data.unseen_fraction"),
        (["ClientFolder", "--data.dataset.root", "x"], [], (None, None, 0.2), "--data.partition, --data.num_clients"),
        (["Digits"], [], ("LabelPermutations", 20, 0.2), None),
    ],
)
def test_a_configuration_gives_way_to_clients_of_a_data_set(dataset, more, left, out, capsys):
    """What it says of dividing samples has no meaning there, and is left out by name; the command line's own stays."""
    quickstart = str(ROOT / "configs/experiment/quickstart.yaml")
    data = lit_fed.cli.arguments_of(["fit", "--config", quickstart, "--data.dataset", *dataset, *more]).fit.data
    partition = None if data.partition is None else data.partition.class_path.rpartition(".")[2]
    assert (partition, data.num_clients, data.unseen_fraction) == left
    said = capsys.readouterr().err
    name = dataset[0]
    assert said == (f"lit_fed: {out} of the configuration left out: {name} comes with its clients\n" if out else "")


# ---------------------------------------------------------------------- on one machine
def test_a_local_federation_is_the_fit(clients, tmp_path):
    """Certificates, three node processes, a fit: the same numbers as without them, and nothing is left."""
    fit = [*FIT, "--data.dataset.root", str(clients), "--trainer.default_root_dir", str(tmp_path / "runs")]
    lit_fed.cli.main(["fit", *fit, "--name", "simulated"])
    other = run(["federation", "local", "--nodes", "3", *fit, "--name", "real"], TMPDIR=str(tmp_path))
    assert other.returncode == 0, other.stderr
    for number in (1, 2, 3):
        assert f"node-{number} is here" in map(timed, other.stderr.splitlines())
    folders = [tmp_path / "runs" / name / "version_0" for name in ("simulated", "real")]
    equal_runs(*folders)
    assert not list(tmp_path.glob("lit-fed-*"))
    assert "the states of these nodes are deleted with this command" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes is 0; give a whole number >= 1"),
        (["--nodes", "6"], "--nodes is 6, and .* has 5 clients; give at most so many"),
        (["--data.dataset.num_classes", "3"], "--data.dataset.num_classes is 3; leave it out"),
        (["--data.dataset.root", "nowhere"], "no folder `seen` with a .npz file for each client"),
        (["--data.dataset", "Digits"], "--data.dataset is Digits; give ClientFolder"),
        (["--ckpt_path", __file__], "--ckpt_path: the states of the nodes of a `federation local` are deleted"),
    ],
)
def test_what_a_local_federation_cannot_do_is_refused(clients, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lit_fed.cli.load_checkpoint", lambda *_, **__: None)
    fit = FIT if "Digits" in arguments else [*FIT, "--data.dataset.root", str(clients)]
    with pytest.raises(ConfigError, match=message):
        command("federation", "local", *fit, *arguments)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_all_processes(clients, tmp_path):
    fit = [*FIT, "--data.dataset.root", str(clients), "--trainer.default_root_dir", str(tmp_path / "runs")]
    more = ["--name", "x", "--trainer.max_epochs", "100000"]
    started = start(["federation", "local", "--nodes", "2", *fit, *more], TMPDIR=str(tmp_path))
    last = tmp_path / "runs" / "x" / "version_0" / "checkpoints" / "last.ckpt"
    until(last.is_file, 60)
    group = processes_of(started.pid)
    assert len(group) == 3
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(60)
    assert started.returncode == 130, (out, err)
    assert "lit_fed: interrupted; the last finished round is in last.ckpt" in err
    until(lambda: not processes_of(started.pid))
    assert not list(tmp_path.glob("lit-fed-*"))


def processes_of(session):
    """The processes of a session that run."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(place.parent.name))
    return found


# ---------------------------------------------------------------------- a server and three nodes
def start_node(folder, name, address):
    """A node's process, with what has been made for it."""
    return start([
        "client", "--server", address, "--data.root", str(folder / name), "--states", str(folder / f"states-{name}"),
        "--tls", str(folder / "tls" / name), "--config", str(folder / "run.yaml"),
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
    fit = [
        "fit", *FIT, "--model.solver.momentum", "0.9", "--model.solver.persist_optimizer", "true",
        "--data.batch_size", "4", "--trainer.max_epochs", "20", "--trainer.default_root_dir", str(folder / "runs"),
    ]  # fmt: skip
    lit_fed.cli.main([*fit, "--name", "simulated", "--data.dataset.root", str(folder / "all")])
    shutil.copy(folder / "runs/simulated/version_0/config.yaml", folder / "run.yaml")
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
    wanted = pd.read_csv(run_folder / "clients.csv", dtype=str).set_index("client")
    for name, clients in CLIENTS.items():
        own = ["--data.root", str(folder / name), "--states", str(folder / f"states-{name}")]
        own += ["--config", str(folder / "run.yaml")]
        for what in ("measure", "predict"):
            command("client", what, *own, "--output", str(folder / f"{name}-{what}.csv"))
        rows = pd.read_csv(folder / f"{name}-measure.csv", dtype=str).set_index("client")
        said = pd.read_csv(folder / f"{name}-predict.csv")
        assert set(rows.index) == set(clients)
        assert rows[["accuracy", "loss"]].equals(wanted.loc[rows.index, ["accuracy", "loss"]])
        assert rows[["pi_0", "pi_1", "pi_2"]].astype(float).sum(axis=1).to_list() == pytest.approx([1] * len(rows))
        hits = (said["label"] == said["prediction"]).groupby(said["client"]).mean()
        assert hits.to_dict() == rows["accuracy"].astype(float).to_dict()
