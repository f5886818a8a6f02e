"""The commands of real federations: certificates, a node, a federation on one machine."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from background import until
from code_shape import PACKAGE
from running import history, numbers, run, start

import lit_fed.cli
from lit_fed.command_line import client
from lit_fed.command_line.deployed import run_deployed
from lit_fed.deployment import node
from lit_fed.deployment.https_link import AwayError
from lit_fed.errors import ConfigError
from lit_fed.system.folder_lock import FolderLock

FIT = [
    "--model.algorithm", "FedEM", "--data.dataset", "ClientFolder", "--trainer.max_epochs", "2",
    "--trainer.accelerator", "cpu", "--model.client_trainer", "sequential", "--trainer.enable_progress_bar", "false",
]  # fmt: skip


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """A ClientFolder of four clients, and one that is not seen."""
    root, generator = tmp_path_factory.mktemp("clients"), np.random.default_rng(0)
    for kind, names in {"seen": "abcd", "unseen": "z"}.items():
        (root / kind).mkdir()
        for number, name in enumerate(names):
            size = 12 + 5 * number
            y = generator.integers(0, 3, 2 * size)
            x = (generator.normal(size=(2 * size, 4)) + y[:, None]).astype(np.float32)
            np.savez(root / kind / f"{name}.npz", x_train=x[:size], y_train=y[:size], x_test=x[size:], y_test=y[size:])
    return root


def command(name, *arguments):
    """Run a command here."""
    run_deployed(name, list(arguments), lambda: lit_fed.cli)


def said(arguments):
    """The status and the message of a command that is refused before anything is loaded."""
    script = "import sys; from lit_fed.__main__ import main; main()"
    out = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    return out.returncode, out.stderr


def refused(arguments):
    """Why a command ends."""
    with pytest.raises(ConfigError) as found:
        command(*arguments)
    return str(found.value)


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
    status, message = said(
        ["client", "--sever", "x:1", "--server", "y:1", "--data.root", ".", "--states", str(tmp_path)]
    )
    assert (status, message) == (2, "lit_fed: unrecognized arguments: --sever x:1\ndid you mean --server?\n")
    script = "import sys; import lit_fed.command_line.client; "
    script += (
        "print(sorted({'torch', 'lightning', 'numpy', 'jsonargparse', 'aiohttp', 'cryptography'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_a_node_loads_no_lightning():
    """What stands at the top of the files that a node imports; to load them all would take seconds."""
    found, open_names = {}, ["lit_fed.deployment.node", "lit_fed.command_line.client"]
    while open_names:
        name = open_names.pop()
        place = PACKAGE.parent.joinpath(*name.split("."))
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if name in found or not path.is_file():
            continue
        found[name] = text = path.read_text()
        if "find_classes(__name__" in text:  # a folder whose files are all imported
            open_names += [f"{name}.{one.stem}" for one in place.glob("[!_]*")]
        for line in re.findall(r"^(?:from|import) [^(\n]+$|^from [^(\n]+\([^)]+\)", text, re.MULTILINE):
            module, *names = re.findall(r"[\w.]+", line)[1:]
            assert module.partition(".")[0] not in {"lightning", "jsonargparse", "aiohttp", "wandb"}, name
            parents = [module.rsplit(".", cut)[0] for cut in range(module.count(".") + 1)]
            open_names += [*parents, *(f"{module}.{one}" for one in names)]
    assert {"lit_fed.clients.session", "lit_fed.data.data_sets.base", "lit_fed.algorithms.fedem"} < found.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing: --server, --data.root, --states"),
        (["--server", "x"], "missing: --data.root, --states"),
        (["serve"], "client serve: no such command; give one of measure, predict, export, or options"),
        (["measure"], "missing: --data.root"),
        (["predict", "--data.root", "{clients}"], "missing: --states, --output"),
        (["export", "--data.root", "{clients}", "--output", "x.pt2"], "missing: --states, --client"),
        (["export", "--data.root", "{clients}", "--output", "{clients}/x.pt", "--client", "a"], "end the file's name"),
        (["measure", "--data.root", "{clients}/none"], "--data.root .*none: no such folder"),
        (["measure", "--data.root", "{clients}"], "states holds nothing of a finished training"),
        (["--server", "x", "--data.root", "{clients}"], "--server 'x': no address; give HOST:PORT"),
        (["--server", "x:1", "--data.root", "{clients}/none"], "--data.root .*none: no such folder; give"),
        (["--server", "x:1", "--data.root", "{clients}"], "--server x:1 is another machine; give --tls DIR"),
        (["--server", "x:1", "--data.root", "{clients}", "--tls", "{clients}"], "no node.pem, node.key, ca.pem in it"),
        (["--server", "localhost:1", "--data.root", "{clients}"], "neither --tls nor --name is given"),
        (["--server", "localhost:1", "--data.root", "{clients}", "--patience", "0"], "--patience is 0; give a number"),
        (
            ["--server", "localhost:1", "--data.root", "{clients}", "--patience", "x"],
            "--patience: invalid float value: 'x'",
        ),
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
    states = [] if "missing" in message else ["--states", str(tmp_path / "states")]
    with pytest.raises(ConfigError, match=message):
        command("client", *filled, *states)


def test_a_folder_of_states_is_for_one_node(clients, tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with FolderLock(tmp_path / "states", "", ""):
        found = refused(["client", "--server", "localhost:9", "--data.root", str(clients), "--states",
                         str(tmp_path / "states"), "--name", "anna"])  # fmt: skip
    assert "is at work in it" in found
    assert found.endswith("give each node a folder of its own")


@pytest.mark.parametrize("over", [True, False])
def test_a_node_without_a_server_ends_in_order_only_after_the_training(clients, tmp_path, monkeypatch, capsys, over):
    """Also where the server was killed before it could say that the training is over."""

    def away(handle, link):
        raise AwayError("--server localhost:9: cannot be reached for 1 s; start it")

    monkeypatch.setattr(client, "run_node", away)
    monkeypatch.setattr(node, "Node", lambda *_: SimpleNamespace(over=over, handle=bytes))
    given = [
        "--server",
        "localhost:9",
        "--data.root",
        str(clients),
        "--states",
        str(tmp_path / "states"),
        "--name",
        "a",
    ]
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
sys.modules['lit_fed.deployment.node'].Node = lambda *_: type('Node', (), {{'handle': bytes}})
place, states = {str(clients)!r}, {str(tmp_path)!r}
client.run_client(['--server', 'localhost:9', '--data.root', place, '--states', states, '--name', 'a'])
"""
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as node:
        lines = [timed(node.stderr.readline()) for _ in range(2)]
        assert lines[0] == f"5 clients in {clients} are ready; asking localhost:9"
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
        (["Digits"], [], ("Dirichlet", 20, 0.2), None),
    ],
)
def test_a_configuration_gives_way_to_clients_of_a_data_set(dataset, more, left, out, capsys):
    """What it says of dividing samples has no meaning there, and is left out by name; the command line's own stays."""
    quickstart = str(PACKAGE.parent / "configs/experiment/quickstart.yaml")
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
    one = run(["fit", *fit, "--name", "simulated"])
    other = run(["federation", "local", "--nodes", "3", *fit, "--name", "real"], TMPDIR=str(tmp_path))
    assert (one.returncode, other.returncode) == (0, 0), other.stderr
    for number in (1, 2, 3):
        assert f"node-{number} is here" in map(timed, other.stderr.splitlines())
    folders = [tmp_path / "runs" / name / "version_0" for name in ("simulated", "real")]
    assert history(folders[0]) == history(folders[1])
    left_out = {"client_trainer"}
    assert {key: value for key, value in numbers(folders[0]).items() if key not in left_out} == {
        key: value for key, value in numbers(folders[1]).items() if key not in left_out
    }
    assert not list(tmp_path.glob("lit-fed-*"))
    assert "the states of these nodes are deleted with this command" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes is 0; give a whole number >= 1"),
        (["--nodes", "5"], "--nodes is 5, and .* has 4 clients; give at most so many"),
        (["--data.dataset.num_classes", "3"], "--data.dataset.num_classes is 3; leave it out"),
        (["--data.dataset.root", "nowhere"], "no folder `seen` with a .npz file for each client"),
        (["--data.dataset", "Digits"], "--data.dataset is Digits; give ClientFolder"),
        (["--ckpt_path", __file__], "--ckpt_path: what the nodes of a `federation local` keep is gone"),
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
    fit = [
        *FIT,
        "--data.dataset.root",
        str(clients),
        "--trainer.default_root_dir",
        str(tmp_path / "runs"),
        "--name",
        "x",
    ]
    started = start(["federation", "local", *fit, "--trainer.max_epochs", "100000"], TMPDIR=str(tmp_path))
    last = tmp_path / "runs" / "x" / "version_0" / "checkpoints" / "last.ckpt"
    until(last.is_file, 60)
    group = processes_of(started.pid)
    assert len(group) == 4
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
