"""Rows of bench.py on populations of a million clients: what a round costs must not grow with who is not in it."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning
import numpy as np
from measuring import in_process

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.algorithms import Ditto, FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Synthetic
from lit_fed.data.module import FederatedDataModule

__all__ = ["SCALE_ROWS"]

ROUNDS = 12


def many_clients() -> dict[str, float]:
    """FedEM, clients drawn when needed, 100 of 1,000 or of 1,000,000 per round: CPU seconds, memory, checkpoint.

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
    """The figures of a thousand clients and of many more, in turn, each time in processes of their own."""
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
    """Train some rounds and print what they cost."""
    whole_models = algorithm == "Ditto"
    sizes = {"dimension": 300, "test_size": 5} if whole_models else {"test_size": 50}
    dataset = Synthetic(num_clients=num_clients, variant="corrected", on_demand=True, **sizes)  # type: ignore[arg-type]
    data = FederatedDataModule(dataset, batch_size=128, clients_per_round=100, eval_clients=100)
    chosen, memory_gb = (Ditto(), 0.0) if whole_models else (FedEM(), 2.0)
    module = FederatedModule(chosen, LocalSolver(), client_memory_gb=memory_gb)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder))
        trainer = FederatedTrainer(
            accelerator="cpu", max_epochs=ROUNDS, logger=RoundLogger(folder, "bench"), callbacks=[watch],
            enable_progress_bar=False,
        )  # fmt: skip
        trainer.fit(module, datamodule=data)
        (last,) = Path(folder).rglob("last.ckpt")
        row = {
            "CPU seconds of a round": float(np.median(watch.seconds[1:])),
            "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
            "checkpoint MB": last.stat().st_size / 1e6,
        }
        if whole_models:
            row["files"] = float(max(watch.written))
    sys.stdout.write(json.dumps(row) + "\n")


class Watch(lightning.pytorch.Callback):
    """CPU seconds of each round, and how many files of clients it wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds: list[float] = []
        self.written: list[int] = []
        self._known: set[str] = set()
        self._since: float | None = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A round begins where the one before ended; counting its files is none of its work."""
        if self._since is not None:
            self.seconds.append(time.process_time() - self._since)
        found = {path.name for path in self._folder.rglob("clients/*.pt")}
        self.written.append(len(found - self._known))
        self._known = found
        self._since = time.process_time()
