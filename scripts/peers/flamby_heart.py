"""FLamby's Fed-Heart-Disease by its own programs: its benchmark, or a strategy on given batches.

python flamby_heart.py benchmark DATA SEED OUT.csv              DATA holds processed.HOSPITAL.data
python flamby_heart.py strategy CLIENTS GIVEN.npz NAME OUT.npz  GIVEN: start, batches of each client, options
"""

# mypy: ignore-errors

import json
import runpy
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch

np.NaN = np.nan  # which their data set names, and NumPy 2 does not


def benchmark(data: str, seed: str, out: str) -> None:
    """Their benchmark with the hyper-parameters of their file."""
    import flamby.datasets.fed_heart_disease.dataset as heart

    heart.check_dataset_from_config = lambda name, debug: {
        "dataset_path": data
    }  # in place of a file that a download writes
    config = Path(heart.__file__).parents[2] / "config_heart_disease.json"
    sys.argv = ["", "--seed", seed, "--config-file-path", str(config), "--results-file-path", out, "--cpu-only"]
    runpy.run_module("flamby.benchmarks.fed_benchmark", run_name="__main__")


class Batches:
    """The batches of a client in the order of their use, in place of a DataLoader."""

    def __init__(self, file: Path, rows: list[list[int]]) -> None:
        with np.load(file) as arrays:
            self.x, self.y = torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"]).float()[:, None]
        self.rows = rows
        self.dataset = self.y  # whose length they weight by

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return ((self.x[rows], self.y[rows]) for rows in self.rows)


def strategy(clients: str, given: str, name: str, out: str) -> None:
    """The model of a strategy."""
    import flamby.strategies
    from flamby.benchmarks.benchmark_utils import train_single_centric
    from flamby.datasets.fed_heart_disease import Baseline, BaselineLoss

    with np.load(given) as arrays:
        files = sorted(Path(clients).glob("seen/*.npz"))
        plans, options = (json.loads(str(arrays[name])) for name in ("plans", "options"))
        batches = [Batches(file, list(chain(*rounds))) for file, rounds in zip(files, plans, strict=True)]
        model = Baseline()
        with torch.no_grad():
            for i, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.from_numpy(arrays[f"start_{i}"]))
    if name == "Pooled Training":  # all its passes are one
        adam, rate = torch.optim.Adam, options["learning_rate"]
        model = train_single_centric(model, batches[0], False, name, adam, rate, BaselineLoss, 1)
    else:
        model = getattr(flamby.strategies, name)(batches, model, BaselineLoss(), torch.optim.SGD, **options).run()[0]
    shared = [parameter.detach().numpy() for parameter in model.parameters()]
    np.savez(out, **{f"shared_{i}": leaf for i, leaf in enumerate(shared)})


if __name__ == "__main__":
    {"benchmark": benchmark, "strategy": strategy}[sys.argv[1]](*sys.argv[2:])
