"""The documented SLURM script, with a stand-in for `srun` that has two tasks started on this machine."""

import contextlib
import csv
import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

from doc_pages import ROOT, blocks
from running import command_line, in_two_ranks, run

SRUN = f"""#!{sys.executable} -S
import json, os, socket, sys
with socket.create_connection(("127.0.0.1", os.environ["TASKS"])) as tasks, tasks.makefile("rw") as both:
    print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]), file=both, flush=True)
    status, out, err = json.loads(both.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""
"""Asks for the tasks and says what they said: the test has them forked from a process that has loaded lit_fed."""
JOB = {
    "SLURM_JOB_ID": "2871", "SLURM_JOB_NAME": "fedem", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_NODELIST": "localhost", "SLURM_CPUS_PER_TASK": "1",
}  # fmt: skip
SHORT = "--trainer.check_val_every_n_epoch 1 --model.client_trainer sequential --trainer.accelerator cpu"


def submit(folder, rounds):
    (script,) = [block.text for block in blocks("docs/guides/several_machines.md") if block.title == "fedem.sbatch"]
    assert script.count("--trainer.accelerator auto") == 1
    script = script.replace("--trainer.accelerator auto", f"{SHORT} --trainer.max_epochs {rounds}")
    paths = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        environment = os.environ | JOB | {"PATH": paths, "TASKS": str(server.getsockname()[1])}
        job = subprocess.Popen(
            ["bash", "-e", "-c", script], cwd=folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        asked, _ = server.accept()
        with asked, asked.makefile("rw") as both:
            print(json.dumps(srun(*json.loads(both.readline()))), file=both, flush=True)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    return out


def srun(arguments, folder, environment):
    """Two tasks, in the folder and the environment of `srun`: whether one failed, and what they said."""
    assert arguments[:3] == ["python", "-m", "lit_fed"]
    each = [environment | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    with contextlib.chdir(folder):
        tasks = in_two_ranks(partial(command_line, arguments[3:]), each=each)
    return [0, "".join(one.stdout for one in tasks), "".join(one.stderr for one in tasks)]


def rows(folder, name):
    with (folder / "runs" / name / "version_0/metrics.csv").open() as file:
        return [{**row, "time/round_seconds": ""} for row in csv.DictReader(file)]


def test_two_tasks_share_the_clients_and_a_second_job_goes_on(tmp_path):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/srun"
    program.write_text(SRUN)
    program.chmod(0o755)
    assert "round 2/2" in submit(tmp_path, 2)
    second = submit(tmp_path, 3)
    assert "round 2/3" in second
    assert "round 0/3" not in second
    alone = ["fit", "--config", str(ROOT / "configs/experiment/quickstart.yaml"), *SHORT.split()]
    finished = run(
        [*alone, "--trainer.max_epochs", "3", "--name", "alone", "--trainer.default_root_dir", str(tmp_path / "runs")]
    )
    assert finished.returncode == 0, finished.stderr
    assert len(rows(tmp_path, "fedem")) == 4
    assert rows(tmp_path, "fedem") == rows(tmp_path, "alone")
