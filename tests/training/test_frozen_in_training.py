"""A frozen body of random weights, whole runs: checkpoints hold it once, and give it back exactly."""

import numpy as np
import pandas as pd
import pytest
import torch
from fit_all import fit
from lightning.pytorch import seed_everything
from running import folder, history
from torch import nn

from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.callbacks import FederatedCallback
from lit_fed.core.errors import ConfigError
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.models import Network


class RandomFeatures(Network):
    """A trained layer on random features of an image."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Tanh(), nn.Flatten()).requires_grad_(False)
        self.head = nn.Linear(75, num_outputs)

    def forward(self, x):
        return self.head(self.body(x))


class Lazy(Network):
    """Layers whose sizes follow from the images."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(num_outputs)
        )

    def forward(self, x):
        return self.layers(x)


class KeepHalf(FederatedCallback):
    """Keeps a checkpoint of the first two rounds."""

    def __init__(self, path):
        self.path = path

    def on_validation_end(self, trainer, pl_module):
        if pl_module.num_rounds_done == 2:
            trainer.save_checkpoint(self.path)


BODY = 3 * (16 + 1)
HEAD = 10 * (75 + 1)
MODEL = {"network": RandomFeatures, "init_seeds": [4, 5, 6]}
FROZEN = {"frozen__body_0_weight", "frozen__body_0_bias"}


def trainer(tmp_path):
    return FederatedTrainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=tmp_path,
    )  # fmt: skip


def digits():
    return FederatedDataModule(
        Digits(), num_clients=8, unseen_fraction=0.25, client_fraction=0.7, clients_per_block=2, batch_size=32
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """FedEM after four rounds: module, folder, and a checkpoint of two rounds."""
    out = tmp_path_factory.mktemp("whole")
    module, _ = fit("FedEM", out, rounds=4, model=MODEL, callbacks=[KeepHalf(out / "half.ckpt")])
    return module, folder(out, "FedEM"), out / "half.ckpt"


def test_a_checkpoint_holds_one_copy_and_messages_none(run):
    _, out, _ = run
    content = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
    leaves = {name: leaf for name, leaf in content["state_dict"].items() if "body" in name}
    assert set(leaves) == FROZEN
    assert sum(leaf.numel() for leaf in leaves.values()) == BODY
    torch.manual_seed(4)
    first = RandomFeatures((1, 8, 8), 10)
    assert torch.equal(leaves["frozen__body_0_weight"], first.body[0].weight)
    table = pd.read_csv(out / "metrics.csv")
    assert (table["comm/bytes_down"].dropna() == 4 * 3 * 4 * HEAD).all()  # four clients, three models, four bytes each


def test_resume_equals_uninterrupted(run, tmp_path):
    module, out, half = run
    resumed, _ = fit("FedEM", tmp_path, rounds=4, model=MODEL, ckpt_path=str(half))
    for key, leaf in module.state_dict().items():
        assert torch.equal(leaf, resumed.state_dict()[key]), key
    assert history(out)[-1] == history(folder(tmp_path, "FedEM"))[-1]


def test_what_serves_clients_is_restored_whatever_the_build_draws(run, tmp_path):
    """Test, predict, export and personalize in a process whose random weights would be others."""
    module, out, _ = run
    ckpt_path = str(out / "checkpoints/last.ckpt")
    seed_everything(3, verbose=False)
    other = MODEL | {"init_seeds": [7, 8, 9]}
    solver = LocalSolver(momentum=0.9, persist_optimizer=True)
    one, data, serving = FederatedModule(FedEM(), solver, **other), digits(), trainer(tmp_path)
    (found,) = serving.test(one, datamodule=data, ckpt_path=ckpt_path, verbose=False)
    assert found["test/seen/loss"] == np.float32(module.results["test/seen/loss"])
    table = serving.predict(one, datamodule=data, population="unseen", output=str(tmp_path / "p.csv"))
    rows = table[table["client_id"] == 7]
    expected = rows[[name for name in rows if name.startswith("p_")]].to_numpy()
    name, x = data.unseen.names[1], data.unseen.test.client(7).x
    path = tmp_path / "client.pt2"
    serving.export(one, data, client=name, output=str(path))
    np.testing.assert_allclose(torch.export.load(path).module()(x).detach(), expected, rtol=0, atol=1e-6)

    (tmp_path / "new").mkdir()
    for position in (0, 1):
        train, test = (split.client(6 + position) for split in (data.unseen.train, data.unseen.test))
        arrays = {"x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y}
        np.savez(tmp_path / f"new/client_{position}.npz", **{key: leaf.numpy() for key, leaf in arrays.items()})
    unseen_clients = FederatedModule(FedEM(), solver, **other)
    served = trainer(tmp_path).personalize(unseen_clients, ckpt_path, str(tmp_path / "new"), str(tmp_path / "served"))
    hits = (rows["label"] == rows["prediction"]).mean()
    np.testing.assert_allclose(served["accuracy"].iloc[1], hits, rtol=1e-12)
    assert torch.equal(unseen_clients.frozen__body_0_weight, module.frozen__body_0_weight)


def test_bf16_and_algorithms_for_linear_models(tmp_path):
    """Initial states are made outside autocast, and rounds inside."""
    module, _ = fit("MOCHA", tmp_path, rounds=1, precision="bf16-mixed")
    assert module.results["test/seen/accuracy"] > 0.3
    module, _ = fit("SharingADMM", tmp_path, rounds=1, precision="bf16-mixed")
    assert all(leaf.dtype == torch.float32 for name, leaf in module.state_dict().items() if name.endswith("_fit"))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_get_their_sizes_from_the_samples(tmp_path):
    class Eager(Lazy):
        def __init__(self, input_shape, num_outputs):
            super().__init__(input_shape, num_outputs)
            self.layers = nn.Sequential(
                nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(72, num_outputs)
            )

    results = []
    for network in (Lazy, Eager):
        seed_everything(3, verbose=False)
        module = FederatedModule(FedAvg(), LocalSolver(), network=network, client_trainer="sequential")
        trainer(tmp_path).fit(module, datamodule=digits())
        results.append(module.state_dict())
    lazy, eager = results
    assert lazy.keys() == eager.keys()
    for key, leaf in lazy.items():
        assert torch.equal(leaf, eager[key]), key


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_that_the_forward_pass_does_not_use(tmp_path):
    class Half(Lazy):
        def __init__(self, input_shape, num_outputs):
            super().__init__(input_shape, num_outputs)
            self.spare = nn.LazyLinear(2)

    with pytest.raises(ConfigError, match=r"Half has lazy layers .* does not use \(spare\.weight, spare\.bias\); give"):
        trainer(tmp_path).fit(FederatedModule(network=Half), datamodule=digits())
