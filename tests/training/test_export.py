"""A client's model as a program of its own: the numbers of the run, and no more than they take."""

import json
import sys
import zipfile
from functools import partial
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from federated_round import facts
from fit_all import BINARY, GROUPED, NAMES, OPTIONS, StackedAverage, solver_of
from lightning.pytorch import seed_everything
from normalised import NormalisedMLP
from quiet import quiet_trainer
from torch import nn

from lit_fed import FederatedModule, algorithms, export, models, personal_model
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.algorithms.fedem import MixtureState
from lit_fed.core.targets import Binary, Multiclass, Regression, Sequences
from lit_fed.data import Digits, FeatureBlocks, Normalisation
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.serving import prediction_of
from lit_fed.training.export import check_program_file, save_clients, save_program, traced_model

MODEL = 4 * (64 * 10 + 10)
"""Bytes of a linear model of the digits."""

WEIGHTS = 4 * 3
"""Bytes of three mixture weights."""

STORED = {
    **dict.fromkeys(
        [
            "FedEM",
            "ResponsibilityFedEM",
            "OfficialFedEM",
            "DFedEM",
            "ResponsibilityDFedEM",
            "SurrogateOptimization",
            "DecentralizedSurrogate",
        ],
        3 * MODEL + WEIGHTS,
    ),
    **dict.fromkeys(["FedAvgPlus", "FedBABU"], MODEL + 4),  # and its weight, 1
    "FedCP": 2 * MODEL + 4 * (64 * 128 + 3 * 128 + 64),  # two heads, a policy, and the sum of a head's rows
    "FedDBE": MODEL + 4 * 64,  # and a bias of its features
    "FedProto": 4 * (64 * 10 + 10) + 10 + 1,  # prototypes, their squares, which are known, and whether any is
    "FedRoD": 2 * MODEL,
    "GPFL": MODEL + 2 * 4 * 64,  # and the gates of the own route
    "FedeRiCo": 5 * MODEL + 4 * 6,  # models that have a weight, and the weights of all
    "IFCA": MODEL + 4 * 4,  # one model, and which of four it is
    "KNNPer": MODEL + 4 + 329 * (4 * 64 + 4 * 10 + 1),  # and as many samples as the largest client has
    **dict.fromkeys(["MixedEffects", "Oracle"], 4 * (4 + 1)),  # a smaller model
    "SharingADMM": 4 * (10 + 1),
}
"""Bytes of the numbers in a client's file where they are not those of one model."""

TRACED = {*STORED, "FedAvg", "ClusteredFL"}
"""Algorithms whose programs are written; those of the others are FedAvg's with other numbers in it."""


def fitted(name, tmp_path, **arguments):
    """An algorithm after two rounds, with trainer and data."""
    seed_everything(3, verbose=False)
    options = OPTIONS | {"FedeRiCo": {"loss": "mean"}}
    algorithm = StackedAverage() if name == "StackedAverage" else getattr(algorithms, name)(**options.get(name, {}))
    vertical = algorithm.participation.divided_by == "features"
    dataset = FeatureBlocks(num_parties=4) if vertical else GROUPED if name in BINARY else Digits()
    data = FederatedDataModule(
        dataset,
        num_clients=None if dataset.natural else 8,
        unseen_fraction=0.0 if vertical else 0.25,
        batch_size=32,
    )
    module = FederatedModule(algorithm, solver_of(name), **arguments)
    trainer = quiet_trainer(2, default_root_dir=tmp_path, check_val_every_n_epoch=3)
    trainer.fit(module, datamodule=data)
    return module, trainer, data


def served(module, trainer, data, population, folder):
    """Name, inputs and predictions of the last client of a population."""
    table = trainer.predict(module, datamodule=data, population=population, output=str(folder / "p.csv"))
    clients = getattr(data, population)
    client_id = int(table["client_id"].iloc[-1])
    rows = table[table["client_id"] == client_id]
    columns = [name for name in rows if name.startswith("p_")] or "prediction"
    return clients.names[client_id - clients.train.first_id], clients.test.client(client_id).x, rows[columns].to_numpy()


ROUNDING = {"PFedFDA": 5e-5}
"""Absolute tolerances: covariances of few samples, once inverted, magnify the rounding of features."""


ADAPTED = {
    "ClusteredFL", "FedAvgPlus", "FedBABU", "IFCA", "KNNPer", "MixedEffects", "OfficialFedEM", "PFedFDA", "PerFedAvg",
}  # fmt: skip
"""Algorithms that read a seen client's samples whenever they serve it."""


def from_the_checkpoint_alone(module, trainer, client, x, folder):
    """Predictions of a seen client by a new module that sees no data; None: the algorithm needs some."""
    trainer.save_checkpoint(folder / "alone.ckpt")
    fresh = FederatedModule(module.settings.algorithm, module.settings.solver)
    state, said = fresh.restore_client(folder / "alone.ckpt", client)
    if state is None:
        assert said.endswith("adapts to a client's samples whenever it serves it")
        return None
    predict, task = prediction_of(fresh.federation, state)
    return task.target.in_units(task.target.shown(predict(task, x))).detach().numpy()


def stored(path):
    """Bytes of all numbers in a file, and the names of its members."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    numbers = [one for one in members if one.filename.partition("/data/")[2] and "config.json" not in one.filename]
    return sum(one.file_size for one in numbers), [one.filename for one in members]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_predicts_as_the_run_does_and_holds_nothing_else(name, tmp_path):
    module, trainer, data = fitted(name, tmp_path)
    client, x, expected = served(module, trainer, data, "seen", tmp_path)
    model, program = personal_model(trainer, module, data, client=client), None
    if name in TRACED:
        model = export(trainer, module, data, client=client, output=str(tmp_path / "client.pt2"))
        program = torch.export.load(tmp_path / "client.pt2").module()
        assert stored(tmp_path / "client.pt2")[0] == STORED.get(name, MODEL)
    alone = from_the_checkpoint_alone(module, trainer, client, x, tmp_path)
    assert (alone is None) == (name in ADAPTED)
    for found in (alone, *(one(x).detach().numpy() for one in (model, program) if one is not None)):
        np.testing.assert_allclose(
            expected if found is None else found, expected, rtol=1e-6 if name == "SharingADMM" else 0,
            atol=ROUNDING.get(name, 1e-6),
        )  # fmt: skip
    assert sum(leaf.nbytes for leaf in model.state_dict().values()) == STORED.get(name, MODEL)
    assert model.about["algorithm"] == name
    if data.unseen is not None:
        client, x, expected = served(module, trainer, data, "unseen", tmp_path)
        model = personal_model(trainer, module, data, client=client)
        np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=0, atol=ROUNDING.get(name, 1e-6))


def test_a_program_with_features_of_samples_says_so(tmp_path, capsys):
    module, trainer, data = fitted("KNNPer", tmp_path)
    model = export(trainer, module, data, client=data.seen.names[0], output=str(tmp_path / "client.pt2"))
    assert model.about["holds"] == "features and labels of the client's training samples"
    assert f"lit_fed: client.pt2 holds {model.about['holds']}, which may reveal them" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["DFedEM", "FedAvgPlus"])
def test_onnx_predicts_as_the_run_does_and_holds_nothing_else(name, tmp_path):
    module, trainer, data = fitted(name, tmp_path)
    client, x, expected = served(module, trainer, data, "unseen", tmp_path)
    path = tmp_path / "client.onnx"
    export(trainer, module, data, client=client, output=str(path), format="onnx")
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(["probabilities"], {"x": x.numpy()})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    written = onnx.load(path)
    floats = [one for one in written.graph.initializer if one.data_type == onnx.TensorProto.FLOAT]
    sizes = sum(int(np.prod(one.dims)) for one in floats)
    assert STORED.get(name, MODEL) <= 4 * sizes <= STORED.get(name, MODEL) + 20  # some scalars of the conversion
    about = json.loads({one.key: one.value for one in written.metadata_props}["lit_fed"])
    assert about["client"] == client
    assert str(tmp_path.parent) not in str(written)
    assert "export.py" not in str(written)


def test_batch_norm_of_the_client(tmp_path):
    module, trainer, data = fitted("FedEM", tmp_path, network=NormalisedMLP, batch_norm="local")
    for population in ("seen", "unseen"):
        client, x, expected = served(module, trainer, data, population, tmp_path)
        path = tmp_path / f"{population}.pt2"
        export(trainer, module, data, client=client, output=str(path))
        found = torch.export.load(path).module()(x).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# ---------------------------------------------------------------------- one state, without a run
def built(network, shape, target=Multiclass(5), algorithm=FedAvg(), label_shape=()):  # noqa: B008 - frozen
    """A module with random models, which have running statistics of their own."""
    module = FederatedModule(algorithm, network=network)
    dtype = torch.int64 if target.positions else torch.float32
    module.build(facts(target, shape, input_type=dtype, label_shape=label_shape))
    for name, leaf in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            leaf.uniform_(0.5, 1.5)
    return module


def expectation(module, state, x):
    """The prediction by the algorithm itself."""
    ctx, own = module.federation.context("evaluate"), module.algorithm
    with torch.no_grad():
        log_prob = own.log_prob(ctx, module.shared, state, x, own.shared_outputs(ctx, module.shared, x))
    return log_prob[..., 0] if module.target.continuous else log_prob.exp()


NETWORKS = {
    "Linear": ({}, (1, 28, 28)),
    "MLP": ({"hidden_sizes": (8,)}, (1, 28, 28)),
    "LeafCNN": ({"hidden_size": 8}, (1, 28, 28)),
    "FedEMCNN": ({"hidden_size": 8}, (1, 28, 28)),
    "CNN2": ({}, (3, 22, 22)),
    "LeNet5": ({}, (1, 16, 16)),
    "MobileNetV2": ({}, (3, 32, 32)),
    "ResNet18": ({}, (3, 32, 32)),
    "ResNet34": ({}, (3, 32, 32)),
    "CharLSTM": ({"hidden_size": 6}, (7,)),
}


def with_network(name):
    """A module with one of the networks, and three inputs."""
    options, shape = NETWORKS[name]
    text = name == "CharLSTM"
    module = built(
        partial(getattr(models, name), **options), shape, (Sequences if text else Multiclass)(5),
        label_shape=shape if text else (),
    )  # fmt: skip
    return module, torch.randint(0, 5, (3, *shape)) if text else torch.rand(3, *shape)


def test_every_network_is_exported_below():
    # tested beside adapters, in a guide, and with masks
    elsewhere = {"Network", "HuggingFaceClassifier", "HuggingFaceCausalLM", "Timm", "UNet"}
    assert set(NETWORKS) == set(models.__all__) - elsewhere


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, tmp_path):
    module, x = with_network(name)
    save_program(traced_model(module.federation, module.facts, (), x), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for batch in (x, x[:1]):
        torch.testing.assert_close(program(batch), expectation(module, (), batch), rtol=0, atol=1e-6)
    parameters = sum(
        leaf.numel() * leaf.element_size() for leaf in module.federation.terms.task.network.state_dict().values()
    )
    assert stored(tmp_path / "model.pt2")[0] == parameters


@pytest.mark.parametrize("name", ["LeafCNN", "CharLSTM"])
def test_networks_as_onnx(name, tmp_path):
    module, x = with_network(name)
    save_program(traced_model(module.federation, module.facts, (), x), tmp_path / "model.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch in (x, x[:1]):
        (found,) = session.run(None, {"x": batch.numpy()})
        np.testing.assert_allclose(found, expectation(module, (), batch), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("target", "shape"), [(Binary(), (4, 2)), (Regression(), (4,)), (Multiclass(3), (4, 3))])
def test_kinds_of_targets(target, shape):
    module = built(models.Linear, (6,), target, FedEM(num_components=2))
    state, x = MixtureState(torch.tensor([0.25, 0.75])), torch.randn(4, 6)
    found = traced_model(module.federation, module.facts, state, x)(x)
    assert found.shape == shape
    torch.testing.assert_close(found, expectation(module, state, x), rtol=0, atol=1e-6)


def test_probabilities_are_mixed_and_inputs_normalised_as_numpy_says(tmp_path):
    module = built(models.Linear, (2, 3), algorithm=FedEM(num_components=2))
    x, constants = torch.rand(7, 2, 3), Normalisation((0.3, 0.6), (0.2, 0.4))
    facts = module.facts._replace(normalisation=constants)
    model = traced_model(module.federation, facts, MixtureState(torch.tensor([0.2, 0.8])), x)
    save_program(model, tmp_path / "model.pt2")
    mean, std = (np.array(one)[:, None] for one in constants)
    flat = ((x.double().numpy() - mean) / std).reshape(7, -1)
    expected = 0
    for share, component in zip((0.2, 0.8), model.components, strict=True):
        weight, bias = (leaf.detach().double().numpy() for leaf in component.parameters())
        odds = np.exp(flat @ weight.T + bias)
        expected = expected + share * odds / odds.sum(1, keepdims=True)
    found = torch.export.load(tmp_path / "model.pt2").module()(x).detach()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_components_without_weight_are_left_out(tmp_path):
    module = built(models.Linear, (6,), algorithm=FedEM(num_components=3))
    state, x = MixtureState(torch.tensor([0.0, 1.0, 0.0])), torch.randn(4, 6)
    model = traced_model(module.federation, module.facts, state, x)
    own = module.shared.models.parameters["linear.weight"][1]
    assert [component.linear.weight.equal(own) for component in model.components] == [True]
    torch.testing.assert_close(model(x), expectation(module, state, x), rtol=0, atol=1e-6)


def test_nothing_in_the_file_is_pickled_or_tells_of_this_machine(tmp_path):
    module = built(models.MLP, (6,), algorithm=FedEM(num_components=2))
    state, x = MixtureState(torch.tensor([0.5, 0.5])), torch.randn(4, 6)
    save_program(traced_model(module.federation, module.facts, state, x, client="anna"), tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        content = {one: archive.read(one) for one in archive.namelist()}
    for name, data in content.items():
        if name.endswith("config.json") or name.endswith("model.json"):
            assert '"use_pickle": true' not in data.decode(), name
            assert ".py" not in data.decode(), name
        elif name.endswith(".pt"):
            assert data == b"", name
        assert not data.startswith((b"\x80", b"PK")), name  # a pickle, or torch.save's archive with one
    (about,) = (json.loads(data) for name, data in content.items() if name.endswith("about.json"))
    assert (about["client"], about["network"], about["input_shape"]) == ("anna", "MLP", ["N", 6])
    assert about["classes"] == [0, 1, 2, 3, 4]


class Halved(models.Network):
    """What it computes depends on the number of samples."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.linear = nn.Linear(6, num_outputs)

    def forward(self, x):
        return self.linear(x) / 2 if int(x.sum()) > 3 else self.linear(x)


def test_a_network_that_cannot_be_traced_is_named_with_the_reason(tmp_path):
    module = built(Halved, (6,))
    model = traced_model(module.federation, module.facts, (), torch.randn(4, 6))
    with pytest.raises(ConfigError, match=r"Halved cannot be exported \(.+\).*traceable"):
        save_program(model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "format", "part"),
    [
        ("model.pt", "pt", ".pt2"),
        ("model.pt2", "onnx", ".onnx"),
        ("model.pt2", "zip", "choose pt, onnx, peft or lightning"),
        ("there.pt2", "pt", "exists"),
        ("there.pt2/model.pt2", "pt", "can be written"),
    ],
)
def test_wrong_files(tmp_path, name, format, part):
    (tmp_path / "there.pt2").touch()
    with pytest.raises(ConfigError, match=part):
        check_program_file(tmp_path / name, format)


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf'{package}; pip install "onnx>=1.17" "onnxscript>=0.5", or choose pt'):
        check_program_file(tmp_path / "model.onnx", "onnx")
    check_program_file(tmp_path / "model.pt2", "pt")


def test_without_clients_nothing_is_exported(tmp_path):
    trainer = quiet_trainer()
    with pytest.raises(ConfigError, match="datamodule"):
        export(trainer, FederatedModule(), client="0", output=str(tmp_path / "model.pt2"))
    with pytest.raises(ConfigError, match="checkpoint"):
        export(trainer, FederatedModule(), client="0", clients="new", output=str(tmp_path / "model.pt2"))
    with pytest.raises(ConfigError, match="--output is not set"):
        export(trainer, FederatedModule(), client="0")


# ---------------------------------------------------------------------- all clients
WITH_NUMBERS = {
    "FedEM": {"mixture"},
    "IFCA": {"mixture"},
    "FedAvgPlus": {"models.parameters.linear.weight", "models.parameters.linear.bias", "weights"},
    "FedRep": {"own.parameters.linear.weight", "own.parameters.linear.bias"},
    "FedRoD": {"head.linear.weight", "head.linear.bias"},
}
"""What of a client's state is an input of the program of all clients."""


def one_client(path):
    """The numbers of a client, from its file."""
    return {name: torch.from_numpy(leaf) for name, leaf in np.load(path).items()}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_one_program_predicts_for_every_client(name, tmp_path):
    module, trainer, data = fitted(name, tmp_path)
    model = export(trainer, module, data, client="all", output=str(tmp_path / "all"))
    assert set(model.own) == WITH_NUMBERS[name]
    program = torch.export.load(tmp_path / "all/model.pt2").module()
    names = [*data.seen.names, *data.unseen.names]
    assert {one.name for one in (tmp_path / "all/clients").iterdir()} == {f"{one}.npz" for one in names}
    for population in ("seen", "unseen"):
        clients = getattr(data, population)
        table = trainer.predict(module, datamodule=data, population=population)
        for client_id, rows in table.groupby("client_id"):
            own = one_client(tmp_path / f"all/clients/{clients.names[client_id - clients.train.first_id]}.npz")
            found = program(clients.test.client(client_id).x, client=own)
            expected = rows[[one for one in rows if one.startswith("p_")]].to_numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_components_are_there_once(tmp_path):
    """The bytes of 3 models in the program, and of 3 weights for each client."""
    module, trainer, data = fitted("FedEM", tmp_path)
    export(trainer, module, data, client="all", output=str(tmp_path / "all"))
    assert stored(tmp_path / "all/model.pt2")[0] == 3 * MODEL
    own = one_client(tmp_path / f"all/clients/{data.seen.names[3]}.npz")
    torch.testing.assert_close(own, {"mixture": module.mixture_weights[3]})


def test_onnx_of_all_clients(tmp_path):
    module, trainer, data = fitted("FedEM", tmp_path)
    export(trainer, module, data, client="all", output=str(tmp_path / "all"), format="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "all/model.onnx")
    client, x, expected = served(module, trainer, data, "seen", tmp_path)
    (found,) = session.run(None, {"x": x.numpy(), **np.load(tmp_path / f"all/clients/{client}.npz")})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_several_processes_are_refused(tmp_path):
    trainer, data = SimpleNamespace(world_size=2), FederatedDataModule()
    with pytest.raises(ConfigError, match="--client all in 2 processes"):
        export(trainer, FederatedModule(), data, client="all", output=str(tmp_path / "all"))


def test_a_name_that_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="writes a file for each client, and 'a/b' names none"):
        save_clients(tmp_path, ["mixture"], MixtureState(torch.ones(2, 3)), ["a", "a/b"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FedAvg", "FedAvg serves all clients by the same model"),
        ("DFedEM", "DFedEM predicts by client_id of a client"),
        ("PFedHN", "PFedHN takes gradients to predict"),
    ],
)
def test_algorithms_without_a_common_program(name, said, tmp_path):
    module, trainer, data = fitted(name, tmp_path)
    with pytest.raises(ConfigError, match=said):
        export(trainer, module, data, client="all", output=str(tmp_path / "all"))
    assert not (tmp_path / "all").exists()
