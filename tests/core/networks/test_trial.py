"""A trial run of networks that a pure function of parameters, buffers and a batch would not describe."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_fed.core.networks.layers import at_rest, frozen_leaves
from lit_fed.core.networks.trial import TriedNetwork, check_kind, check_scores, try_network, why_alone
from lit_fed.errors import ConfigError

EXAMPLE = torch.linspace(0, 1, 12).view(2, 6)


class Net(nn.Module):
    """A layer behind a function of the network and its inputs."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change, self.memory = nn.Linear(6, 2), change, torch.zeros(6)
        self.calls, self.cache = 0, None
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        return self.layer(self.change(self, x))


def tried(network):
    torch.manual_seed(0)
    return try_network(network, at_rest(network), EXAMPLE)


def alone(network):
    return why_alone(network, frozen_leaves(network), at_rest(network), EXAMPLE)


def kept(name):
    """A function that keeps a running mean of its inputs in an attribute, which it assigns anew."""

    def change(net, x):
        if net.training:
            setattr(net, name, 0.9 * getattr(net, name) + 0.1 * x.mean(0).detach())
        return x - getattr(net, name)

    return change


def counted(net, x):
    net.calls += 1
    return x * net.calls


def clamped(net, x):
    with torch.no_grad():
        net.layer.weight.clamp_(-0.01, 0.01)
    return x


def in_place(net, x):
    if net.training:
        net.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
    return x - net.mean


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net, x: x.sub_(3).div_(2), "Net writes its inputs in place"),
        (kept("mean"), "Net assigns mean in its forward pass"),
        (kept("memory"), "Net assigns memory in its forward pass"),
        (counted, "Net assigns calls in its forward pass"),
        (clamped, "Net writes its parameter layer.weight in its forward pass"),
    ],
)
def test_what_a_pure_call_would_drop_or_share_is_refused(change, message):
    network = Net(change)
    before = {name: leaf.clone() for name, leaf in network.state_dict().items()}
    with pytest.raises(ConfigError, match=message):
        tried(network)
    # as before, but for what the network itself wrote into a parameter
    assert torch.equal(network.mean, before["mean"])
    assert torch.equal(network.memory, torch.zeros(6))
    assert (network.calls, network.training) == (0, False)


def cached(net, x):
    net.cache, net.calls = x.detach(), x.sum().detach()
    return x


def last_seen(net, x):
    net.memory = x.detach().mean(0)  # kept for somebody to look at, and never read
    return x


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda net, x: x, TriedNetwork()),
        (last_seen, TriedNetwork()),
        (cached, TriedNetwork()),
        (lambda net, x: F.dropout(x, 0.5, net.training), TriedNetwork()),
        (lambda net, x: x - x.mean(0), TriedNetwork(mixes_samples=True)),
        (in_place, TriedNetwork(mixes_samples=True)),
        (lambda net, x: x + np.random.default_rng().normal(), TriedNetwork(is_seeded=False)),
    ],
    ids=["plain", "last seen", "cached", "dropout", "centred", "running mean", "NumPy's numbers"],
)
def test_findings(change, found):
    network = Net(change)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    assert try_network(network, at_rest(network), EXAMPLE) == found
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(network.mean, torch.zeros(6))


def test_a_last_layer_of_zeros_hides_nothing_and_is_no_probability():
    network = Net(lambda net, x: x - x.mean(0)).eval()
    for leaf in network.layer.parameters():
        nn.init.zeros_(leaf)
    assert tried(network) == TriedNetwork(mixes_samples=True)
    check_scores(network, {}, EXAMPLE)
    assert not network.layer.weight.any()


@pytest.mark.parametrize(
    ("layer", "mixes"),
    [
        (nn.BatchNorm1d(6), False),  # known by its class: clients' batches of equal width go together
        (nn.BatchNorm1d(6, track_running_stats=False), True),  # in evaluation, too
        (nn.LayerNorm(6), False),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), False),
    ],
)
def test_layers(layer, mixes):
    assert tried(nn.Sequential(layer, nn.Linear(6, 2))).mixes_samples is mixes


@pytest.mark.parametrize(
    "change",
    [
        lambda net, x: x / x.abs().max().item(), lambda net, x: x if x.sum() > 0 else -x,
        lambda net, x: F.dropout(x, 0.5, net.training),
        lambda net, x: x + torch.randn_like(x) if net.training else x,
    ],
    ids=["item", "branch", "dropout", "noise"],
)  # fmt: skip
def test_what_vmap_cannot_run_is_found_before_training(change):
    assert alone(Net(change)).startswith("a forward pass that vmap cannot run (")
    assert alone(Net(lambda net, x: x)) == ""


@pytest.mark.parametrize(
    ("end", "outputs", "last"),
    [
        (nn.Softmax(1), 2, "softmax"), (nn.Sigmoid(), 1, "sigmoid"), (nn.Sigmoid(), 3, "sigmoid"),
        (nn.LogSoftmax(1), 2, ""), (nn.Identity(), 2, ""), (nn.ReLU(), 2, ""), (nn.Tanh(), 1, ""),
    ],
)  # fmt: skip
def test_probabilities_are_refused(end, outputs, last):
    for seed in range(5):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(6, outputs), end).eval()
        if not last:
            check_scores(network, {}, EXAMPLE)
            continue
        with pytest.raises(ConfigError, match=f"as after a {last}; leave the {last} out"):
            check_scores(network, {}, EXAMPLE)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        pytest.param(
            lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 2))),
            "give the module that was compiled",
            marks=pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning"),
        ),
        (lambda: nn.DataParallel(nn.Linear(6, 2)), "give its .module"),
        (lambda: nn.Sequential(nn.Embedding(9, 2, sparse=True)), "its layer 0 is Embedding with sparse gradients"),
    ],
)
def test_kinds_that_no_client_trainer_runs_are_refused(network, message):
    with pytest.raises(ConfigError, match=message):
        check_kind(network())
