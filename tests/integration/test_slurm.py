"""The documented SLURM script, with a stand-in for `srun` that starts two tasks on this machine, forked from it."""

import csv
import os
import subprocess
import sys
from pathlib import Path

from doc_pages import ROOT, blocks
from running import run

SRUN = f"""#!{sys.executable}
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import prepared, warm
from lit_fed.__main__ import main

prepared.do_not_render()

assert sys.argv[1:4] == ["python", "-m", "lit_fed"]
del sys.argv[1:4]
tasks = []
for rank in range(2):
    tasks.append(os.fork())
    if not tasks[-1]:
        os.environ |= {{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}}
        main()
        sys.exit()
sys.exit(max(os.waitpid(task, 0)[1] for task in tasks) != 0)
"""
JOB = {
    "SLURM_JOB_ID": "2871", "SLURM_JOB_NAME": "fedem", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_NODELIST": "localhost", "SLURM_CPUS_PER_TASK": "1",
}  # fmt: skip
SHORT = "--trainer.check_val_every_n_epoch 1 --model.client_trainer sequential --trainer.accelerator cpu"


def submit(folder, rounds):
    (script,) = [block.text for block in blocks("docs/guides/several_machines.md") if block.title == "fedem.sbatch"]
    assert script.count("--trainer.accelerator auto") == 1
    script = script.replace("--trainer.accelerator auto", f"{SHORT} --trainer.max_epochs {rounds}")
    environment = os.environ | JOB | {"PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(folder, name):
    with (folder / "runs" / name / "version_0/metrics.csv").open() as file:
        return [{**row, "time/round_seconds": ""} for row in csv.DictReader(file)]


def test_two_tasks_share_the_clients_and_a_second_job_goes_on(tmp_path):
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
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
