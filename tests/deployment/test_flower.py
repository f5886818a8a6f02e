"""Real federations over Flower: a SuperLink and two SuperNodes with TLS and keys, equal to the simulation."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import in_process
import pytest
from background import programs_with
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from doc_pages import ROOT
from in_process import CLIENTS, equal_runs, node_folders

import lit_fed.cli
from lit_fed.command_line.deployed import run_deployed
from lit_fed.deployment.certificates import make_certificates
from lit_fed.deployment.flower_transport import FLOWER

NODES = {name: CLIENTS[name] for name in ("anna", "ben")}

ROUNDS = ["--trainer.max_epochs", "2"]
FIT = [*in_process.FIT, *ROUNDS]

UCFL = ["--model.algorithm", "UCFL", "--model.algorithm.warmup_rounds", "1"]


class Site:
    """A SuperLink with TLS; nodes with keys are added.

    Args:
        folder: for everything that it writes.
        programs: folder of the programs.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs, self.nodes = folder, programs, {}
        make_certificates(["127.0.0.1"], [], folder / "tls")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "tls" / "ca.pem"}"\n'
        )
        self.superlink = self.start_superlink()

    # ------------------------------------------------------------------ processes
    def environment(self, home: str) -> dict[str, str]:
        own = {
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(self.folder / home),
            "OMP_NUM_THREADS": "1", "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        return os.environ | own

    def start(self, name: str, program: str, *arguments: object, home: str = "home") -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(self.programs / program), *map(str, arguments)], env=self.environment(home), cwd=self.folder,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def start_superlink(self) -> subprocess.Popen:
        tls = self.folder / "tls"
        process = self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", self.port, "--ssl-certfile",
            tls / "server.pem", "--ssl-keyfile", tls / "server.key", "--ssl-ca-certfile", tls / "ca.pem",
            "--enable-supernode-auth", "--database", self.folder / "superlink.db",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        trusted, end = ssl.create_default_context(cafile=tls / "ca.pem"), time.monotonic() + 120
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", context=trusted, timeout=5).close()
                return process
            assert process.poll() is None, self.log("superlink")
            assert time.monotonic() < end, self.log("superlink")
            time.sleep(0.2)

    def add(self, name: str, data: Path) -> None:
        """Register a node under its name, and start it."""
        key, home = ec.generate_private_key(ec.SECP384R1()), self.folder / f"home_{name}"
        home.mkdir()
        (home / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        (home / "key.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        self.command("supernode", "register", home / "key.pub", "site", "--name", name)
        self.start_node(name, data)

    def start_node(self, name: str, data: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        self.nodes[name] = self.start(
            name, "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates",
            self.folder / "tls" / "ca.pem", "--auth-supernode-private-key", self.folder / f"home_{name}" / "key",
            "--port", port, "--node-config", f'config="{self.folder / "nodes.yaml"}" data-root="{data}" '
            f'state-root="{self.folder / "states" / name}"',
            home=f"home_{name}",
        )  # fmt: skip

    def restart(self, name: str, data: Path) -> None:
        """Start a killed node until Flower lets it in, which it does when its heartbeats are overdue."""
        end = time.monotonic() + 180
        while True:
            self.start_node(name, data)
            with suppress(subprocess.TimeoutExpired):
                self.nodes[name].wait(15)
                assert time.monotonic() < end, self.log(name)
                continue
            return

    def wait_for(self, file: Path, seconds: float = 900) -> None:
        end = time.monotonic() + seconds
        while not file.is_file():
            assert time.monotonic() < end, self.log("superlink")
            time.sleep(0.5)

    def close(self) -> None:
        for process in [*self.nodes.values(), self.superlink]:
            kill(process)

    # ------------------------------------------------------------------ what a person types
    def command(self, *arguments: object) -> str:
        done = subprocess.run(
            [str(self.programs / "flwr"), *map(str, arguments)], env=self.environment("home"), cwd=self.folder,
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def begin(self, app: Path, **config: str) -> str:
        """Begin a run; its number."""
        given = [f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items()]
        options = ["--run-config", " ".join(given)] if given else []
        said = json.loads(self.command("run", app, "site", *options, "--format", "json"))
        return str(said["run-id"])

    def end(self, run: str, seconds: float = 1800) -> dict:
        """Wait for a run; what Flower says of it."""
        end = time.monotonic() + seconds
        while True:
            found = json.loads(self.command("list", "site", "--run-id", run, "--format", "json"))["runs"][0]
            if found["status"].startswith("finished"):
                return found
            assert time.monotonic() < end, self.log("superlink")
            time.sleep(10.0)  # the command takes seconds of a processor

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-8000:]


def kill(process: subprocess.Popen) -> None:
    """End a program and its children at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return node_folders(tmp_path_factory.mktemp("clients"), NODES)


@pytest.fixture(scope="module")
def site(tmp_path_factory, folders):
    programs = programs_with("flwr", FLOWER, tmp_path_factory.mktemp("environment"))
    made = Site(tmp_path_factory.mktemp("site"), programs)
    try:
        for name in NODES:
            made.add(name, folders[name])
        yield made
    finally:
        made.close()


def app_of(site, out, *arguments):
    """An app, whose configuration the operators of the nodes get."""
    given = [*FIT, *arguments, "--name", "run", "--trainer.default_root_dir", str(out / "flower")]
    command = ["--data.dataset.num_nodes", str(len(NODES)), *given, "--output", str(out / "app")]
    run_deployed("flower-app", command, lambda: lit_fed.cli)
    shutil.copy(out / "app" / "nodes.yaml", site.folder)
    return out / "app", out / "flower" / "run" / "version_0"


def test_fedem_equals_the_simulation(site, folders, tmp_path):
    app, folder = app_of(site, tmp_path, "--model.algorithm", "FedEM")
    run = site.begin(app)
    wanted = in_process.simulated(folders, tmp_path, "--model.algorithm", "FedEM", *ROUNDS)
    ended = site.end(run)
    assert ended["status"] == "finished:completed", site.command("log", run, "site", "--show")
    equal_runs(wanted, folder)


def test_a_node_killed_in_a_round_changes_nothing(site, folders, tmp_path):
    """UCFL, whose clients are each sent a state of their own."""
    app, folder = app_of(site, tmp_path, *UCFL)
    run = site.begin(app)
    wanted = in_process.simulated(folders, tmp_path, *UCFL, *ROUNDS)
    site.wait_for(folder / "checkpoints" / "last.ckpt")
    kill(site.nodes["ben"])
    site.restart("ben", folders["ben"])
    ended = site.end(run)
    assert ended["status"] == "finished:completed", site.command("log", run, "site", "--show")
    equal_runs(wanted, folder)


def test_a_server_killed_in_a_run_goes_on_from_its_checkpoint(site, folders, tmp_path):
    app, folder = app_of(site, tmp_path, "--model.algorithm", "SCAFFOLD")
    run = site.begin(app)
    wanted = in_process.simulated(folders, tmp_path, "--model.algorithm", "SCAFFOLD", *ROUNDS)
    site.wait_for(folder / "checkpoints" / "last.ckpt")
    kill(site.superlink)
    time.sleep(1.0)
    site.superlink = site.start_superlink()
    run = site.begin(app, ckpt_path="last")
    ended = site.end(run)
    assert ended["status"] == "finished:completed", site.command("log", run, "site", "--show")
    equal_runs(wanted, folder)
