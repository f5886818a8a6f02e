"""Features of a network and outputs of its last layer; all networks of the package are in tests/models."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from federated_round import (
    MULTICLASS,
    POSITIONS,
    NormalisedLinear,
    Plain,
    Scale,
    Tagger,
    distance,
    make_task,
    perturbed,
    same_bits,
)
from torch import nn
from torch.func import functional_call, grad

from lit_fed.clients.vectorized import vmap_clients
from lit_fed.core import tree
from lit_fed.core.networks.layers import Head, last_layer
from lit_fed.core.networks.start import choose_trained
from lit_fed.core.task import Task
from lit_fed.core.types import ModelState
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, HuggingFaceClassifier, LeNet5, Linear, Network, Timm
from lit_fed.models.adapters import LowRankAdapters

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
axes = pytest.mark.parametrize("axis", ["loop", "vmap"])


def mlp(shape, outputs):
    return MLP(shape, outputs, (7, 5))


class Twice(MLP):
    def forward(self, x):
        return 2 * super().forward(x)


class TwoParts(Twice):
    """Scaled outputs, by two functions; the second uses a module and a parameter."""

    def __init__(self, shape, outputs):
        super().__init__(shape, outputs, (5,))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * 2 * self.layers(x)

    def split(self):
        return self.layers[:-1], lambda f: self.scale * 2 * self.layers[-1](f)


class ModuleParts(TwoParts):
    """Parts that are modules, the second of several layers."""

    def forward(self, x):
        return self.layers(x)

    def split(self):
        return self.layers[:1], self.layers[1:]


class Tied(Network):
    """The weights of the last layer are those of the first."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3, bias=False), nn.Linear(4, 3)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.cat([self.first(x), x[:, :1]], 1))


def trained(network, patterns):
    def build(shape, outputs):
        one = network(shape, outputs)
        choose_trained(one, patterns)
        return one

    return build


# ---------------------------------------------------------------------- paths
@axes
@pytest.mark.parametrize("num_models", [1, 3])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    ("network", "patterns"),
    [
        (mlp, "*"),
        (mlp, "head"),  # features are the same for all models
        (mlp, ["layers.3", "layers.5"]),
        (mlp, ["layers.1", "layers.3"]),  # a frozen head
        (mlp, ["layers.3.bias", "layers.5.weight"]),
        (Linear, ["linear.weight"]),
        (Plain, "*"),
        (NormalisedLinear, "*"),
        (Tied, "*"),
        (TwoParts, "*"),
        (TwoParts, ["scale"]),
        (ModuleParts, "*"),
        (ModuleParts, "head"),
    ],
)
def test_the_bits_of_the_outputs(network, patterns, num_models, ended, axis):
    task = make_task(MULTICLASS, network=trained(network, patterns), model_axis=axis)
    task = task.with_end(X[:2]) if ended else task
    models = perturbed(task.init(num_models, 0), 0.3)
    models = models._replace(buffers={name: leaf.abs() for name, leaf in models.buffers.items()})  # variances
    features, outputs = task.features(models, X), task.outputs(models, X)
    assert features.shape[:2] == (6, num_models)
    assert same_bits(task.head(models, features), outputs)
    other = replace(task, model_axis="loop" if axis == "vmap" else "vmap")
    assert distance(other.head(models, features), outputs) < 1e-12
    assert distance(other.features(models, X), features) < 1e-12


def test_features_are_the_inputs_of_the_last_layer():
    task = make_task(MULTICLASS, network=mlp)
    models = task.init(2, 0)
    for m in range(2):
        network = mlp((4,), 3).double()
        network.load_state_dict(tree.index(models.parameters, m))
        assert same_bits(task.features(models, X)[:, m], network.layers[:-1](X))
    assert same_bits(make_task(MULTICLASS).features(models, X.view(6, 2, 2)), X.unsqueeze(1).expand(-1, 2, -1))


@axes
def test_each_model_may_have_other_features(axis):
    """Also a linear one, whose features do not depend on the model."""
    for network in (Linear, mlp, lambda *sizes: nn.Linear(4, 3)):
        task = make_task(MULTICLASS, network=network, model_axis=axis)
        models = task.init(2, 0)
        moved = task.features(models, X) + torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
        for m in range(2):
            alone = task.head(tree.index(models, slice(m, m + 1)), moved[:, m : m + 1])
            assert distance(task.head(models, moved)[:, m : m + 1], alone) < 1e-14


@axes
def test_positions(axis):
    task = make_task(POSITIONS, network=Tagger, model_axis=axis)
    models, x = task.init(2, 0), torch.randint(7, (6, 4))
    features = task.features(models, x)
    assert features.shape == (6, 2, 4, 5)
    assert same_bits(task.head(models, features), task.outputs(models, x))


@axes
@pytest.mark.parametrize("network", [Linear, mlp, TwoParts])
def test_both_have_gradients(network, axis):
    """By autograd and by `torch.func`, of the whole and of one part."""
    task = make_task(MULTICLASS, network=network, model_axis=axis)
    models = task.init(2, 0)

    def through_parts(leaves):
        return task.head(ModelState(leaves, {}), task.features(ModelState(leaves, {}), X)).square().sum()

    def whole(leaves):
        return task.outputs(ModelState(leaves, {}), X).square().sum()

    def of_the_head(leaves):
        return task.head(ModelState(leaves, {}), task.features(models, X)).square().sum()

    assert distance(grad(through_parts)(models.parameters), grad(whole)(models.parameters)) < 1e-12
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in models.parameters.items()}
    found = torch.autograd.grad(through_parts(leaves), list(leaves.values()))
    assert distance(list(found), list(grad(whole)(models.parameters).values())) < 1e-12
    alone, both = grad(of_the_head)(models.parameters), grad(whole)(models.parameters)
    for name, leaf in alone.items():
        of_body = name.startswith("layers.1") or (network is mlp and name.startswith("layers.3"))
        assert distance(leaf, torch.zeros_like(leaf) if of_body else both[name]) < 1e-12


def test_clients_at_once():
    task = make_task(MULTICLASS, network=mlp, model_axis="vmap")
    each = [task.init(2, seed) for seed in range(3)]
    x = torch.randn(3, 6, 4, dtype=torch.float64)

    def both(models, x):
        features = task.features(models, x)
        return features, task.head(models, features)

    found = vmap_clients(both, tree.stack(each), x)
    alone = tree.stack([both(models, one) for models, one in zip(each, x, strict=True)])
    assert distance(found, alone) < 1e-14


# ---------------------------------------------------------------------- precision, layout, modes
@axes
def test_in_bf16(axis):
    task = make_task(MULTICLASS, network=mlp, dtype=torch.float32, model_axis=axis)
    models, x = task.init(2, 0), X.float()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        features, outputs = task.features(models, x), task.outputs(models, x)
        assert features.dtype == outputs.dtype == torch.float32
        assert same_bits(task.head(models, features), outputs)
    assert 0 < distance(features, task.features(models, x)) < 0.05


def test_models_in_a_joint_pass():
    task = Task.create(lambda: LeNet5((1, 16, 16), 3), MULTICLASS, dtype=torch.float64)
    models, x = task.init(2, 0), torch.randn(5, 1, 16, 16, dtype=torch.float64)
    joint = replace(task, channels_last=True)
    assert joint.goes_together(models)
    assert same_bits(joint.head(models, joint.features(models, x)), joint.outputs(models, x))
    assert distance(joint.features(models, x), task.features(models, x)) < 1e-13


class Halves(LeNet5):
    """Parts that a joint pass cannot take."""

    def split(self):
        return self.features, self.classifier


def test_the_parts_of_a_network_go_before_a_joint_pass():
    task = Task.create(lambda: Halves((1, 16, 16), 3), MULTICLASS, dtype=torch.float64)
    models, x = task.init(2, 0), torch.randn(5, 1, 16, 16, dtype=torch.float64)
    joint = replace(task, channels_last=True)
    features = joint.features(models, x)
    assert features.shape == (5, 2, 16, 1, 1)
    assert distance(joint.head(models, features), joint.outputs(models, x)) < 1e-13


def test_a_frozen_body_is_passed_once():
    task = make_task(MULTICLASS, network=trained(mlp, "head")).with_end(X[:2])
    calls, models = [], task.init(3, 0)
    task.network.layers[1].register_forward_hook(lambda *_: calls.append(0))
    features = task.features(models, X)
    assert len(calls) == 1
    assert features.stride(1) == 0


def test_statistics_are_those_of_each_model():
    task = make_task(MULTICLASS, network=NormalisedLinear)
    models = task.init(2, 0)
    shifted = {"norm.running_mean": torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)}
    models = models._replace(buffers=models.buffers | shifted)
    before = tree.map_leaves(torch.clone, models)
    features = task.features(models, X)
    scaled = (1 + 1e-5) ** -0.5
    torch.testing.assert_close(features, torch.stack([X * scaled, (X - 1) * scaled], 1), rtol=0, atol=1e-12)
    assert same_bits(models, before)


# ---------------------------------------------------------------------- networks of libraries
@axes
@pytest.mark.parametrize("trainable", ["head", ["layers.1.*"]])
def test_adapters_below_and_on_the_last_layer(trainable, axis):
    pytest.importorskip("peft")

    def build(shape, outputs):
        network = trained(mlp, trainable)(shape, outputs)
        return LowRankAdapters(rank=2).add_to(network.double().eval(), lambda: network(X))

    task = make_task(MULTICLASS, network=build, model_axis=axis)
    models = perturbed(task.init(2, 0), 0.3)
    assert last_layer(task.network) is task.network.layers[5]
    features = task.features(models, X)
    assert features.shape == (6, 2, 5)
    assert same_bits(task.head(models, features), task.outputs(models, X))


def test_texts_of_a_decoder():
    """Its last layer scores every token; the features are those of the last one."""
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 9}
    build = partial(HuggingFaceClassifier, (6,), 3, config=config, pad_token_id=0)
    task = Task.create(build, MULTICLASS, dtype=torch.float64)
    models, x = task.init(2, 0), torch.tensor([[3, 4, 5, 0, 0, 0], [3, 4, 5, 6, 7, 8]])
    features = task.features(models, x)
    assert features.shape == (2, 2, 8)
    assert distance(task.head(models, features), task.outputs(models, x)) < 1e-12


@pytest.mark.parametrize("kind", ["bert", "vit", "timm"])
def test_classifiers_of_libraries(kind):
    pytest.importorskip("timm" if kind == "timm" else "transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    build = {
        "bert": lambda: HuggingFaceClassifier((6,), 3, config={"model_type": "bert", "vocab_size": 11} | sizes),
        "vit": lambda: HuggingFaceClassifier((1, 8, 8), 3, config={"model_type": "vit", "patch_size": 4} | sizes),
        "timm": lambda: Timm((1, 32, 32), 3, "resnet10t"),
    }[kind]
    task = Task.create(build, MULTICLASS)
    models = task.init(1, 0)
    shape = {"bert": (6,), "vit": (1, 8, 8), "timm": (1, 32, 32)}[kind]
    x = torch.randint(11, (4, *shape)) if kind == "bert" else torch.randn(4, *shape)
    assert same_bits(task.head(models, task.features(models, x)), task.outputs(models, x))


# ---------------------------------------------------------------------- networks without a known last layer
class Reused(MLP):
    def forward(self, x):
        return self.layers[-1](self.layers[-1](x))


@axes
@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Twice, r"Twice has no known last layer, .*: layers\.3, its last module with parameters, does not give its ou"),
        (lambda shape, outputs: Reused((3,), 3, ()), r"Reused has no .* layers\.1, its last .* split\(self\) that ret"),
        (Scale, "Scale has no known last layer, which the algorithm needs: it has no layers; give the network a met"),
        (lambda *_: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), "Sequential has no known last layer, .*: 0, its last m"),
    ],
)
def test_networks_without_one_say_what_to_write(network, message, axis):
    task = make_task(MULTICLASS, network=network, model_axis=axis)
    models = task.init(2, 0)
    with pytest.raises(ConfigError, match=message):
        task.features(models, X[:, :3] if isinstance(task.network, Reused) else X)
    hooks = [one for one in task.network.modules() if one._forward_hooks]
    assert not hooks


def test_a_module_called_split_is_no_method():
    network = nn.ModuleDict({"split": nn.Linear(4, 3)})
    assert Head.of(network).top is network["split"]


def test_the_named_head_is_taken():
    network = nn.ModuleDict({"head": nn.Linear(4, 3), "body": nn.Linear(4, 4)})
    assert last_layer(network) is network["body"]
    network.head_names = frozenset({"head.weight", "head.bias"})
    assert last_layer(network) is network["head"]
    leaves = {name: leaf + 1 for name, leaf in network.named_parameters()}
    expected = functional_call(
        network["head"], {"weight": leaves["head.weight"], "bias": leaves["head.bias"]}, X.float()
    )
    assert same_bits(Head.of(network).outputs(leaves, X.float()), expected)
