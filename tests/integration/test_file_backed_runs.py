"""Runs whose client states lie in files equal those that keep them in memory, cut off, continued, moved or served."""

import gc
import os
import shutil
from pathlib import Path

import peak_memory
import pytest
import torch
from fit_all import IN_FILES, fit, resumed, whole
from lightning.pytorch.callbacks import ModelCheckpoint
from running import SMALL, ended, folder, forked, history, numbers

from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.algorithms import Local
from lit_fed.cli import main
from lit_fed.core import tree
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

ARGUMENTS = [
    *SMALL, "--model.algorithm", "Local", "--model.client_trainer", "sequential", "--model.client_memory_gb", "0",
    "--trainer.enable_progress_bar", "false",
]  # fmt: skip


def outcome(path):
    return numbers(path), history(path), (path / "clients.csv").read_text()


def states(module):
    """What all clients keep, wherever it is."""
    return tree.leaves(module.store.table)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def client_files(path):
    return {one.name for one in (path / "clients").iterdir()}


def referred(*indices):
    return {f"{one}.{version}.pt" for index in indices for one, version in enumerate(index.tolist()) if version >= 0}


def index_of(path):
    return torch.load(path, weights_only=True)["state_dict"]["store.versions"]


def needed(path):
    """The files that the newest checkpoint of a run needs, and the one before it."""
    assert {one.name for one in (path / "checkpoints").iterdir()} >= {"last.ckpt", "previous.ckpt"}
    return referred(*(index_of(one) for one in (path / "checkpoints").iterdir()))


@pytest.fixture(params=IN_FILES)
def in_memory(request, shared_folder):
    """An algorithm's name, and its whole run with states in memory."""
    return request.param, whole(request.param, shared_folder)


@pytest.fixture
def in_files(in_memory, shared_folder):
    """The same run with states in files."""
    return whole(in_memory[0], shared_folder, "files")


def test_files_give_the_numbers_of_memory(in_memory, in_files):
    assert in_memory[1].in_files == []
    assert in_files.in_files
    assert outcome(in_files.folder) == outcome(in_memory[1].folder)
    assert same(in_files.kept, in_memory[1].kept)
    assert client_files(in_files.folder) == needed(in_files.folder) > referred(in_files.state["store.versions"])


def test_a_cut_run_goes_on_in_its_folder(tmp_path, in_memory, in_files):
    name, path = in_memory[0], in_memory[1].folder
    own = folder(tmp_path, name)
    shutil.copytree(in_files.cut, own)
    last = own / "checkpoints/last.ckpt"
    assert client_files(own) > referred(index_of(last)), "the cut round left files"
    (own / "clients/.3.9.pt.partial").touch()
    module, _ = resumed(name, tmp_path, client_memory_gb=0)
    assert outcome(own) == outcome(path)
    assert same(states(module), in_memory[1].kept)
    assert client_files(own) == needed(own)
    assert torch.equal(module.store.versions, index_of(last))


def test_a_checkpoint_opens_a_new_folder_that_stands_alone(tmp_path, in_memory, in_files):
    name = in_memory[0]
    shutil.copytree(in_files.cut, folder(tmp_path, name))
    before = client_files(folder(tmp_path, name))
    module, trainer = resumed(name, tmp_path, version=None, keep_rounds=0, client_memory_gb=0)
    new = folder(tmp_path, name, 1)
    assert client_files(folder(tmp_path, name)) == before, "the other run's files are left alone"
    assert same(states(module), in_memory[1].kept)
    shutil.copytree(new, tmp_path / "moved")
    shutil.rmtree(folder(tmp_path, name))
    before = {key: value for key, value in module.results.items() if key.startswith("test/")}
    module.results.clear()
    moved = tmp_path / "moved/checkpoints/last.ckpt"
    trainer.test(module, datamodule=trainer.datamodule, ckpt_path=moved)
    assert {key: value for key, value in module.results.items() if key.startswith("test/")} == before
    assert module.store.location == str(tmp_path / "moved/clients")


def test_the_best_models_keep_their_files(tmp_path):
    beside = ModelCheckpoint(monitor="val/seen/accuracy", mode="max", save_top_k=2, filename="beside-{step}")
    away = ModelCheckpoint(tmp_path / "away", monitor="val/seen/loss", mode="max", save_top_k=1, filename="{step}")
    module, trainer = fit(
        "Local", tmp_path, rounds=5, callbacks=[beside, away], client_memory_gb=0, data={"val_fraction": 0.2}
    )
    own = folder(tmp_path, "Local")
    paths = [*(own / "checkpoints").glob("*.ckpt"), *(tmp_path / "away").glob("*.ckpt")]
    assert len(paths) == 5
    indices = [index_of(path) for path in paths]
    assert len({tuple(index.tolist()) for index in indices}) > 1
    assert client_files(own) - {"checkpoints.txt"} == referred(*indices)
    for path, index in zip(paths, indices, strict=True):
        trainer.test(module, datamodule=trainer.datamodule, ckpt_path=path)
        assert torch.equal(module.store.versions, index)


def test_a_run_without_checkpoints_leaves_no_files(tmp_path):
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, default_root_dir=tmp_path,
        enable_progress_bar=False,
    )  # fmt: skip
    module, data = FederatedModule(Local(), client_memory_gb=0), FederatedDataModule(Digits(), num_clients=5)
    trainer.fit(module, datamodule=data)
    temporary = Path(module.store.location)
    assert temporary.parent == tmp_path
    assert {path.name for path in temporary.glob("*.pt")} == referred(module.store.versions)
    trainer.test(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "by_hand.ckpt")
    del module, trainer, data
    gc.collect()
    assert not temporary.exists()
    later, data = FederatedModule(Local(), client_memory_gb=0), FederatedDataModule(Digits(), num_clients=5)
    run = FederatedTrainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match="only while it lasts"):
        run.test(later, datamodule=data, ckpt_path=tmp_path / "by_hand.ckpt")


def test_the_command_line_serves_and_refuses(tmp_path, capsys):
    base = [*ARGUMENTS, "--trainer.default_root_dir", str(tmp_path)]
    main(["fit", *base])
    own = folder(tmp_path, "Local")
    last = own / "checkpoints/last.ckpt"
    fitted = capsys.readouterr().out
    table = fitted[fitted.index("clients") : fitted.index("results:")]
    main(["test", *base, "--ckpt_path", str(last)])
    assert table in capsys.readouterr().out
    main(["validate", *base, "--ckpt_path", "last"])
    assert client_files(own) == needed(own)
    gone = own / "clients" / min(referred(index_of(last)) - referred(index_of(last.with_name("previous.ckpt"))))
    os.rename(gone, tmp_path / "hidden")
    for command, checkpoint in (("fit", "last"), ("fit", str(last)), ("validate", str(last))):
        with pytest.raises(SystemExit) as stopped:
            main([command, *base, "--trainer.max_epochs", "5", "--ckpt_path", checkpoint])
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert all(part in said for part in (f"client {gone.name.split('.')[0]}", str(gone), "put the run's folder"))
    assert not folder(tmp_path, "Local", 1).exists()
    gone.write_bytes(b"half a file")
    with pytest.raises(SystemExit) as stopped:
        main(["test", *base, "--ckpt_path", str(last)])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert f"lit_fed: client {gone.name.split('.')[0]}, its kept state: cannot be read from {gone}: its end is" in said
    assert f"go on without it by --ckpt_path {last.with_name('previous.ckpt')}" in said


def test_negative_memory_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["fit", *SMALL, "--model.client_memory_gb", "-1"])
    assert "--model.client_memory_gb is -1" in capsys.readouterr().err


def test_another_budget_is_another_run(tmp_path, in_memory, in_files):
    last = in_files.cut / "checkpoints/last.ckpt"
    with pytest.raises(ConfigError, match="client states in files"):
        fit(in_memory[0], tmp_path, rounds=4, ckpt_path=str(last))


def test_memory_stays_at_a_few_models(tmp_path):
    """In memory, 24 clients' states alone are 24 models, and new ones are staged beside them."""
    grown = tmp_path / "grown"
    assert ended(forked(peak_memory.fit, tmp_path, 24, 0, grown), timeout=200) == 0
    assert float(grown.read_text()) < 15
    shutil.rmtree(tmp_path / "peak")
