"""What is trained, chosen by name; what is at rest; the digest."""

import pytest
import torch
from torch import nn

from lit_fed.core.networks.layers import (
    at_rest,
    choose_trained,
    digest_of,
    drops_units,
    frozen_leaves,
    normalises_batches,
    train_mode,
)
from lit_fed.errors import ConfigError
from lit_fed.models import LeafCNN, Linear


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
        (
            ["clasifier"],
            r"has 'clasifier', which matches no .* of LeafCNN; did you mean classifier\? There are feat",
        ),
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
