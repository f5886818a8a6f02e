"""Real federations over NVFlare: a provisioned server and two sites with TLS, equal to the simulation."""

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from background import InBackground, programs_with, until
from doc_pages import ROOT, blocks
from in_process import CLIENTS, FIT, equal_runs, node_folders, simulated

import lit_fed.cli
from lit_fed.command_line.deployed import run_deployed
from lit_fed.deployment.flare_apps import NVFLARE

SITES = {name: CLIENTS[name] for name in ("anna", "ben")}

LONG = ["--model.algorithm", "UCFL", "--model.algorithm.warmup_rounds", "1", "--trainer.max_epochs", "40"]
"""Rounds enough for a process to be killed in one."""

GUIDE = {one.title: one.text for one in blocks("docs/guides/deploy_nvflare.md") if one.title}
"""Files of the guide."""


class Consortium:
    """A provisioned server and its sites, each with a client of lit_fed.

    Args:
        folder: for everything that they write.
        programs: folder of the programs.
        data: folders of the clients' samples, by site.
    """

    def __init__(self, folder: Path, programs: Path, data: dict[str, Path]) -> None:
        self.folder, self.programs, self.data, self.processes = folder, programs, data, {}
        port = free_port()
        for name in GUIDE:
            (folder / name).write_text(GUIDE[name].replace("8102", str(port)))
        self.command("nvflare", "provision", "-p", "project.yml", "-w", "kits")
        self.kits = folder / "kits" / "lit_fed" / "prod_00"
        self.ports = {site: free_port() for site in SITES}
        self.command("python", "local.py", self.kits / "localhost")
        for site in SITES:
            self.command("python", "local.py", self.kits / site, f"127.0.0.1:{self.ports[site]}")
        for kit in ("localhost", *SITES):
            self.start(kit, ["bash", "startup/sub_start.sh"], self.kits / kit)
        end = time.monotonic() + 120
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                return
            assert time.monotonic() < end, self.log("localhost")
            time.sleep(0.5)

    # ------------------------------------------------------------------ processes
    def environment(self) -> dict[str, str]:
        own = {
            "HOME": str(self.folder), "OMP_NUM_THREADS": "1", "PAUSE": "1", "PYTHONPATH": str(ROOT),
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        return os.environ | own

    def start(self, name: str, command: list, folder: Path) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(one) for one in command], env=self.environment(), cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def start_client(self, site: str, job: Path, *more: str) -> None:
        """Start the client of a site, with the settings of a job, in the place of the one that runs."""
        name, given = f"client of {site}", job / "app" / "config" / "nodes.yaml"
        if name in self.processes:
            self.kill(name)
        self.start(
            name,
            [
                self.programs / "python", "-m", "lit_fed", "client", "--server", f"127.0.0.1:{self.ports[site]}",
                "--name", site, "--config", given, "--data.root", self.data[site], "--states",
                self.folder / "states" / site, "--stay", "--patience", "inf", *more,
            ],
            self.folder,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """End a program and its children at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def kill_job_of(self, site: str) -> None:
        """End the process that runs a job at a site."""
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = entry.read_bytes().decode().split("\0")
                if any("worker_process" in one for one in words) and any(str(self.kits / site) in one for one in words):
                    os.kill(int(entry.parent.name), signal.SIGKILL)
                    return
        raise AssertionError(f"no process of a job at {site}")

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)

    # ------------------------------------------------------------------ what a person types
    def command(self, *arguments: object) -> str:
        done = subprocess.run(
            [*map(str, arguments)], env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log("localhost")
        return done.stdout

    def submit(self, job: Path) -> str:
        """Submit a job; its number."""
        lead = self.kits / "lead@lab.org"
        said = self.command("nvflare", "--format", "json", "job", "submit", "-j", job, "--startup-kit", lead)
        return json.loads(said)["data"]["job_id"]

    def end(self, number: str, seconds: float = 300) -> dict:
        """Wait for a job; what NVFlare stores about it."""
        end, meta = time.monotonic() + seconds, self.kits / "localhost" / "stored" / "jobs" / number / "meta"
        while not (found := json.loads(meta.read_text()))["status"].startswith("FINISHED"):
            assert time.monotonic() < end, self.log("localhost")
            time.sleep(0.5)
        return found

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-12000:]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return node_folders(tmp_path_factory.mktemp("clients"), SITES)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory, folders):
    programs = programs_with("nvflare", NVFLARE, tmp_path_factory.mktemp("environment"))
    made = Consortium(tmp_path_factory.mktemp("consortium"), programs, folders)
    try:
        yield made
    finally:
        made.close()


def job_of(out, name, *arguments):
    """A job, and the folder of its run."""
    given = [*FIT, *arguments, "--name", "run", "--trainer.default_root_dir", str(out / "flare")]
    command = ["--data.dataset.num_nodes", str(len(SITES)), *given, "--output", str(out / name)]
    run_deployed("flare-job", command, lambda: lit_fed.cli)
    return out / name, out / "flare" / "run" / "version_0"


@pytest.mark.parametrize("algorithm", ["FedEM", "ResponsibilityFedEM", "SCAFFOLD"])
def test_a_run_equals_the_simulation(algorithm, consortium, folders, tmp_path):
    given = ["--model.algorithm", algorithm, "--trainer.max_epochs", "2"]
    job, folder = job_of(tmp_path, "job", *given)
    for site in SITES:
        consortium.start_client(site, job, *(["--reveal-mixture"] * (algorithm == "ResponsibilityFedEM")))
    number = consortium.submit(job)
    wanted = simulated(folders, tmp_path, *given)
    assert consortium.end(number)["status"] == "FINISHED:COMPLETED", consortium.log("localhost")
    equal_runs(wanted, folder)


def test_a_killed_client_and_a_killed_job_change_nothing(consortium, folders, tmp_path):
    """UCFL, whose clients are each sent a state of their own; the guide's loop submits the job again."""
    job, folder = job_of(tmp_path, "job", *LONG)
    again, _ = job_of(tmp_path, "again", *LONG, "--ckpt_path", "last")
    for site in SITES:
        consortium.start_client(site, job)
    loop = InBackground(consortium.command, "bash", "resubmit.sh", consortium.kits / "lead@lab.org", job, again)
    wanted = simulated(folders, tmp_path, *LONG)
    until((folder / "checkpoints" / "last.ckpt").is_file, 240)
    consortium.start_client("ben", job)
    rounds = (folder / "metrics.csv").read_text().count("\n")
    until(lambda: (folder / "metrics.csv").read_text().count("\n") > rounds + 3, 120)
    consortium.kill_job_of("ben")
    until(lambda: not loop.is_alive, 400)
    loop.result()
    equal_runs(wanted, folder)


def test_code_and_foreign_classes_do_not_start_at_a_site(consortium, tmp_path):
    job, folder = job_of(tmp_path, "job", "--model.algorithm", "FedAvg", "--trainer.max_epochs", "1")
    config = job / "app" / "config" / "config_fed_client.json"
    given = json.loads(config.read_text())
    foreign = "nvflare.app_common.executors.error_handling_executor.ErrorHandlingExecutor"
    given["executors"][0]["executor"]["path"] = foreign
    config.write_text(json.dumps(given))
    assert consortium.end(consortium.submit(job))["status"] != "FINISHED:COMPLETED"
    assert f"{foreign!r} at config path 'executors.#1.executor' is not in allow_list" in consortium.log("anna")
    job, _ = job_of(tmp_path, "code", "--model.algorithm", "FedAvg", "--trainer.max_epochs", "1")
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "own.py").write_text("raise SystemExit\n")
    found = consortium.end(consortium.submit(job))
    assert found["status"] == "FINISHED:FAILED_TO_RUN"
    assert "anna: NVFLARE_ERROR: BYOC not permitted" in found["job_deploy_detail"]
    assert not folder.exists()
