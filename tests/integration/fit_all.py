"""Fits every algorithm: once for all tests that compare something with the whole run, and in each of several ranks."""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
from filelock import FileLock
from lightning.pytorch import seed_everything
from normalised import NormalisedMLP
from running import folder, in_two_ranks

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger, UNet, algorithms
from lit_fed.callbacks import FederatedCallback, TrainingSplitEvaluation
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, MessageSpec
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Digits, FeatureBlocks, Outlines, Synthetic
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.poison import LabelFlip
from lit_fed.pictures import run as pictures
from lit_fed.wrappers.compression.codecs import QSGD, TopK
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.robust.attacks import ALIE, Gaussian
from lit_fed.wrappers.robust.rules import CenteredClipping, GeometricMedian
from lit_fed.wrappers.secure.wrapper import SecureSum
from lit_fed.wrappers.selection.rules import PowerOfChoice


@dataclass(frozen=True)
class StackedAverage(Algorithm):
    """FedAvg by the other reduction: the server sees every message."""

    message = MessageSpec(reduce="stack")

    def server_step(self, ctx, shared, reduced, client_ids):
        share = reduced.weight / reduced.weight.sum()
        mean = tree.map_leaves(lambda leaf: torch.tensordot(share, leaf.double(), dims=1).to(leaf), reduced.value)
        return shared._replace(models=mean)


NAMES = [*sorted(set(algorithms.__all__) - {"Algorithm"}), "StackedAverage"]
IN_FILES = ["FedEM", "Local", "PFedMe", "L2GD", "EASGD", "Ditto", "APFL", "FML"]
GROUPED = Synthetic(num_clients=8, dimension=4, test_size=20)
BINARY = ["MixedEffects", "Oracle"]
"""Algorithms that need two classes or known groups, which `GROUPED` has."""

OPTIONS = {
    "UCFL": {"warmup_rounds": 1, "num_streams": 2},
    "MOCHA": {"rounds_per_relation": 2},
    "PFedHNPC": {"head": ("*.bias",)},
    "FedRep": {"head_epochs": 1},
    "FedSALoRA": {"personal": ("*.bias",)},
    "FFALoRA": {"frozen": ("*.bias",)},
}
"""Hyper-parameters with which few rounds show all that an algorithm does, and soon."""

METRICS = {"FedEM": "AUROC,CalibrationError"}
"""What is measured beside accuracy and loss."""

FRESH = ["FedNova"]
"""Algorithms that refuse optimizers which are kept from round to round."""

ON_TRAINING = ["FedEM", "PFedMe", "StackedAverage"]
"""Algorithms whose clients are measured on their training samples as well: one way of serving them measures all."""

BATCH_NORM = ["average", "local"]


def solver_of(name, **options):
    """SGD with momentum, which is kept from round to round where the algorithm takes that."""
    return LocalSolver(momentum=0.9, persist_optimizer=name not in FRESH, **options)


def measures(name):
    """Callbacks that measure clients beside the evaluation."""
    return [TrainingSplitEvaluation()] if name in ON_TRAINING else []


def fit(
    name, out, *, rounds=3, callbacks=(), ckpt_path=None, version=None, keep_rounds=0, client_memory_gb=4.0, model=None,
    data=None,
    **trainer_arguments,
):  # fmt: skip
    """Fit and test one algorithm, by default on the CPU; returns its module and trainer."""
    seed_everything(3, verbose=False)
    algorithm = StackedAverage() if name == "StackedAverage" else getattr(algorithms, name)(**OPTIONS.get(name, {}))
    vertical = algorithm.participation.divided_by == "features"
    dataset = FeatureBlocks(num_parties=4) if vertical else GROUPED if name in BINARY else Digits()
    options = {"client_fraction": 1.0 if algorithm.participation.needs_all_clients else 0.7} | (data or {})
    dataset = options.pop("dataset", dataset)
    data = FederatedDataModule(
        dataset, num_clients=None if dataset.natural else 8, unseen_fraction=0.0 if vertical else 0.25,
        clients_per_block=2, batch_size=32, **options,
    )  # fmt: skip
    module = FederatedModule(
        algorithm, client_trainer="sequential", client_memory_gb=client_memory_gb,
        **{"solver": solver_of(name), "metrics": METRICS.get(name)} | (model or {}),
    )  # fmt: skip
    trainer = FederatedTrainer(
        **{"accelerator": "cpu"} | trainer_arguments, max_epochs=rounds,
        logger=RoundLogger(str(out), name, version, keep_rounds),
        callbacks=list(callbacks), enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    trainer.test(module, datamodule=data)
    return module, trainer


RUN = {"rounds": 3, "check_val_every_n_epoch": 2}
"""What the whole runs, their continuations and those of two ranks have in common."""

CUT_IN = 2
"""The round in whose midst the power fails."""


class PowerCut(FederatedCallback):
    """Copies what is on the disk in the middle of a round: what a power cut would leave."""

    def __init__(self, copy):
        self.copy = copy

    def on_clients_end(self, trainer, module, num_clients):
        if module.num_rounds_done == CUT_IN and not self.copy.exists():
            shutil.copytree(trainer.log_dir, self.copy)


class Whole(NamedTuple):
    """A run that nothing cut short."""

    folder: Path
    cut: Path
    """Its folder in the middle of round 2."""
    state: dict
    """The state dict of its module."""
    kept: list
    """What all clients keep, wherever it is."""
    in_files: list
    """The leaves of it that are in files."""


NOISY_STEPS = ExamplePrivacy(
    noise_multiplier=0.5, clip_norm=1.0, sample_rate=0.3, delta=1e-3, mixture_noise=3.0, noise_seed=0
)

ABSENT = Faults(
    0.2, "after", deadline=2.0, compute_mean=1.0, comes_back=0.5, goes_away=0.2, average="expected",
    on_bad_client="drop",
)  # fmt: skip

WRAPPED = {
    "client privacy": {
        "model": {
            "privacy": ClientPrivacy(
                0.2, delta=1e-3, adaptive=True, clip_count_noise=1.0, accountant="rdp", noise_seed=0
            )
        },
        "data": {"client_sampling": "poisson", "client_fraction": 0.3},
    },
    "secure sum": {"model": {"secure_aggregation": SecureSum(dropout_fraction=0.3, threshold=0.4)}},
    "compression": {"model": {"compression": TopK(0.1), "downlink_compression": QSGD()}},
    "compression by EF21": {"model": {"compression": QSGD(15), "compression_feedback": "ef21"}},
    "example privacy": {"model": {"privacy": NOISY_STEPS}},
    "robust rule": {
        "model": {"robust_aggregation": CenteredClipping(0.1, 2, bucket_size=2), "attack": Gaussian()},
        "data": {"attackers": 2},
    },
    "attack on what honest clients send": {
        "model": {"robust_aggregation": GeometricMedian(), "attack": ALIE(0.5)},
        "data": {"attackers": 1, "poison": LabelFlip()},
    },
    "faults": {"model": {"faults": ABSENT}},
    "selection": {"model": {"selection": PowerOfChoice(5)}},
    "fine-tuned serving": {
        "model": {"serving": FineTuning(2, 0.02), "network": NormalisedMLP, "personal": ["head"]},
    },
    "masks": {
        "model": {"network": partial(UNet, channels=(2, 3))},
        "data": {
            "dataset": Outlines(num_clients=8, samples_per_client=6, test_size=3, size=8),
            "augment": "RandomCrop(8, padding=1), RandomRotation(20)",
        },
    },
    "own solvers": {
        "model": {
            "solver": solver_of(
                "FedEM",
                local_epochs=2,
                client_lr={"[0-3]": 0.5},
                client_work={"[3-7]": 0.5},
                client_batch_size={"[5-9]": 2},
            )
        }
    },
    "own heads": {"model": {"network": NormalisedMLP, "personal": ["head"], "personal_training": "alternating"}},
}
"""What may go around an algorithm, by name."""

KINDS = WRAPPED | {
    "memory": {},
    "files": {"client_memory_gb": 0},
    **{f"{one} BatchNorm": {"model": {"network": NormalisedMLP, "batch_norm": one}} for one in BATCH_NORM},
}
"""What goes around the algorithm, where states of clients are, or how batches are normalised."""


def whole(name, place, kind="memory"):
    """The whole run of an algorithm; in a place that processes of pytest share, the first that asks makes it."""
    out = place / kind
    out.mkdir(exist_ok=True)
    done = out / f"{name}.pt"
    with FileLock(out / f"{name}.lock"):
        if not done.exists():
            callbacks = [*measures(name), PowerCut(folder(out / "cut", name))]
            module, _ = fit(name, out, **RUN, callbacks=callbacks, **KINDS[kind])
            torch.save((module.state_dict(), tree.leaves(module.store.table), module.store.in_files), done)
    return Whole(folder(out, name), folder(out / "cut", name), *torch.load(done, weights_only=True))


def resumed(name, out, version=0, keep_rounds=CUT_IN, **arguments):
    """Continue the run whose folder is `out`/name/version_0; its module and trainer."""
    return fit(
        name, out, **RUN, callbacks=measures(name), version=version, keep_rounds=keep_rounds,
        ckpt_path=str(folder(out, name) / "checkpoints/last.ckpt"), **arguments,
    )  # fmt: skip


def fit_in_two_ranks(out, name, kind):
    """A run in a process that is one of two ranks; the pictures of an algorithm are drawn by its run of one rank."""
    extra = {"devices": 2, "strategy": "fed_ddp"}
    with mock.patch.object(pictures, "draw", pictures.draw if name == "FedEM" else lambda *_, **__: None):
        module, trainer = fit(name, out / kind, **RUN, callbacks=measures(name), **KINDS[kind], **extra)
    if trainer.is_global_zero:
        torch.save(module.state_dict(), out / kind / f"{name}.pt")


def in_two(name, place, kind="memory"):
    """The folder of the run of an algorithm in two ranks, and the state dict of its module; made once, as `whole`."""
    out = place / "ranks"
    (out / kind).mkdir(parents=True, exist_ok=True)
    done = out / kind / f"{name}.pt"
    with FileLock(out / kind / f"{name}.lock"):
        if not done.exists():
            in_two_ranks(partial(fit_in_two_ranks, out, name, kind))
    return folder(out / kind, name), torch.load(done, weights_only=True)
