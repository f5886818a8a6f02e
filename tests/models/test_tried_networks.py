"""User-defined networks that a trial run finds out about before the first round."""

import numpy as np
import pytest
import torch
from quiet import quiet_trainer
from torch import nn
from torch.nn import functional as F

from lit_fed import FedAvg, FederatedDataModule, FederatedModule, LocalSolver, Multiclass
from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


class Net(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.first, self.last, self.change = nn.Linear(6, 4), nn.Linear(4, 2), change

    def forward(self, x):
        return self.last(self.change(self, self.first(x)))


def fitted(change, trainer="auto", **settings):
    """Losses of the clients, whose last batches of 8 have 1, 4 and 7 samples."""
    clients = {"a": (X[:25], Y[:25]), "b": (X[25:37], Y[25:37]), "c": (X[37:], Y[37:])}
    data = FederatedDataModule.from_clients(clients, batch_size=8)
    module = FederatedModule(
        FedAvg(), LocalSolver(lr=0.1), lambda in_features, num_outputs: Net(change), client_trainer=trainer,
        target=Multiclass(2), **settings,
    )  # fmt: skip
    runner = quiet_trainer(2)
    runner.fit(module, data)
    runner.test(module, data)
    return module.results["test/seen/loss"]


CHANGES = {
    "centred": lambda net, x: x - x.mean(0),
    "item": lambda net, x: x / x.abs().max().item(),
    "dropout": lambda net, x: F.dropout(x, 0.5, net.training),
}


@pytest.mark.parametrize("name", CHANGES)
def test_auto_trains_one_after_another_and_says_so(name, capsys):
    loss = fitted(CHANGES[name])
    assert "one after another" in capsys.readouterr().err
    assert loss == fitted(CHANGES[name], "sequential")
    with pytest.raises(ConfigError, match=r"client_trainer vectorized cannot train a network with .*; use sequential"):
        fitted(CHANGES[name], "vectorized")


def test_gradients_of_samples_need_samples_that_do_not_interact():
    privacy = ExamplePrivacy(1.0, clip_norm=1.0, delta=1e-5, sample_rate=0.5)
    with pytest.raises(ConfigError, match="Net, which looks at whole batches"):
        fitted(CHANGES["centred"], "sequential", privacy=privacy)


def test_networks_of_other_types_get_words(capsys):
    with pytest.raises(ConfigError, match=r"leave out casts of them, such as \.double\(\)"):
        fitted(lambda net, x: x.double())
    data = FederatedDataModule.from_clients({"a": (X, Y), "b": (X, Y)})
    module = FederatedModule(FedAvg(), network=nn.Linear(6, 2, dtype=torch.float64), target=Multiclass(2))
    quiet_trainer(1).fit(module, data)
    assert "Linear has parameters of torch.float64, which are trained as float32" in capsys.readouterr().err
