"""Fits every algorithm in this process, or in each of several ranks, and writes what it leaves behind."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import seed_everything
from normalised import NormalisedMLP

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger, algorithms
from lit_fed.algorithms.base import Algorithm
from lit_fed.callbacks import TrainingSplitEvaluation
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Digits, FeatureBlocks, Synthetic
from lit_fed.data.module import FederatedDataModule


@dataclass(frozen=True)
class StackedAverage(Algorithm):
    """FedAvg by the other reduction: the server sees every message."""

    reduce = "stack"

    def server_step(self, ctx, shared, reduced, client_ids):
        share = reduced.weight / reduced.weight.sum()
        mean = tree.map_leaves(lambda leaf: torch.tensordot(share, leaf.double(), dims=1).to(leaf), reduced.value)
        return shared._replace(models=mean)


NAMES = [*sorted(set(algorithms.__all__) - {"Algorithm"}), "StackedAverage"]
IN_FILES = ["FedEM", "Local", "PFedMe", "L2GD", "EASGD", "Ditto", "APFL", "FML"]
GROUPED = Synthetic(num_clients=8, dimension=4, test_size=20)
OPTIONS = {"UCFL": {"warmup_rounds": 1, "num_streams": 2}}
"""Hyper-parameters with which three rounds show all that an algorithm does."""

BATCH_NORM = ["average", "local"]


def fit(
    name, out, *, rounds=3, callbacks=(), ckpt_path=None, version=None, keep_rounds=0, client_memory_gb=4.0, model=None,
    **trainer_arguments,
):  # fmt: skip
    """Fit and test one algorithm, by default on the CPU; returns its module and trainer."""
    seed_everything(3, verbose=False)
    algorithm = StackedAverage() if name == "StackedAverage" else getattr(algorithms, name)(**OPTIONS.get(name, {}))
    vertical = algorithm.divided_by == "features"
    dataset = FeatureBlocks(num_parties=4) if vertical else GROUPED if name == "Oracle" else Digits()
    data = FederatedDataModule(
        dataset, num_clients=None if dataset.natural else 8, unseen_fraction=0.0 if vertical else 0.25,
        client_fraction=1.0 if algorithm.needs_all_clients else 0.7, clients_per_block=2, batch_size=32,
    )  # fmt: skip
    solver = LocalSolver(momentum=0.9, persist_optimizer=True)
    module = FederatedModule(
        algorithm, solver, client_trainer="sequential", client_memory_gb=client_memory_gb, **(model or {})
    )
    trainer = FederatedTrainer(
        **{"accelerator": "cpu"} | trainer_arguments, max_epochs=rounds,
        logger=RoundLogger(str(out), name, version, keep_rounds),
        callbacks=list(callbacks), enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    trainer.test(module, datamodule=data)
    return module, trainer


if __name__ == "__main__":
    out, ranks = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    extra = {"devices": ranks, "strategy": "fed_ddp"} if ranks > 1 else {"devices": 1}
    for name in NAMES:
        module, trainer = fit(name, out, callbacks=[TrainingSplitEvaluation()], **extra)
        if trainer.is_global_zero:
            torch.save(module.state_dict(), out / f"{name}.pt")
    for name in IN_FILES:
        fit(name, out / "files", callbacks=[TrainingSplitEvaluation()], client_memory_gb=0, **extra)
    for batch_norm in BATCH_NORM:
        model = {"network": NormalisedMLP, "batch_norm": batch_norm}
        module, trainer = fit("FedEM", out / batch_norm, model=model, **extra)
        if trainer.is_global_zero:
            torch.save(module.state_dict(), out / f"{batch_norm}.pt")
