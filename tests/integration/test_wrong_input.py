"""Wrong input ends with a message that names the value, the place and the fix; nothing is trained or written."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from running import SMALL, folder, numbers, run, start

from lit_fed.cli import main

BASE = ["fit", "--data.dataset", "Digits", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "1"]


def message(capsys, arguments, status=2):
    """What the command line says when it refuses; its standard output must stay silent about results."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == status
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 24
    return said


def clients(root, **changes):
    """A folder of two good clients."""
    rng = np.random.default_rng(0)
    (root / "seen").mkdir(parents=True)
    for name in ("ann", "bob"):
        arrays = {
            "x_train": rng.normal(size=(6, 3)).astype(np.float32), "y_train": np.array([0, 1, 2, 0, 1, 2]),
            "x_test": rng.normal(size=(3, 3)).astype(np.float32), "y_test": np.array([0, 1, 2]),
        }  # fmt: skip
        if name == "bob":
            arrays |= changes
        np.savez(root / "seen" / f"{name}.npz", **arrays)
    return root


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model.algorithm", "FedEmm"], ["FedEmm", "model.algorithm", "FedEM", "FedAvg"]),
        (["--model.algorithm", "FedEM", "--model.algorithm.num_component", "3"], ["num_component"]),
        (["--model.algorithm", "FedEM", "--model.algorithm.num_components", "abc"], ["num_components", "int", "abc"]),
        (["--model.solver.optimizer", "lion"], ["optimizer", "lion", "sgd"]),
        (["--model.network", "Lineer"], ["Lineer", "model.network", "Linear"]),
        (["--data.num_clients", "5000"], ["5000", "1797"]),
        (["--data.clients_per_round", "100"], ["100", "20"]),
        (["--model.algorithm.num_components", "1000000000"], ["1000000000 initial models", "GB are free", "lower"]),
        (
            ["--data.dataset", "Synthetic", "--data.dataset.dimension", "10000000000000"],
            ["dimension = 10000000000000", "GB are free", "choose smaller sizes"],
        ),
        (["--data.test_fraction", "0.7", "--data.val_fraction", "0.4"], ["1.1", "less than 1"]),
        (["--data.batch_size", "-4"], ["batch_size", "-4"]),
        (["--data.partition", "Dirichlet", "--data.partition.alpha", "-1"], ["Dirichlet", "alpha", "-1", "> 0"]),
        (["--data.dataset", "Synthetic", "--data.num_clients", "30"], ["num_clients", "partitions"]),
        (["--data.dataset", "ClientFolder"], ["data.dataset.root"]),
        (["--data.dataset", "ClientFolder", "--data.dataset.root", "no/such/folder"], ["no/such/folder"]),
        (["--model.client_trainer", "vectorised"], ["client_trainer", "vectorised", "vectorized"]),
        (["--model.network", "LeafCNN", "--model.client_trainer", "vectorized"], ["LeafCNN|dropout", "sequential"]),
        (["--trainer.fast_dev_run", "true"], ["fast_dev_run", "max_epochs"]),
        (["--trainer.limit_train_batches", "0.5"], ["limit_train_batches", "client_fraction"]),
        (["--trainer.gradient_clip_val", "1.0"], ["gradient_clip_val", "clip_norm"]),
        (["--trainer.precision", "16-mixed"], ["precision", "16-mixed", "bf16-mixed", "gradient scaler"]),
        (["--ckpt_path", "last"], ["ckpt_path", "last", "default_root_dir"]),
        (["--ckpt_path", "nothing.ckpt"], ["nothing.ckpt", "no such file"]),
        (["--trainer.default_root_dir", "/proc/nowhere"], ["/proc/nowhere", "choose a folder"]),
        (["--config", "no.yaml"], ["no.yaml"]),
        (["--model.algoritm", "FedEM"], ["--model.algoritm", "did you mean --model.algorithm?"]),
        (["--lr", "0.1"], ["--lr", "did you mean --model.solver.lr?"]),
        (["--trainer.epochs", "3"], ["--trainer.epochs", "--trainer.max_epochs"]),
        (["FedEM"], ["unrecognized arguments: FedEM"]),
        (["--model.algorithm"], ["--model.algorithm", "expected one argument"]),
        (["--model.algorithm", "fedem"], ["did you mean FedEM?"]),
        (["--model.algorithm", "my.module.Own"], ["my.module.Own", "No module named 'my'"]),
        (["--model.solver.lr", "fast"], ["--model.solver.lr: ", "Given value: fast"]),
        (["--trainer.max_epochs", "-3"], ["max_epochs", "-3"]),
        (
            ["--data.partition", "Dirichlet", "--data.partition.alpha", "x"],
            ["partition", "alpha", "float", "x"],
        ),
        (["--data.dataset.download", "true"], ["--data.dataset", "'download' is not accepted", ".help NAME"]),
        (["--data.dataset", "CIFAR10"], ["--data.dataset.root data", "CIFAR10", "--data.dataset.download true"]),
        (["--trainer.accelerator", "tpu"], ["--trainer.accelerator", "tpu", "cpu"]),
        (["--trainer.strategy", "fed"], ["strategy", "'fed'", "auto"]),
        (["--trainer.callbacks+=Nope"], ["--trainer.callbacks", "Nope"]),
        (["--config", "."], ["--config", "not a file"]),
        (["--ckpt_path", __file__], ["--ckpt_path", "test_wrong_input.py", "cannot be read"]),
    ],
    ids=lambda value: "_".join(value)[:60] if isinstance(value, list) and value[0].startswith("--") else "",
)
def test_arguments(capsys, tmp_path, arguments, parts):
    default = [] if "--trainer.default_root_dir" in arguments else ["--trainer.default_root_dir", str(tmp_path / "out")]
    said = message(capsys, [*BASE, *default, *arguments])
    for part in parts:
        assert any(one in said for one in part.split("|")), said
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["fitt"], ["fitt", "personalize"]),
        (["validate", "--ckpt_path", "last"], ["--ckpt_path last", "no checkpoint under"]),
        (["predict"], ["--ckpt_path is not set"]),
        (["personalize", "--ckpt_path", "nothing.ckpt"], ["nothing.ckpt", "no such file"]),
        (["partition", "--outptu", "x"], ["--outptu", "did you mean --output?"]),
        (["partition", "--data.dataset", "Nope"], ["--data.dataset", "Nope", "Digits"]),
        (["fit", "--model.algorithm.help", "Nope"], ["--model.algorithm.help", "Nope"]),
    ],
)
def test_commands(capsys, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    said = message(capsys, arguments)
    for part in parts:
        assert part in said, said
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_there_is_not(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    arguments = [*BASE, "--trainer.accelerator", "gpu", "--trainer.default_root_dir", str(tmp_path / "out")]
    assert "--trainer.accelerator is gpu, and PyTorch finds no GPU here; choose cpu" in message(capsys, arguments)


def test_measuring_models_that_are_not_trained_is_said(capsys):
    main(["test", *BASE[1:], "--data.num_clients", "4"])
    assert "test without --ckpt_path: of models not yet trained" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"x_train": np.full((6, 3), np.nan, np.float32)}, ["bob", "x_train", "NaN"]),
        ({"y_test": np.array([0, 1, 7])}, ["bob", "7", "test"]),
        ({"y_train": np.array([0, 1])}, ["bob", "y_train"]),
        ({"x_train": np.zeros((0, 3), np.float32), "y_train": np.zeros(0, np.int64)}, ["bob", "x_train|train"]),
    ],
)
def test_client_folder(capsys, tmp_path, changes, parts):
    root = clients(tmp_path / "data", **changes)
    arguments = [*BASE, "--data.dataset", "ClientFolder", "--data.dataset.root", str(root)]
    said = message(capsys, [*arguments, "--trainer.default_root_dir", str(tmp_path / "out")])
    for part in parts:
        assert any(one in said for one in part.split("|")), said
    assert not list(tmp_path.rglob("version_*"))


def test_labels_that_do_not_fit_the_network(capsys, tmp_path):
    tokens = {"x_train": np.arange(18).reshape(6, 3), "x_test": np.zeros((3, 3), np.int64)}
    root = clients(tmp_path / "data", **tokens)
    (root / "seen/ann.npz").unlink()
    arguments = [*BASE, "--data.dataset", "ClientFolder", "--data.dataset.root", str(root)]
    arguments += ["--model.network", "CharLSTM", "--trainer.default_root_dir", str(tmp_path / "out")]
    said = message(capsys, arguments)
    for part in ("CharLSTM", "returns [B, 3, 3]", "should return [B, 3]", "--model.network"):
        assert part in said, said
    assert not list(tmp_path.rglob("version_*"))


def test_empty_folder_and_truncated_file(capsys, tmp_path):
    out = ["--trainer.default_root_dir", str(tmp_path / "out")]
    (tmp_path / "empty/seen").mkdir(parents=True)
    folder_data = [*BASE, *out, "--data.dataset", "ClientFolder", "--data.dataset.root"]
    assert "empty" in message(capsys, [*folder_data, str(tmp_path / "empty")])
    root = clients(tmp_path / "data")
    whole = (root / "seen/bob.npz").read_bytes()
    (root / "seen/bob.npz").write_bytes(whole[: len(whole) // 2])
    assert "bob.npz" in message(capsys, [*folder_data, str(root)])


def test_nan_in_training_names_client_and_round(capsys, tmp_path):
    arguments = [*BASE, "--model.solver.lr", "1e38", "--trainer.max_epochs", "5", "--data.num_clients", "4"]
    said = message(capsys, [*arguments, "--trainer.default_root_dir", str(tmp_path)])
    assert "client" in said
    assert "round" in said
    assert "model.solver.lr" in said


def test_checkpoint_of_another_run(capsys, tmp_path):
    out = ["--trainer.default_root_dir", str(tmp_path), "--name", "run"]
    main([*BASE, *out, "--model.algorithm", "FedEM"])
    last = folder(tmp_path, "run") / "checkpoints/last.ckpt"
    before = last.read_bytes()
    capsys.readouterr()
    for change, parts in (
        (["--model.algorithm", "FedAvg"], ["algorithm", "FedAvg", "FedEM"]),
        (["--data.num_clients", "7"], ["num_clients", "7"]),
        (["--data.seed", "5"], ["seed", "5"]),
        (["--seed_everything", "9"], ["seed_everything", "9"]),
        (["--model.solver.lr", "0.7"], ["lr", "0.7"]),
    ):
        said = message(capsys, [*BASE, *out, "--ckpt_path", "last", "--model.algorithm", "FedEM", *change])
        for part in parts:
            assert part in said, said
    said = message(capsys, ["validate", "--ckpt_path", str(last), "--model.algorithm", "FedAvg"])
    assert "FedAvg" in said
    last.write_bytes(before[:-100])
    assert "last.ckpt" in message(capsys, [*BASE, *out, "--ckpt_path", "last", "--model.algorithm", "FedEM"])
    last.write_bytes(before)
    main([*BASE, *out, "--ckpt_path", "last", "--model.algorithm", "FedEM", "--trainer.max_epochs", "2"])
    assert numbers(folder(tmp_path, "run"))["rounds"] == 2
    assert not folder(tmp_path, "run", 1).exists()


def test_data_that_changed_under_a_checkpoint(capsys, tmp_path):
    root = clients(tmp_path / "data")
    arguments = [*BASE, "--data.dataset", "ClientFolder", "--data.dataset.root", str(root)]
    arguments += ["--trainer.default_root_dir", str(tmp_path / "out")]
    main(arguments)
    capsys.readouterr()
    clients(tmp_path / "other", y_test=np.array([0, 1, 1]))
    (tmp_path / "other/seen/bob.npz").replace(root / "seen/bob.npz")
    assert "data" in message(capsys, [*arguments, "--ckpt_path", "last"])


def test_interrupt_leaves_the_last_good_checkpoint(tmp_path):
    arguments = ["fit", *SMALL, "--trainer.max_epochs", "100000", "--model.algorithm", "FedEM"]
    child = start([*arguments, "--trainer.default_root_dir", str(tmp_path)])
    last = folder(tmp_path, "FedEM") / "checkpoints/last.ckpt"
    deadline = time.monotonic() + 60
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert "--ckpt_path last" in said
    assert not list(Path(tmp_path).rglob("*.partial"))
    assert not list(Path(tmp_path).rglob("summary.json"))
    tested = run(["test", "--ckpt_path", str(last)])
    assert tested.returncode == 0, tested.stderr
    assert "seen" in tested.stdout


def test_a_class_of_a_users_file_is_named_with_its_module(capsys, tmp_path, monkeypatch):
    (tmp_path / "own_half.py").write_text("from lit_fed import FedAvg\n\n\nclass Half(FedAvg):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "did you mean own_half.Half?" in message(capsys, [*BASE, "--model.algorithm", "own_half.Hal"])


def test_a_key_that_nobody_logs_where_any_callback_may_log_one(capsys, tmp_path, monkeypatch):
    (tmp_path / "own_callback.py").write_text(
        "from lightning.pytorch import Callback\n\n\nclass Own(Callback):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [*BASE, "--data.num_clients", "4", "--trainer.default_root_dir", str(tmp_path / "out")]
    arguments += ["--trainer.callbacks+=own_callback.Own", "--trainer.callbacks+=EarlyStopping"]
    said = message(capsys, [*arguments, "--data.val_fraction", "0.2", "--trainer.callbacks.monitor", "val/seen/nope"])
    assert "val/seen/nope" in said
    assert "val/seen/accuracy" in said


def test_debug_shows_the_traceback():
    refused = run(["fit", "--model.algorithm", "FedEmm"], LIT_FED_DEBUG="1")
    assert refused.returncode != 0
    assert "Traceback" in refused.stderr
