"""Rows of bench.py on a million clients: the cost of a round depends on its sampled clients only."""

import json
import tempfile
from pathlib import Path

import numpy as np
from measuring import RoundClock, fit, in_process, peak_gigabytes

from lit_fed import FederatedModule
from lit_fed.algorithms import Ditto, FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Synthetic
from lit_fed.data.module import FederatedDataModule

ROUNDS = 12


def many_clients() -> dict[str, float]:
    """FedEM, clients drawn when needed, 100 of 1,000 or of 1,000,000 per round: what a round costs.

    A round has its evaluation of 100 clients, its log and its checkpoint.
    """
    return _few_and_many("FedEM", 1_000_000)


def many_models() -> dict[str, float]:
    """Ditto, each client with a model of its own in files, 100 of 1,000 or of 100,000 per round.

    A round has its evaluation of 100 clients, its log and its checkpoint; a model is 1.2 kB. `files` are those that a
    round writes, at most.
    """
    return _few_and_many("Ditto", 100_000)


SCALE_ROWS = {"many_clients": many_clients, "many_models": many_models}


def _few_and_many(algorithm: str, most: int) -> dict[str, float]:
    """Values for a thousand clients and for many more, in turns of separate processes."""
    turns = [
        [in_process("bench_scale", f"child({algorithm!r}, {number})") for number in (1_000, most)] for _ in range(3)
    ]
    row: dict[str, float] = {}
    for figure in turns[0][0]:
        for position, number in enumerate((1_000, most)):
            row[f"{figure}, {number:,} clients"] = float(np.median([turn[position][figure] for turn in turns]))
    name = "CPU seconds of a round"
    row[f"{name}, {most:,} / 1,000"] = row[f"{name}, {most:,} clients"] / row[f"{name}, 1,000 clients"]
    return row


def child(algorithm: str, num_clients: int) -> None:
    """Train some rounds and print their costs."""
    whole_models = algorithm == "Ditto"
    sizes = {"dimension": 300, "test_size": 5} if whole_models else {"test_size": 50}
    dataset = Synthetic(num_clients=num_clients, variant="corrected", on_demand=True, **sizes)  # type: ignore[arg-type]
    data = FederatedDataModule(dataset, batch_size=128, clients_per_round=100, eval_clients=100)
    chosen, memory_gb = (Ditto(), 0.0) if whole_models else (FedEM(), 2.0)
    module = FederatedModule(chosen, LocalSolver(), client_memory_gb=memory_gb)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder))
        fit(data, module, folder, max_epochs=ROUNDS, callbacks=[watch])
        (last,) = Path(folder).rglob("last.ckpt")
        row = {
            "CPU seconds of a round": float(np.median(watch.seconds[1:])),
            "peak GB": peak_gigabytes(),
            "checkpoint MB": last.stat().st_size / 1e6,
        }
        if whole_models:
            row["files"] = float(max(watch.written))
    print(json.dumps(row))


class Watch(RoundClock):
    """CPU seconds of each round, and the number of client files it wrote."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.written: list[int] = []
        self._known: set[str] = set()

    def between_rounds(self) -> None:
        """Count files."""
        found = {path.name for path in self._folder.rglob("clients/*.pt")}
        self.written.append(len(found - self._known))
        self._known = found
