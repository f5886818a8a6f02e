"""A start of a mixture in whole runs: resumed in its midst, with client states in files, and in two ranks."""

import shutil
from functools import partial

import pytest
import torch
from fit_all import CUT_IN, PowerCut
from lightning.pytorch import seed_everything
from running import folder, history, in_two_ranks

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.algorithms import ResponsibilityFedEM
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.wrappers.mixture_start import Clustering

NAME = "clustering"


def fit(out, *, callbacks=(), ckpt_path=None, version=None, keep_rounds=0, client_memory_gb=4.0, **trainer):
    """A run whose start is under way when its power is cut."""
    seed_everything(3, verbose=False)
    data = FederatedDataModule(Digits(), num_clients=6, client_fraction=0.7, clients_per_block=2, batch_size=64)
    module = FederatedModule(
        ResponsibilityFedEM(3, start=Clustering(3)), LocalSolver(momentum=0.9, persist_optimizer=True),
        client_trainer="sequential", client_memory_gb=client_memory_gb,
    )  # fmt: skip
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=5, logger=RoundLogger(str(out), NAME, version, keep_rounds),
        callbacks=list(callbacks), enable_progress_bar=False, check_val_every_n_epoch=5, **trainer,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module


def fit_in_ranks(out):
    """The run, in a process that is one of two ranks."""
    module = fit(out, devices=2, strategy="fed_ddp")
    torch.save(module.state_dict(), out / f"{module.global_rank}.pt")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the whole run, and of what a power cut leaves of it."""
    return tmp_path_factory.mktemp("starts")


@pytest.fixture(scope="module")
def whole(place):
    """The state of the whole run, and what its clients keep."""
    module = fit(place / "whole", callbacks=[PowerCut(folder(place / "cut", NAME))])
    return module.state_dict(), tree.leaves(module.store.table)


def same(one, other):
    """Whether two states of modules hold the same models, and all else that the server knows."""
    one, other = ({key: leaf for key, leaf in state.items() if not key.startswith("store.")} for state in (one, other))
    assert one.keys() == other.keys()
    return all(torch.equal(leaf, other[key]) for key, leaf in one.items())


def test_a_start_that_is_resumed_equals_the_whole_one(whole, place, tmp_path):
    cut = folder(tmp_path, NAME)
    shutil.copytree(folder(place / "cut", NAME), cut)
    module = fit(tmp_path, version=0, keep_rounds=CUT_IN, ckpt_path=str(cut / "checkpoints/last.ckpt"))
    assert same(module.state_dict(), whole[0])
    assert all(map(torch.equal, tree.leaves(module.store.table), whole[1]))
    assert history(cut) == history(folder(place / "whole", NAME))


def test_states_in_files_are_those_in_memory(whole, tmp_path):
    module = fit(tmp_path, client_memory_gb=0)
    assert module.store.in_files
    assert same(module.state_dict(), whole[0])


def test_two_ranks_equal_one(whole, tmp_path):
    in_two_ranks(partial(fit_in_ranks, tmp_path))
    for rank in range(2):
        assert same(torch.load(tmp_path / f"{rank}.pt", weights_only=True), whole[0])
