"""Arguments of both modules that are objects: instances, classes, names and paths; anything else is refused by name."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from combination import option

from lit_fed import (
    IID,
    MLP,
    Digits,
    FedAvg,
    FedEM,
    FederatedDataModule,
    FederatedModule,
    FedProx,
    LocalSolver,
    Regression,
    Sine,
)  # fmt: skip
from lit_fed.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Needs(FedAvg):
    """An algorithm with a setting that has no default."""

    size: int


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_objects.py").write_text(
        "from torch import nn\nfrom lit_fed import FedAvg\nclass Mine(FedAvg):\n    pass\n"
        "def net(in_features, num_classes) -> nn.Module:\n    return nn.Linear(in_features, num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_objects", None)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"algorithm": "FedAvg"}, FedAvg()), ({"algorithm": FedEM}, FedEM()), ({"algorithm": FedEM(2)}, FedEM(2)),
        ({"algorithm": "lit_fed.algorithms.FedProx"}, FedProx()), ({"solver": "LocalSolver"}, LocalSolver()),
        ({"solver": LocalSolver}, LocalSolver()), ({"network": "MLP"}, MLP), ({"network": MLP}, MLP),
        ({"network": "torch.nn.Linear"}, torch.nn.Linear), ({"target": "Regression"}, Regression()),
        ({"target": Regression}, Regression()), ({"loss": None}, None),
    ],
    ids=str,
)  # fmt: skip
def test_the_model_takes_objects_classes_and_names(given, made):
    (name,) = given
    assert option(FederatedModule(**{"algorithm": "FedAvg", **given}).settings, name) == made


@pytest.mark.parametrize("name", ["QSGD", "Median", "SignFlip", "PowerOfChoice", "SecureSum", "Faults"])
def test_settings_of_wrappers_go_by_name(name):
    options = {
        "QSGD": "compression", "Median": "robust_aggregation", "SignFlip": "attack", "PowerOfChoice": "selection",
        "SecureSum": "secure_aggregation", "Faults": "faults",
    }  # fmt: skip
    settings = FederatedModule("FedAvg", **{options[name]: name}).settings
    assert type(option(settings, options[name])).__name__ == name


def test_objects_of_ones_own_go_by_path(own):
    module = FederatedModule("own_objects.Mine", network="own_objects.net")
    assert (type(module.settings.algorithm).__name__, module.settings.network.__name__) == ("Mine", "net")


@pytest.mark.parametrize("dataset", [Digits(), Digits, "Digits", "lit_fed.data.Digits"])
def test_the_data_take_objects_classes_and_names(dataset):
    data = FederatedDataModule(dataset, partition="IID", poison="LabelFlip", attackers=1)
    assert (data.dataset, data.partition) == (Digits(), IID())
    assert type(data.poison).__name__ == "LabelFlip"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"solver": 0.1}, r"--model.solver is 0.1; give an object, a class or a name of LocalSolver, such as "
         r"LocalSolver; for a learning rate write LocalSolver\(lr=0.1\)"),
        ({"algorithm": 3}, r"--model.algorithm is 3; give an object"),
        ({"algorithm": LocalSolver}, r"--model.algorithm is LocalSolver; give an object"),
        ({"algorithm": None}, "--model.algorithm is None; give an object"),
        ({"algorithm": "FedMe"}, "--model.algorithm: there is no class FedMe; did you mean"),
        ({"algorithm": "nowhere.Mine"}, r"--model.algorithm: there is no class nowhere.Mine \(No module named"),
        ({"network": 5}, r"--model.network is 5; give an object"),
        ({"loss": 1.0}, r"--model.loss is 1.0; give an object"),
        ({"algorithm": Needs}, r"--model.algorithm Needs needs arguments \(.*'size'\); give Needs\(...\)"),
        ({"faults": {"dropout": 0.1}}, r"--model.faults is \{'dropout': 0.1\}; give an object"),
        ({"attack": [1]}, r"--model.attack is \[1\]; give an object"),
    ],
    ids=str,
)  # fmt: skip
def test_other_values_of_the_model_are_refused_by_name(given, said):
    with pytest.raises(ConfigError, match=said):
        FederatedModule(**given)


SAMPLES = {"ann": (np.zeros((200, 3), np.float32), np.zeros(200, int))}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dataset": {"x": 1}}, r"--data.dataset is \{'x': 1\}; .* call FederatedDataModule.from_clients\("),
        ({"dataset": SAMPLES}, r"--data.dataset is a dict; .* FederatedDataModule.from_clients\("),
        ({"dataset": None}, "--data.dataset is None"), ({"partition": 5}, r"--data.partition is 5; give an object"),
        ({"poison": Sine}, r"--data.poison is Sine; give an object"),
    ],
    ids=["dict", "samples", "none", "number", "other kind"],
)  # fmt: skip
def test_other_values_of_the_data_are_refused_by_name(given, said):
    with pytest.raises(ConfigError, match=said):
        FederatedDataModule(**given)
