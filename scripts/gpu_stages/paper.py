"""The FedEM paper's CIFAR-10 by the Python API, continued from checkpoints."""

from pathlib import Path
from typing import Any

import torch

from gpu_stages.cells import Cells
from gpu_stages.workload import ALGORITHMS, Size
from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.callbacks.checkpoint import LastCheckpoint
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import CIFAR10, Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.partitions.dirichlet import Dirichlet
from lit_fed.models import FedEMCNN, Linear


class Budget:
    """Length of a run and of its pieces.

    Args:
        rounds: rounds of the run.
        at_once: rounds of a piece.
        root: folder of CIFAR-10; None: Digits.
        folder: folder of checkpoints.
    """

    def __init__(self, rounds: int, at_once: int, root: Path | None, folder: Path) -> None:
        self.rounds, self.at_once, self.root, self.folder = rounds, at_once, root, folder


def paper(cells: Cells, device: torch.device, size: Size, budget: Budget) -> None:
    """A cell for each algorithm; unfinished runs continue in the next call."""
    for algorithm in ALGORITHMS:
        done = cells.values.get("paper", {}).get(algorithm, {}).get("rounds", 0)
        while done < budget.rounds and cells.left > 30:
            done = min(done + budget.at_once, budget.rounds)
            row = _until(algorithm, done, device, size, budget)
            cells.note("paper", cells.values.get("paper", {}) | {algorithm: {"rounds": done} | row})
            print(f"paper: {algorithm}: {done} rounds: {row}", flush=True)


def _until(algorithm: str, rounds: int, device: torch.device, size: Size, budget: Budget) -> dict[str, Any]:
    """Train up to a round; returns test accuracies."""
    on_gpu = device.type == "cuda"
    solver = LocalSolver(
        lr=0.03, schedule="multi_step", schedule_rounds=budget.rounds, momentum=0.9, weight_decay=5e-4,
        persist_optimizer=True,
    )  # fmt: skip
    network = Linear if budget.root is None else FedEMCNN
    how = "graphed" if on_gpu else "sequential"
    module = FederatedModule(ALGORITHMS[algorithm], solver, network=network, client_trainer=how, client_memory_gb=64)
    dataset = Digits() if budget.root is None else CIFAR10(root=str(budget.root))
    data = FederatedDataModule(
        dataset, Dirichlet(alpha=0.4, label_groups=3), num_clients=size.clients * 5 // 4, unseen_fraction=0.2,
        batch_size=size.batch, seed=1,
    )  # fmt: skip
    folder = budget.folder / algorithm
    trainer = FederatedTrainer(
        accelerator="gpu" if on_gpu else "cpu", devices=1, max_epochs=rounds, logger=False, enable_progress_bar=False,
        callbacks=[LastCheckpoint(every_n_rounds=budget.at_once)], check_val_every_n_epoch=budget.at_once,
        default_root_dir=str(folder),
    )  # fmt: skip
    last = folder / "checkpoints/last.ckpt"
    trainer.fit(module, datamodule=data, ckpt_path=str(last) if last.is_file() else None)
    trainer.test(module, datamodule=data, verbose=False)
    keys = ("test/seen/accuracy", "test/seen/accuracy_decile", "test/unseen/accuracy")
    return {key: round(100 * module.results[key], 2) for key in keys}
