"""A killed run, continued, equals the run that was never interrupted."""

import json

import pytest
from running import SMALL, folder, history, numbers, run, start

ALGORITHMS = {
    "FedEM": ["--model.algorithm", "FedEM", "--model.solver.persist_optimizer", "true"],
    "FedAvg with BatchNorm": ["--model.algorithm", "FedAvg", "--model.network", "normalised.NormalisedMLP"],
    "FedEM with local BatchNorm": [
        "--model.algorithm", "FedEM", "--model.network", "normalised.NormalisedMLP", "--model.batch_norm", "local",
    ],
    "Local": ["--model.algorithm", "Local", "--model.client_trainer", "sequential"],
}  # fmt: skip


def fit(out, *arguments):
    done = run(["fit", *SMALL, "--trainer.default_root_dir", str(out), *arguments])
    assert done.returncode == 0, done.stderr


def kill(moment):
    return [
        "--trainer.callbacks+=interruptions.Kill", "--trainer.callbacks.round_idx=2",
        f"--trainer.callbacks.moment={moment}",
    ]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "moment"), [(name, "client") for name in ALGORITHMS] + [("FedEM", "checkpoint")])
def test_kill_and_resume_equals_uninterrupted(tmp_path, algorithm, moment):
    arguments, algorithm = ALGORITHMS[algorithm], algorithm.split()[0]
    fit(tmp_path / "whole", *arguments)
    out = ["--trainer.default_root_dir", str(tmp_path / "killed")]
    killed = start(["fit", *SMALL, *out, *arguments, *kill(moment)])
    said = killed.communicate(120)
    assert killed.returncode == -9, said
    run_folder = folder(tmp_path / "killed", algorithm)
    assert not (run_folder / "summary.json").exists()
    fit(tmp_path / "killed", *arguments, "--ckpt_path", "last")
    assert numbers(run_folder) == numbers(folder(tmp_path / "whole", algorithm))
    assert history(run_folder) == history(folder(tmp_path / "whole", algorithm))
    assert json.loads((run_folder / "summary.json").read_text())["rounds"] == 4
    assert not folder(tmp_path / "killed", algorithm, 1).exists()
    clients = [(path / "clients.csv").read_text() for path in (run_folder, folder(tmp_path / "whole", algorithm))]
    assert clients[0] == clients[1]
