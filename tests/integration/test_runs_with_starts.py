"""Starts of mixtures in whole runs: resumed in their midst, with client states in files, and in two ranks."""

import shutil
from functools import partial

import pytest
import torch
from fit_all import CUT_IN, PowerCut
from lightning.pytorch import seed_everything
from running import folder, history, in_two_ranks

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.algorithms import FedEM
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.starts import Annealing, Clustering, FarthestClients, Restarts, SplitAndMerge
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule

STARTS = {
    "annealing": Annealing(3),
    "clustering": Clustering(3),
    "restarts": Restarts(2, 2),
    "farthest": FarthestClients(1),
    "exchanges": SplitAndMerge(1, 4, unused=1.0),
}

IN_RANKS = ["restarts", "farthest"]
"""Starts whose server keeps, or asks for, what messages of other starts do not hold."""


def fit(name, out, *, callbacks=(), ckpt_path=None, version=None, keep_rounds=0, client_memory_gb=4.0, **trainer):
    """A run whose start is under way when its power is cut."""
    seed_everything(3, verbose=False)
    data = FederatedDataModule(Digits(), num_clients=6, client_fraction=0.7, clients_per_block=2, batch_size=64)
    module = FederatedModule(
        FedEM(3, start=STARTS[name]), LocalSolver(momentum=0.9, persist_optimizer=True), client_trainer="sequential",
        client_memory_gb=client_memory_gb,
    )  # fmt: skip
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=5, logger=RoundLogger(str(out), name, version, keep_rounds),
        callbacks=list(callbacks), enable_progress_bar=False, check_val_every_n_epoch=5, **trainer,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module


def fit_in_ranks(out):
    """All runs, in a process that is one of two ranks."""
    for name in IN_RANKS:
        module = fit(name, out, devices=2, strategy="fed_ddp")
        torch.save(module.state_dict(), out / f"{name}-{module.global_rank}.pt")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of whole runs, and of what a power cut leaves of them."""
    return tmp_path_factory.mktemp("starts")


@pytest.fixture(scope="module")
def whole(place):
    """The whole runs by name, made when they are asked for."""
    made = {}

    def run(name):
        if name not in made:
            module = fit(name, place / "whole", callbacks=[PowerCut(folder(place / "cut", name))])
            made[name] = module.state_dict(), tree.leaves(module.store.table)
        return made[name]

    return run


def same(one, other):
    """Whether two states of modules hold the same models, and all else that the server knows."""
    one, other = ({key: leaf for key, leaf in state.items() if not key.startswith("store.")} for state in (one, other))
    assert one.keys() == other.keys()
    return all(torch.equal(leaf, other[key]) for key, leaf in one.items())


@pytest.mark.parametrize("name", STARTS)
def test_a_start_that_is_resumed_equals_the_whole_one(whole, place, tmp_path, name):
    uncut = whole(name)
    cut = folder(tmp_path, name)
    shutil.copytree(folder(place / "cut", name), cut)
    held = torch.load(cut / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert uncut[0].keys() <= held.keys()
    if name in ("farthest", "exchanges", "restarts"):
        (exchanges,) = (int(leaf) for key, leaf in held.items() if key == "exchanges")
        assert exchanges == (1 if name == "restarts" else 2)
    module = fit(name, tmp_path, version=0, keep_rounds=CUT_IN, ckpt_path=str(cut / "checkpoints/last.ckpt"))
    assert same(module.state_dict(), uncut[0])
    assert all(map(torch.equal, tree.leaves(module.store.table), uncut[1]))
    assert history(cut) == history(folder(place / "whole", name))


@pytest.mark.parametrize("name", ["clustering", "farthest"])
def test_states_in_files_are_those_in_memory(whole, tmp_path, name):
    module = fit(name, tmp_path, client_memory_gb=0)
    assert module.store.in_files
    assert same(module.state_dict(), whole(name)[0])


def test_two_ranks_equal_one(whole, tmp_path):
    in_two_ranks(partial(fit_in_ranks, tmp_path))
    for name in IN_RANKS:
        for rank in range(2):
            state = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
            assert same(state, whole(name)[0]), name
