"""Where models come from: a network that was given, a function by its path, another run's checkpoint."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from quiet import quiet_trainer
from torch import nn

from lit_fed import FederatedModule, client_table
from lit_fed.algorithms import APFL, FML, DFedEM, FedAvg, FedEM, Local
from lit_fed.callbacks import RunReport
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import CrossEntropy
from lit_fed.data import Digits, Sine
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear

STILL = LocalSolver(local_epochs=0)


def data(**options):
    return FederatedDataModule(Digits(), num_clients=4, clients_per_block=4, **options)


def trainer_of(folder, name="run", rounds=1):
    return quiet_trainer(rounds, folder, name, callbacks=[RunReport(pictures=False)])


def fitted(folder, module, name="run", rounds=1, **arguments):
    trainer_of(folder, name, rounds).fit(module, datamodule=data(), **arguments)
    return module


def parameters(module):
    return {name: leaf.detach() for name, leaf in module.named_parameters() if "parameters" in name}


def given_network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))


# ------------------------------------------------------------------ a network that was given
def test_an_instance_brings_its_weights(tmp_path):
    network = given_network()
    module = fitted(tmp_path, FederatedModule(FedAvg(), STILL, network))
    found = parameters(module)
    for name, leaf in network.named_parameters():
        assert torch.equal(found[f"models__parameters__{name.replace('.', '_')}"], leaf.unsqueeze(0))
    assert network.training  # the one that was given is nobody's template


def test_components_from_an_instance_differ_in_the_last_layer_alone(tmp_path):
    network = given_network()
    module = fitted(tmp_path, FederatedModule(FedEM(3), STILL, network))
    found = parameters(module)
    first, last = found["models__parameters__1_weight"], found["models__parameters__3_weight"]
    assert torch.equal(first, network[1].weight.detach().expand(3, 5, 64))
    assert not torch.equal(last[0], last[1])
    assert not torch.equal(last[0], network[3].weight)


def test_what_is_frozen_of_an_instance_is_its_own(tmp_path):
    network = given_network()
    for algorithm in (FedAvg(), FedEM(num_components=3)):
        name = type(algorithm).__name__
        module = fitted(tmp_path, FederatedModule(algorithm, STILL, network, trainable="head"), name)
        frozen, found = module.federation.terms.task.frozen, parameters(module)
        assert list(frozen) == ["1.weight", "1.bias"]
        assert all(torch.equal(leaf, network.get_parameter(path)) for path, leaf in frozen.items())
        heads = found["models__parameters__3_weight"]
        assert set(found) == {"models__parameters__3_weight", "models__parameters__3_bias"}
        assert torch.equal(heads[0], network[3].weight) == (name == "FedAvg")
    assert not torch.equal(heads[0], heads[1])


def test_an_instance_of_a_single_layer_cannot_start_a_mixture(tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ConfigError, match="Sequential has no other layer"):
        fitted(tmp_path, FederatedModule(FedEM(), STILL, network))


# ------------------------------------------------------------------ another run
@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Checkpoints of a run with one model, and of one with two."""
    folder = tmp_path_factory.mktemp("runs")
    for name, algorithm in (("one", FedAvg()), ("two", FedEM(num_components=2))):
        fitted(folder, FederatedModule(algorithm, network=MLP), name)
    return {name: str(folder / name / "version_0/checkpoints/last.ckpt") for name in ("one", "two")}


def leaves(path):
    state = torch.load(path, weights_only=True)["state_dict"]
    return {name: leaf for name, leaf in state.items() if name.startswith("models__parameters__")}


@pytest.mark.parametrize(("name", "algorithm"), [("one", FedAvg()), ("two", FedEM(2)), ("one", APFL())])
def test_as_many_models_are_taken_as_they_are(runs, tmp_path, name, algorithm):
    module = FederatedModule(algorithm, LocalSolver("adamw", local_epochs=0), MLP, loss=CrossEntropy())
    found = parameters(fitted(tmp_path, module, init_from=runs[name]))
    for key, leaf in leaves(runs[name]).items():
        assert torch.equal(found[key], leaf)


def test_clients_start_there_too(runs, tmp_path):
    module = fitted(tmp_path, FederatedModule(Local(), STILL, MLP), init_from=runs["one"])
    wanted = leaves(runs["one"])["models__parameters__layers_1_weight"]
    kept = [
        leaf for name, leaf in module.state_dict().items() if name.startswith("store") and "layers_1_weight" in name
    ]
    assert [list(leaf.shape) for leaf in kept] == [[4, *wanted.shape]]
    assert torch.equal(kept[0], wanted.expand_as(kept[0]))


def test_one_model_starts_several(runs, tmp_path, capsys):
    module = fitted(tmp_path, FederatedModule(FedEM(3), STILL, MLP), init_from=runs["one"])
    assert "has one model, from which all 3 start" in capsys.readouterr().err
    found, wanted = parameters(module), leaves(runs["one"])
    first, last = (f"models__parameters__layers_{number}_weight" for number in (1, 3))
    assert torch.equal(found[first], wanted[first].expand_as(found[first]))
    assert not torch.equal(found[last][0], found[last][1])


def test_a_run_says_where_it_came_from_and_goes_on(runs, tmp_path):
    whole = fitted(tmp_path, FederatedModule(FML(), network=MLP), "whole", 2, init_from=runs["one"])
    fitted(tmp_path, FederatedModule(FML(), network=MLP), "half", 1, init_from=runs["one"])
    path = str(tmp_path / "half/version_0/checkpoints/last.ckpt")
    stored = torch.load(path, weights_only=True)["lit_fed"]["init_from"]
    assert (stored["path"], stored["algorithm"], stored["rounds"]) == (runs["one"], "FedAvg", 1)
    trainer, module = trainer_of(tmp_path, "half", 2), FederatedModule(FML(), network=MLP)
    trainer.fit(module, datamodule=data(), ckpt_path=path)
    for name, leaf in parameters(whole).items():
        assert torch.equal(parameters(module)[name], leaf)
    trainer.test(module, datamodule=data())
    summary = json.loads((tmp_path / "half/version_1/summary.json").read_text())
    assert summary["init_from"] == {"path": runs["one"], "algorithm": "FedAvg", "rounds": 1}


@pytest.mark.parametrize(
    ("make", "arguments", "parts"),
    [
        (lambda: FederatedModule(network=MLP), {"init_from": "no.ckpt"}, ["--init_from no.ckpt: no such file"]),
        (
            lambda: FederatedModule(FedEM(num_components=3), network=MLP), {"init_from": "two"},
            ["has 2 models, and 3 are trained here"],
        ),
        (
            lambda: FederatedModule(FedAvg(), network=Linear), {"init_from": "one"},
            ["does not fit Linear: linear.weight is missing", "layers_1_weight is not in the network"],
        ),
        (
            lambda: FederatedModule(FedAvg(), network=lambda shape, outputs: MLP(shape, outputs, (7,))),
            {"init_from": "one"}, ["layers.1.weight is [200, 64], and [7, 64] here"],
        ),
        (
            lambda: FederatedModule(DFedEM(num_components=2), network=MLP), {"init_from": "two", "ckpt_path": "two"},
            ["leave one of them out"],
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(runs, tmp_path, make, arguments, parts):
    arguments = {name: runs.get(value, value) for name, value in arguments.items()}
    with pytest.raises(ConfigError) as refused:
        fitted(tmp_path, make(), **arguments)
    assert all(part in str(refused.value) for part in parts), refused.value


def half_frozen(seed):
    def network(shape, outputs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # what is frozen does not depend on the run
            made = MLP(shape, outputs)
        made.layers[1].requires_grad_(False)
        return made

    return network


def test_what_is_frozen_has_to_be_the_same(runs, tmp_path):
    fitted(tmp_path, FederatedModule(FedAvg(), STILL, half_frozen(1)), "frozen")
    path = str(tmp_path / "frozen/version_0/checkpoints/last.ckpt")
    found = parameters(fitted(tmp_path, FederatedModule(FedAvg(), STILL, half_frozen(1)), init_from=path))
    last = "models__parameters__layers_3_weight"
    assert torch.equal(found[last], leaves(path)[last])
    with pytest.raises(ConfigError, match="trained over other frozen parameters"):
        fitted(tmp_path, FederatedModule(FedAvg(), STILL, half_frozen(2)), init_from=path)
    with pytest.raises(ConfigError, match=r"trained layers\.1\.weight, layers\.1\.bias; these are frozen here"):
        fitted(tmp_path, FederatedModule(FedAvg(), STILL, half_frozen(1)), init_from=runs["one"])


def test_losses_that_do_not_go_together_are_refused(tmp_path):
    from lit_fed.algorithms import QFedAvg

    with pytest.raises(ConfigError, match="CrossEntropy, and QFedAvg takes a power of the log-loss"):
        FederatedModule(QFedAvg(), loss=CrossEntropy())
    module = FederatedModule(loss=CrossEntropy())
    with pytest.raises(ConfigError, match="these are regression"):
        trainer_of(tmp_path).fit(module, datamodule=FederatedDataModule(Sine()))


# ------------------------------------------------------------------ the meaning of inputs and classes
def sales(scale=1.0, seed=0, **names):
    """Rows of two shops; `b` decides the kind."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 1, 80), rng.normal(2, 0.5, 80)
    rows = pd.DataFrame({"shop": np.repeat(["x", "y"], 40), "a": a, "b": scale * b, "kind": np.where(b > 2, "p", "q")})
    return rows.replace({"kind": names})


def table(rows):
    return FederatedDataModule.from_frame(rows, client="shop", label="kind")


@pytest.fixture(scope="module")
def sold(tmp_path_factory):
    """A checkpoint of a run on a table."""
    folder = tmp_path_factory.mktemp("sold")
    trainer_of(folder, "sold", 10).fit(FederatedModule(FedAvg(), LocalSolver(lr=1.0)), datamodule=table(sales()))
    return str(folder / "sold/version_0/checkpoints/last.ckpt")


def test_models_mean_the_same_after_a_warm_start(sold, tmp_path):
    accuracies = []
    changed = sales()[["b", "shop", "kind", "a"]], pd.concat([sales(), sales(1.5, 1, p="q").assign(shop="z")])
    for rows in (sales(), *changed):
        module, trainer = FederatedModule(FedAvg(), STILL), trainer_of(tmp_path, "again", 1)
        trainer.fit(module, datamodule=table(rows), init_from=sold)
        trainer.test(module, datamodule=table(rows))
        assert module.facts.columns.input_names == ["a", "b"]
        clients = client_table(trainer).query("client in ['x', 'y']")
        accuracies.append(clients["accuracy"].tolist())
    assert accuracies[0] == accuracies[1] == accuracies[2]
    assert min(accuracies[0]) > 0.9


def test_a_run_that_began_so_goes_on_and_is_tested_in_the_same_terms(sold, tmp_path):
    rows = sales(3.0, 1)[["b", "shop", "kind", "a"]]
    module = FederatedModule(FedAvg(), LocalSolver(lr=0.1))
    trainer_of(tmp_path, "run", 1).fit(module, datamodule=table(rows), init_from=sold)
    path = str(tmp_path / "run/version_0/checkpoints/last.ckpt")
    again = FederatedModule(FedAvg(), LocalSolver(lr=0.1))
    trainer_of(tmp_path, "run", 2).fit(again, datamodule=table(rows), ckpt_path=path)
    assert again.facts.normalisation == module.facts.normalisation
    tested = trainer_of(tmp_path, "run", 1)
    tested.test(FederatedModule(FedAvg(), LocalSolver(lr=0.1)), datamodule=table(rows), ckpt_path=path)
    with pytest.raises(ConfigError, match=r"--ckpt_path .*'new' is no class of that training"):
        tested.test(FederatedModule(FedAvg()), datamodule=table(sales(p="new")), ckpt_path=path)


def test_a_module_is_not_tested_on_other_columns_or_clients(sold, tmp_path):
    module = FederatedModule(FedAvg(), STILL)
    trainer = trainer_of(tmp_path)
    trainer.fit(module, datamodule=table(sales()))
    other = table(sales()[["b", "shop", "kind", "a"]])
    other.setup()
    with pytest.raises(ConfigError, match="this FederatedModule: the data were set up before, with other columns"):
        trainer.test(module, datamodule=other)
    with pytest.raises(ConfigError, match="was not trained on the column 'c'"):
        trainer.test(module, datamodule=table(sales().assign(c=1.0)))
    with pytest.raises(ConfigError, match="the states of 2 clients, and the data have 2, such as 'z'"):
        trainer.test(module, datamodule=table(sales().replace("y", "z")))
