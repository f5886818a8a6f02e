from dataclasses import replace

import pytest
import torch
from federated_round import MULTICLASS, Scale, same_bits
from torch import nn
from torch.nn import functional

from lit_fed.core.networks.layers import (
    TrainedEnd,
    at_rest,
    drops_units,
    frozen_leaves,
    last_layers,
    normalises_batches,
    train_mode,
)
from lit_fed.core.networks.start import choose_trained, digest_of
from lit_fed.core.task import Task
from lit_fed.core.types import Batch
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, LeafCNN, Linear


def named(network):
    """Names of all parameters and buffers."""
    return {name for name, _ in (*network.named_parameters(), *network.named_buffers())}


def test_layers_are_counted_from_the_end():
    network = MLP((4,), 2, (5, 6))
    assert last_layers(network, 0) == frozenset()
    assert last_layers(network, 1) == {"layers.5.weight", "layers.5.bias"}
    assert last_layers(network, 2) == {f"layers.{place}.{kind}" for place in (3, 5) for kind in ("weight", "bias")}
    assert last_layers(network, 3) == named(network)


def test_normalisation_is_a_layer_of_its_own():
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    norm = {f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert last_layers(network, 1) == {"3.weight", "3.bias"}
    assert last_layers(network, 2) == {"3.weight", "3.bias", *norm}
    assert last_layers(network, 3) == named(network)


def test_buffers_without_parameters_go_with_the_layer_before():
    parts = nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)
    network = nn.Sequential(nn.BatchNorm1d(4, affine=False), *parts)
    assert last_layers(network, 1) == {"3.weight", "3.bias"}
    assert {name.split(".")[0] for name in last_layers(network, 2)} == {"0", "1", "2", "3"}
    network = nn.Sequential(*parts, nn.Linear(2, 1))
    assert {name.split(".")[0] for name in last_layers(network, 2)} == {"2", "3"}


def test_parameters_of_the_network_itself_are_a_layer():
    assert last_layers(Scale(), 1) == {"weight"}


def test_a_tied_parameter_belongs_to_its_first_owner():
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    assert last_layers(network, 1) == {"1.bias"}


def test_too_many_layers_are_refused():
    with pytest.raises(ConfigError, match=r"private_layers is 4, and MLP has 3 layers .* from 0 to 3"):
        last_layers(MLP((4,), 2, (5, 6)), 4)


def body_and_head():
    """BatchNorm and dropout below a layer that is trained."""
    body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Dropout(0.5)).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(3, 2))


def trained(network):
    return [name for name, leaf in network.named_parameters() if leaf.requires_grad]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("head", ["classifier.4.weight", "classifier.4.bias"]),
        (["head"], ["classifier.4.weight", "classifier.4.bias"]),
        (["*.bias"], ["features.0.bias", "features.3.bias", "classifier.1.bias", "classifier.4.bias"]),
        (["classifier"], [f"classifier.{layer}.{kind}" for layer in (1, 4) for kind in ("weight", "bias")]),
        (["features.0.weight", "*.4"], ["features.0.weight", "classifier.4.weight", "classifier.4.bias"]),
        ("*", [name for name, _ in LeafCNN((1, 8, 8), 3).named_parameters()]),
    ],
)
def test_parameters_chosen_by_name(patterns, names):
    network = LeafCNN((1, 8, 8), 3)
    choose_trained(network, patterns)
    assert trained(network) == names


def test_a_pattern_goes_before_what_the_network_says():
    network = body_and_head()
    choose_trained(network, ["0.0"])
    assert trained(network) == ["0.0.weight", "0.0.bias"]


def test_a_tied_head_goes_by_its_first_name():
    network = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "body": nn.Linear(3, 3), "head": nn.Linear(3, 5)})
    network["head"].weight = network["embedding"].weight
    choose_trained(network, "head")
    assert trained(network) == ["embedding.weight", "head.bias"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["clasifier"], r"has 'clasifier', which matches no .* of LeafCNN; did you mean classifier\? There are feat"),
        (["head", "*"], r"has 'head', which matches no parameter of LeafCNN; give patterns of its names, or head for "),
        ([], r"is \[\], and nothing of LeafCNN would be trained; give head, or patterns .* leave it out to train all"),
    ],
)
def test_what_names_nothing_is_refused(patterns, message):
    with pytest.raises(ConfigError, match=r"--model\.trainable " + message):
        choose_trained(LeafCNN((1, 8, 8), 3), patterns)


def test_the_message_lists_some_of_many_names():
    network = nn.Sequential(*(nn.Linear(1, 1) for _ in range(20)))
    with pytest.raises(ConfigError, match=r"There are 0\.weight, .*, 2\.bias, … 28 more …, 17\.weight, .* 19\.bias$"):
        choose_trained(network, ["x"])


def test_modules_at_rest():
    network = body_and_head()
    assert at_rest(network) == list(network[0].modules())
    assert not normalises_batches(network)
    assert not drops_units(network)
    assert set(frozen_leaves(network)) == {
        "0.0.weight", "0.0.bias", "0.1.running_mean", "0.1.running_var", "0.1.num_batches_tracked",
    }  # fmt: skip
    train_mode(network, at_rest(network))
    assert [module.training for module in network.modules()] == [True, False, False, False, False, True]
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    expected = network(x)
    assert torch.equal(network.eval()(x), expected)
    network[0][0].requires_grad_(True)  # now BatchNorm belongs to a part that is trained
    assert at_rest(network) == []
    assert normalises_batches(network)
    assert set(frozen_leaves(network)) == set()


def test_batch_norm_without_running_statistics_never_rests():
    network = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).requires_grad_(False), nn.Linear(3, 2))
    assert normalises_batches(network)


def test_frozen_leaves_are_the_network_s_memory():
    network = body_and_head()
    assert frozen_leaves(network)["0.0.weight"].data_ptr() == network[0][0].weight.data_ptr()


def test_constants_of_a_part_that_is_trained():
    """Buffers that are no part of the state dict, beside frozen parameters alone."""
    network = body_and_head()
    for name, persistent in (("frequencies", False), ("seen", True)):
        network.register_buffer(name, torch.ones(2), persistent=persistent)
    assert "frequencies" in frozen_leaves(network)
    assert "seen" not in frozen_leaves(network)
    assert frozen_leaves(network.requires_grad_(True)) == {}


def test_the_digest_is_of_names_types_shapes_and_values():
    leaf = torch.arange(6.0)
    digests = [
        digest_of({"a": leaf}),
        digest_of({"b": leaf}),
        digest_of({"a": leaf.double()}),
        digest_of({"a": leaf.view(2, 3)}),
        digest_of({"a": leaf + 1}),
        digest_of({}),
    ]
    assert len(set(digests)) == 6
    assert digests[0] == "b390aa9b376d4938f4bcdbc966b2ba4ead879c56bf6f32ce2ffbada8d876fb79"
    assert digests[5] == ""
    assert digest_of({"a": leaf, "b": leaf}) == digest_of({"b": leaf.clone(), "a": leaf.clone()})
    image = torch.arange(24.0).view(1, 2, 3, 4)
    assert digest_of({"a": image}) == digest_of({"a": image.contiguous(memory_format=torch.channels_last)})
    assert digest_of({"a": torch.zeros(()), "b": torch.zeros(0), "c": torch.zeros(2, dtype=torch.bfloat16)})


def test_a_network_is_frozen_before_it_is_built():
    network = Linear((4,), 3)
    choose_trained(network, ["linear.weight"])
    assert trained(network) == ["linear.weight"]
    assert set(frozen_leaves(network)) == {"linear.bias"}


class Counted(nn.Module):
    """A frozen layer that counts its passes."""

    def __init__(self):
        super().__init__()
        self.layer, self.passes = nn.Linear(4, 5), 0

    def forward(self, x):
        self.passes += 1
        return torch.tanh(self.layer(x))


class Parts(nn.Module):
    """A body and a head, and what may come between or behind them."""

    def __init__(self, between=None, behind=None):
        super().__init__()
        self.body, self.head = Counted(), nn.Linear(5, 3)
        self.between, self.behind = between, behind

    def forward(self, x):
        z = self.body(x)
        z = z if self.between is None else self.between(self, z)
        outputs = self.head(z)
        return outputs if self.behind is None else self.behind(self, outputs)


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def task_of(build, trainable="head"):
    def network():
        one = build()
        choose_trained(one, trainable)
        return one

    return Task.create(network, MULTICLASS, dtype=torch.float64)


CASES = {
    "head": (Parts, "head", "head", True),
    "sequential": (
        lambda: nn.Sequential(Counted(), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3)),
        ["2", "3"],
        "2",
        True,
    ),
    "inside": (lambda: nn.Sequential(Counted(), nn.Sequential(nn.Tanh(), nn.Linear(5, 3))), ["1.*"], "1.1", True),
    "dropout": (lambda: Parts(lambda net, z: functional.dropout(z, 0.5, net.training)), "head", "head", False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_the_same_bits_with_fewer_passes(case, axis):
    build, trainable, name, same = CASES[case]
    whole = replace(task_of(build, trainable), model_axis=axis)
    once = whole.with_end(X[:2])
    assert (once.end.name, once.end.same_in_training) == (name, same)
    models = whole.init(3, 0)
    body = next(module for module in whole.network.modules() if isinstance(module, Counted))
    batch = Batch(X, torch.arange(6) % 3, torch.arange(6), torch.ones(6))
    for function in (lambda task: task.outputs(models, X), lambda task: task.value_and_grad(models, batch)):
        found, passes = [], []
        for task in (whole, once):
            torch.manual_seed(5)
            body.passes = 0
            if axis == "loop" or same:
                found.append(function(task))
            passes.append(body.passes)
        assert len(found) < 2 or same_bits(*found)
        assert passes[1] <= 1 or not same
    body.passes = 0
    once.outputs(models, X)
    assert body.passes == 1


def test_dropout_right_before_belongs_to_the_end():
    whole = task_of(lambda: nn.Sequential(Counted(), nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))))
    once, models = whole.with_end(X[:2]), whole.init(2, 0)
    assert (once.end.name, once.end.same_in_training) == ("1.1", True)
    batch, found = Batch(X, torch.arange(6) % 3, torch.arange(6), torch.ones(6)), []
    for task in (whole, once):
        torch.manual_seed(5)
        found.append((task.value_and_grad(models, batch), task.outputs(models, X)))
    assert same_bits(*found)


@pytest.mark.parametrize(
    ("build", "trainable"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3)), ["0.weight"]),  # nothing before it
        (lambda: Parts(behind=lambda net, outputs: 2 * outputs), "head"),  # something behind it
        (lambda: Parts(between=lambda net, z: net.head(z).sum() + z), "head"),  # reached twice
        (lambda: Parts(between=lambda net, z: z * net.head.bias.sum()), "head"),  # needed before
        (Parts, ["body.layer.bias"]),
        (Parts, "*"),
    ],
)
def test_networks_without_a_trained_end(build, trainable):
    assert task_of(build, trainable).with_end(X[:2]).end is None


def test_batches_of_each_model_and_a_frozen_bias_inside_the_end():
    whole = task_of(Parts, ["head.weight"])
    once, models = whole.with_end(X[:2]), whole.init(2, 0)
    assert isinstance(once.end, TrainedEnd)
    batch = Batch(X.view(2, 3, 4), torch.arange(6).view(2, 3) % 3, torch.arange(6).view(2, 3), torch.ones(2, 3))
    assert same_bits(*(task.value_and_grad(models, batch) for task in (whole, once)))
    assert same_bits(*(task.outputs(models, X) for task in (whole, once)))
