"""A module after a fit as a file of Python's own: it comes back with all that it predicts by, and without samples."""

import io
import pickle
from functools import partial

import joblib
import pytest
import torch
from quiet import assert_same_state, quiet_trainer
from torch import nn

from lit_fed import MLP, FedAvg, FedEM, FederatedModule, Local
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.wrappers.compression.codecs import TopK
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.robust.attacks import SignFlip
from lit_fed.wrappers.robust.rules import Krum

NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
PRIVACY = ClientPrivacy(noise_multiplier=1.0, clip_norm=1.0, delta=1e-3)

SETTINGS = {
    "plain": (FedEM(), {}, {}),
    "metrics": (FedEM(), {"metrics": "AUROC", "client_trainer": "sequential"}, {"val_fraction": 0.2}),
    "instance": (FedEM(), {"network": NETWORK}, {}),
    "frozen": (FedAvg(), {"network": partial(MLP, hidden_sizes=(8,)), "trainable": "head"}, {}),
    "augmented": (FedAvg(), {}, {"augment": "RandomHorizontalFlip, RandomCrop(8, padding=1)"}),
    "private": (FedAvg(), {"privacy": PRIVACY}, {"client_sampling": "poisson"}),
    "faults": (FedAvg(), {"faults": Faults(dropout=0.3), "compression": TopK()}, {}),
    "attacked": (FedAvg(), {"robust_aggregation": Krum(num_attackers=1), "attack": SignFlip()}, {"attackers": 1}),
    "files": (Local(), {"client_memory_gb": 0.0}, {}),
}

WAYS = {
    "pickle": (pickle.dump, pickle.load),
    "torch": (torch.save, partial(torch.load, weights_only=False)),
    "joblib": (joblib.dump, joblib.load),
}


def trainer_of(folder, rounds=2):
    return quiet_trainer(rounds, default_root_dir=str(folder))


def again(module, way):
    """The module that comes out of a file, and the file."""
    dump, load = WAYS[way]
    file = io.BytesIO()
    dump(module, file)
    file.seek(0)
    return load(file), file.getvalue()


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_module_is_pickled_after_a_fit(kind, tmp_path):
    algorithm, settings, options = SETTINGS[kind]
    data, module = FederatedDataModule(Digits(), num_clients=5, **options), FederatedModule(algorithm, **settings)
    trainer_of(tmp_path).fit(module, datamodule=data)
    wanted = trainer_of(tmp_path).predict(module, datamodule=data)
    samples = data.seen.train.x
    for way in WAYS:
        found, content = again(module, way)
        assert trainer_of(tmp_path).predict(found, datamodule=data).equals(wanted), way
        assert samples[:2].numpy().tobytes() not in content


def test_a_module_that_comes_back_is_trained_on(tmp_path):
    data, module = FederatedDataModule(Digits(), num_clients=5, client_fraction=0.4), FederatedModule(Local())
    trainer_of(tmp_path, 1).fit(module, datamodule=data)
    found, _ = again(module, "torch")
    for one in (module, found):
        trainer_of(tmp_path, 1).fit(one, datamodule=data)
    assert_same_state(module, found)
