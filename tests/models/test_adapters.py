"""Low-rank adapters on layers of any network: where they go, that they act in both modes, and what is refused."""

import sys

import pytest
import torch
from federated_round import MULTICLASS
from torch import nn
from torch.func import functional_call, grad, vmap

from lit_fed.core.networks.start import choose_trained
from lit_fed.core.task import Task
from lit_fed.errors import ConfigError
from lit_fed.models import Network
from lit_fed.models.adapters import LowRankAdapters, merge_adapters

pytest.importorskip("peft")


class Attention(Network):
    """A layer of PyTorch's transformer, which reads the weights of some layers without calling them."""

    def __init__(self, input_shape=(3, 6), num_outputs=3):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(5, num_outputs)

    def forward(self, x):
        return self.head(torch.relu(self.first(self.encoder(x).mean(1))))


def make(**settings):
    network, x = Attention(), torch.zeros(2, 3, 6)
    choose_trained(network, "head")
    return LowRankAdapters(**settings).add_to(network.eval(), lambda: network(x))


def with_values(network, seed=0):
    """Its adapters, drawn at random: fresh ones do nothing."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: 0.3 * torch.randn(leaf.shape, generator=rng)
        for name, leaf in network.named_parameters()
        if "lora" in name
    }


def test_all_frozen_layers_that_are_called_get_adapters_and_the_head_is_trained_whole():
    network = make(rank=2)
    trained = [name for name, leaf in network.named_parameters() if leaf.requires_grad]
    layers = ["first", "encoder.linear1", "encoder.linear2"]
    both = {f"{layer}.lora_{part}.default.weight" for layer in layers for part in "AB"}
    assert set(trained) == both | {"head.weight", "head.bias"}
    leaves = dict(network.named_parameters())
    assert leaves["encoder.linear1.lora_A.default.weight"].shape == (2, 6)
    assert leaves["encoder.linear1.lora_A.default.weight"].any()
    assert leaves["encoder.linear1.lora_B.default.weight"].shape == (8, 2)
    assert not leaves["encoder.linear1.lora_B.default.weight"].any()


def test_adapters_act_in_evaluation_as_in_training_and_merge():
    """In evaluation PyTorch's layer would take a path on which no adapter acts."""
    network, x = make(rank=2, alpha=4.0), torch.rand(4, 3, 6, generator=torch.Generator().manual_seed(1))
    before = network(x).detach()
    values = with_values(network)
    network.load_state_dict(values, strict=False)
    trained = network.train()(x).detach()
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(x), trained, rtol=0, atol=1e-6)
        assert (trained - before).abs().max() > 0.05
        base = network.first.base_layer.weight.clone()
        merged = merge_adapters(network)
        torch.testing.assert_close(merged(x), trained, rtol=0, atol=1e-5)
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    product = values["first.lora_B.default.weight"] @ values["first.lora_A.default.weight"]
    torch.testing.assert_close(merged.first.weight, base + 4 / 2 * product, rtol=0, atol=1e-6)


def test_without_adapters_nothing_changes():
    network = nn.Linear(2, 2)
    assert LowRankAdapters().add_to(network, lambda: 1 / 0) is network
    assert merge_adapters(network) is network


def test_stacked_adapters_under_vmap():
    network, x = make(rank=2, targets=["encoder"]), torch.rand(4, 3, 6)
    each = [with_values(network, seed) for seed in range(3)]
    assert {name.split(".lora")[0] for name in each[0]} == {"encoder.linear1", "encoder.linear2"}
    stacked = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    call = lambda leaves: functional_call(network, leaves, (x,)).sum()  # noqa: E731
    torch.testing.assert_close(vmap(grad(call))(stacked)["encoder.linear2.lora_A.default.weight"][1],
                               grad(call)(each[1])["encoder.linear2.lora_A.default.weight"])  # fmt: skip


def test_models_share_the_frozen_part_and_have_adapters_of_their_own():
    task = Task.create(lambda: make(rank=1), MULTICLASS, 5)
    models = task.init(3, 5)
    numbers = sum(leaf[0].numel() for leaf in models.parameters.values())
    assert numbers == (6 + 5) + 2 * (6 + 8) + (5 * 3 + 3)
    one, other, _ = models.parameters["first.lora_A.default.weight"]
    assert not torch.equal(one, other)
    assert torch.equal(one, task.init(1, 5).parameters["first.lora_A.default.weight"][0])
    assert sum(leaf.numel() for leaf in task.frozen.values()) + numbers - (6 + 5) - 2 * (6 + 8) == sum(
        leaf.numel() for leaf in Attention().parameters()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 2, "targets": ["zzz"]}, r"lora_targets has 'zzz', which matches no linear layer of Attention; "
         r"it has first, encoder\.linear1, encoder\.linear2$"),
        ({"rank": 2, "targets": ["*", "*.out_proj"]}, r"'\*\.out_proj', but Attention reads the weights of encoder\."
         r"self_attn\.out_proj without calling the layer, which bypasses adapters; it has first, "),
        ({"rank": 2, "targets": ["head"]}, "has 'head', but head of Attention is not frozen; it has first, enc"),
        ({"rank": 6}, r"lora_rank is 6, but the matrix of first is \[5, 6\]; give at most 5, or other --model\.lora"),
    ],
)  # fmt: skip
def test_layers_that_cannot_have_one(settings, message):
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_a_network_without_frozen_linear_layers():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match="lora_rank is 1, but Sequential has no frozen linear layer"):
        LowRankAdapters(1).add_to(network, lambda: network(torch.zeros(1, 4)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": ["a"]}, r"lora_targets is \['a'\], .* give --model\.lora_rank"),
        ({"alpha": 2.0}, "lora_alpha is 2.0, .* give --model.lora_rank"),
        ({"rank": 0}, "lora_rank is 0; give a whole number >= 1, or null for no adapters"),
        ({"rank": 1, "alpha": 0.0}, "lora_alpha is 0.0; give a number > 0, or null for the rank"),
    ],
)
def test_settings_that_mean_nothing(settings, message):
    with pytest.raises(ConfigError, match=message):
        LowRankAdapters(**settings).check()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ConfigError, match=r'lora_rank needs the package peft; pip install "peft>=0\.21,<1" \(the extra lo'
    ):
        make(rank=2)
