"""Arguments that Lightning would meet with a traceback, or with processes beyond number: one message, no folder."""

import pytest

from lit_fed import FederatedTrainer
from lit_fed.cli import main
from lit_fed.trainer import is_several
from lit_fed.training.strategy import FederatedStrategy

FIT = [
    "fit",
    "--data.dataset",
    "Digits",
    "--data.num_clients",
    "4",
    "--trainer.accelerator",
    "cpu",
    "--model.algorithm",
    "FedAvg",
]
SEEDS = "give a number from 0 to 4294967295"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--seed_everything", "-1"], ["--seed_everything is -1", SEEDS]),
        (["--seed_everything", "4294967296"], ["--seed_everything is 4294967296", SEEDS]),
        (["--seed_everything", "99999999999999999999999"], ["--seed_everything is 99999999999999999999999", SEEDS]),
        (["--trainer.check_val_every_n_epoch", "0"], ["--trainer.check_val_every_n_epoch is 0", ">= 1"]),
        (["--trainer.devices", "1000000", "--trainer.strategy", "fed_ddp"], ["--trainer.devices is 1000000", "cores"]),
        (["--trainer.max_epochs", "-1"], ["--trainer.max_epochs is -1", "--trainer.max_time"]),
        (["--trainer.max_time", "00:00:00:00"], ["--trainer.max_time", "0 seconds"]),
        (
            ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/acc"],
            ["EarlyStopping.monitor is val/acc", "--data.val_fraction 0.1", "val/seen/accuracy"],
        ),
        (["--trainer.callbacks+=EMAWeightAveraging"], ["EMAWeightAveraging, which cannot work on rounds"]),
    ],
)
def test_a_message_and_no_folder(capsys, monkeypatch, tmp_path, arguments, parts):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        main([*FIT, "--trainer.default_root_dir", str(tmp_path / "out"), *arguments])
    said = capsys.readouterr().err
    assert stopped.value.code == 2, said
    assert len(said.splitlines()) == 1
    assert all(part in said for part in parts), said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", ["0", "4294967295", "true"])
def test_every_seed_that_generators_take(monkeypatch, seed):
    class ParsedError(Exception):
        pass

    def stop(_):
        raise ParsedError

    monkeypatch.setattr("lit_fed.cli.FederatedCLI.before_instantiate_classes", stop)
    with pytest.raises(ParsedError):
        main([*FIT, "--seed_everything", seed])


@pytest.mark.parametrize(("given", "divided"), [({"devices": 2}, True), ({"devices": "1"}, False), ({}, False)])
def test_several_devices_divide_the_clients_unless_told_otherwise(given, divided):
    """Lightning's own choice is ddp, which names no lost rank."""
    for strategy in ({}, {"strategy": "auto"}):
        trainer = FederatedTrainer(accelerator="cpu", logger=False, **strategy, **given)
        assert isinstance(trainer.strategy, FederatedStrategy) == divided
    assert not isinstance(FederatedTrainer(accelerator="cpu", strategy="ddp", **given).strategy, FederatedStrategy)


@pytest.mark.parametrize("given", [2, "2", -1, "-1", [0, 1], "0,1"])
def test_several_devices(given):
    assert is_several(given)


@pytest.mark.parametrize("given", [None, "auto", 1, "1", [0], "0,", 0])
def test_one_device(given):
    assert not is_several(given)
