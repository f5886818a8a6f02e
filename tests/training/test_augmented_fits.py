"""Fits with augmentation: cut off and continued, refused with another one, and served from the checkpoint alone."""

import numpy as np
import pytest
from lightning.pytorch import seed_everything
from quiet import assert_same_state, quiet_trainer
from running import history

from lit_fed import FederatedModule, personalize
from lit_fed.algorithms import FedAvgPlus
from lit_fed.callbacks import RunReport
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

AUGMENT = "RandomHorizontalFlip, RandomCrop(8, padding=1)"


def fit(out, rounds=3, augment=AUGMENT, ckpt_path=None, client_trainer="auto", **logger):
    seed_everything(0, verbose=False)
    module = FederatedModule(FedAvgPlus(), client_trainer=client_trainer)
    data = FederatedDataModule(Digits(), num_clients=4, unseen_fraction=0.25, batch_size=64, augment=augment)
    trainer = quiet_trainer(rounds, out, callbacks=[RunReport(pictures=False)], **logger)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    trainer.test(module, datamodule=data)
    return module, trainer, data


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("whole"))


def test_a_run_that_goes_on_equals_the_whole(whole, tmp_path):
    module, trainer, _ = whole
    _, first, _ = fit(tmp_path, rounds=1)
    last = f"{first.log_dir}/checkpoints/last.ckpt"
    for other in (None, "RandomHorizontalFlip"):
        with pytest.raises(ConfigError, match=r"another run: data\.augment is .*, in the checkpoint"):
            fit(tmp_path / "other", augment=other, ckpt_path=last)
    resumed, second, _ = fit(tmp_path, ckpt_path=last, version=0, keep_rounds=1)
    assert history(second.log_dir) == history(trainer.log_dir)
    assert_same_state(module, resumed)


def test_it_changes_the_training(whole, tmp_path):
    plain, _, _ = fit(tmp_path, augment=None)
    assert abs(plain.results["test/seen/loss"] - whole[0].results["test/seen/loss"]) > 1e-3


def test_a_client_is_tuned_on_the_same_pictures_from_a_checkpoint_alone(whole, tmp_path):
    module, trainer, data = whole
    (tmp_path / "new").mkdir()
    parts = {name: getattr(data.unseen, name).client(3) for name in ("train", "test")}
    arrays = {f"{axis}_{name}": getattr(one, axis).numpy() for name, one in parts.items() for axis in "xy"}
    np.savez(tmp_path / "new/3.npz", **arrays)
    table = personalize(
        quiet_trainer(), FederatedModule(FedAvgPlus()), f"{trainer.log_dir}/checkpoints/last.ckpt",
        str(tmp_path / "new"), str(tmp_path / "served"),
    )  # fmt: skip
    assert table["loss"].tolist() == pytest.approx([module.results["test/unseen/loss"]], abs=1e-6)
