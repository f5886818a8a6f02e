"""Runs of version 0.2, as they are written today, and digests of what they leave.

`python tests/integration/earlier.py FOLDER` writes the digests of all runs, as they are written today, and
`options.txt`: the options of every class, as `version_0_2/options.txt` has those of the release 0.2.0.
"""

import hashlib
import inspect
import json
import platform
import sys
from pathlib import Path

import torch
from running import folder, run

from lit_fed import callbacks
from lit_fed.command_line.classes import CLASSES, subclasses
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data.module import FederatedDataModule
from lit_fed.training.module import FederatedModule

HERE = Path(__file__).parent / "version_0_2"
RECORD = HERE / "digests.json"

SMALL = [
    "--data.dataset", "Digits", "--data.num_clients", "6", "--data.unseen_fraction", "0.34", "--data.batch_size", "32",
    "--model.network", "MLP", "--model.network.hidden_sizes", "[8]", "--model.solver.lr", "0.2",
    "--model.solver.momentum", "0.9", "--model.client_trainer", "vectorized", "--trainer.accelerator", "cpu",
    "--trainer.max_epochs", "3", "--trainer.check_val_every_n_epoch", "3",
]  # fmt: skip
GROUPS = ["--data.partition", "LabelPermutations", "--data.partition.num_groups", "2"]
MIXED = [*GROUPS, "--model.algorithm.num_components", "2", "--model.algorithm.em_steps", "3"]
POISSON = ["--data.client_sampling", "poisson", "--data.client_fraction", "0.5"]
CLIENT_PRIVACY = [
    "--model.privacy", "ClientPrivacy", "--model.privacy.clip_norm", "0.5", "--model.privacy.noise_multiplier", "1",
    "--model.privacy.delta", "0.001", "--model.privacy.noise_seed", "0", *POISSON,
]  # fmt: skip
EXAMPLE_PRIVACY = [
    "--model.privacy", "ExamplePrivacy", "--model.privacy.clip_norm", "1", "--model.privacy.noise_multiplier", "0.5",
    "--model.privacy.sample_rate", "0.3", "--model.privacy.delta", "0.001", "--model.privacy.mixture_noise", "3",
    "--model.privacy.noise_seed", "0",
]  # fmt: skip

RESPONSIBLE = ["ResponsibilityFedEM", *MIXED]

RUNS = {
    "by responsibility": RESPONSIBLE,
    "by samples": ["FedEM", *MIXED, "--data.client_fraction", "0.6"],
    "clustering first": [*RESPONSIBLE, "--model.algorithm.start", "Clustering",
                         "--model.algorithm.start.num_rounds", "2"],
    "without a server": ["DFedEM", *MIXED],
    "averaged": ["FedAvg", "--data.client_fraction", "0.6"],
    "controlled": ["SCAFFOLD", "--model.client_trainer", "sequential"],
    "own heads": ["FedRep"],
    "personal models": ["Ditto"],
    "private clients": ["FedAvg", *CLIENT_PRIVACY],
    "private samples": ["FedEM", *MIXED, *EXAMPLE_PRIVACY],
    "on two ranks": [*RESPONSIBLE, "--trainer.devices", "2", "--data.clients_per_block", "2"],
    "resumed": [*RESPONSIBLE, "--data.client_fraction", "0.6"],
}  # fmt: skip
"""Name of a run → the algorithm and what follows, as they are written today."""


def fit(name, arguments, out):
    """Run `fit` as a command; the resumed run stops after its first round."""
    given = ["fit", *SMALL, "--model.algorithm", *arguments, "--trainer.default_root_dir", str(out), "--name", "run"]
    ranks = 2 if name == "on two ranks" else 1
    rounds = [["--trainer.max_epochs", "1"], ["--ckpt_path", "last"]] if name == "resumed" else [[]]
    for more in rounds:
        done = run([*given, *more], ranks=ranks)
        assert done.returncode == 0, done.stderr
    return folder(out, "run")


def digest(run_folder):
    """What a run leaves: its metrics, and for each tensor its sum, its norm and its bits."""
    checkpoint = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
    summary = json.loads((run_folder / "summary.json").read_text())
    metrics = {key: value for key, value in summary.items() if key.startswith(("train/", "test/", "comm/", "privacy/"))}
    tensors = {
        leaf: [float(value.double().sum()), float(value.double().norm()), _bits(value)]
        for leaf, value in sorted(checkpoint["state_dict"].items())
        if isinstance(value, torch.Tensor)
    }
    return {"metrics": metrics, "tensors": tensors}


def options():
    """A line for each class that settings may name, and for the sections themselves: its setting, name and options."""
    named = [(setting, one) for setting, base in CLASSES.items() for one in subclasses(base)]
    named += [("trainer.callbacks", getattr(callbacks, name)) for name in callbacks.__all__ if name[0].isupper()]
    named += [("model.solver", LocalSolver), ("model", FederatedModule), ("data", FederatedDataModule)]
    return sorted(
        f"{setting} {one.__name__}: {' '.join(sorted(inspect.signature(one).parameters))}".rstrip()
        for setting, one in named
        if one.__module__.startswith("lit_fed.")
    )


def machine():
    """Where bits can be expected to agree."""
    told = ("model name", "cpu family", "model\t", "stepping")  # hosts hide the kind behind one name
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = [next((line for line in lines if line.startswith(one)), "") for one in told]
    return [torch.__version__, platform.machine(), *found]


def _bits(value):
    return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    runs = {name: digest(fit(name, arguments, out / name.replace(" ", "_"))) for name, arguments in RUNS.items()}
    (out / "options.txt").write_text("\n".join(options()) + "\n")
    (out / "digests.json").write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1))
