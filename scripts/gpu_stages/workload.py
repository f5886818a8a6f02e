"""Federations of random images of the paper's size, for the stages."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.clients import ClientTrainer, SequentialTrainer, VectorizedTrainer
from lit_fed.clients.graphed import GraphedTrainer
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Multiclass
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.models import FedEMCNN, LeNet5
from lit_fed.rounds import FederatedRounds, start

ALGORITHMS: dict[str, Algorithm] = {"FedAvg": FedAvg(), "FedEM": FedEM(num_components=3)}
NETWORKS = {"LeNet5": LeNet5, "FedEMCNN": FedEMCNN}
PRECISIONS = ("float32", "tf32", "bf16")
CLASSES = 10


class Size(NamedTuple):
    """Size of a federation."""

    clients: int
    samples: int  # of all clients together
    shape: tuple[int, int, int] = (3, 32, 32)
    batch: int = 128


@lru_cache(maxsize=1)
def pictures(size: Size, device: torch.device, dtype: torch.dtype = torch.float32) -> Split:
    """Random images and labels; client sizes vary between a third and three times the mean."""
    rng = np.random.default_rng(0)
    share = np.clip(rng.lognormal(0, 0.7, size.clients), 1 / 3, 3)
    sizes = np.maximum((share / share.sum() * size.samples).astype(int), 2)
    total = int(sizes.sum())
    x = torch.from_numpy(rng.standard_normal((total, *size.shape), dtype=np.float32)).to(dtype)
    y = torch.from_numpy(rng.integers(0, CLASSES, total))
    offsets = torch.from_numpy(np.concatenate([[0], sizes.cumsum()]))
    return Split(x, y, offsets).to(device)


def trainer(name: str) -> ClientTrainer:
    """A client trainer by name: `sequential`, `graphed`, or `vectorized` with the size of a chunk."""
    kind, _, megabytes = name.partition(" ")
    if kind in ("sequential", "graphed"):
        one_by_one = SequentialTrainer if kind == "sequential" else GraphedTrainer
        return one_by_one(channels_last=megabytes == "channels last")
    return VectorizedTrainer(chunk_bytes=int(megabytes.split()[0]) * 2**20 if megabytes else 8 * 2**20)


def federation(
    algorithm: str, network: str, train: Split, how: str, *, batch: int, dtype: torch.dtype = torch.float32
) -> FederatedRounds:
    """A federation with the solver of FedEM's scripts and persistent momentum."""
    shape = tuple(train.x.shape[1:])
    task = Task.create(lambda: NETWORKS[network](shape, CLASSES), Multiclass(CLASSES), dtype=dtype)
    solver = LocalSolver(lr=0.03, momentum=0.9, weight_decay=5e-4, persist_optimizer=True)
    made = start(ALGORITHMS[algorithm], task, train, solver=solver, batch_size=batch, num_rounds=200)
    made.client_trainer = trainer(how)
    return made


@contextmanager
def precision(name: str, device: torch.device) -> Iterator[None]:
    """Compute in `float32`, with products and convolutions in `tf32`, or in `bf16`."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
