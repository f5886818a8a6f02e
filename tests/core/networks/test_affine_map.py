import pytest
import torch
from federated_round import POSITIONS, make_task
from torch import nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import weight_norm

from lit_fed.core import tree
from lit_fed.core.networks.products import SHORT, AffineMap, affine_map
from lit_fed.models import MLP, Linear


def stacked(num_models, num_outputs, input_shape=(2, 3)):
    networks = [Linear(input_shape, num_outputs).double() for _ in range(num_models)]
    return networks, tree.stack([{name: leaf.detach() for name, leaf in one.named_parameters()} for one in networks])


@pytest.mark.parametrize("num_samples", [5, SHORT + 1])
@pytest.mark.parametrize("num_outputs", [1, 2, 4])  # three models: 3, 6 or 12 columns
@pytest.mark.parametrize("per_model", [False, True])
def test_stacked_models_give_what_each_gives(num_samples, num_outputs, per_model):
    networks, parameters = stacked(3, num_outputs)
    affine = affine_map(networks[0])
    x = torch.randn(*([3] if per_model else []), num_samples, 2, 3, dtype=torch.float64)
    outputs = affine.outputs(parameters, x, per_model)
    assert outputs.shape == (num_samples, 3, num_outputs)
    residual = torch.randn(num_samples, 3, num_outputs, dtype=torch.float64)
    gradient = affine.gradient(x, residual, per_model)
    for m, network in enumerate(networks):
        own_x = x[m] if per_model else x
        own = network(own_x)
        torch.testing.assert_close(outputs[:, m], own.detach(), rtol=0, atol=1e-12)
        expected = torch.autograd.grad((own * residual[:, m]).sum(), list(network.parameters()))
        torch.testing.assert_close(list(tree.index(gradient, m).values()), list(expected), rtol=0, atol=1e-10)


def test_one_model_is_a_stack_of_one():
    networks, parameters = stacked(1, 2)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = functional_call(networks[0], tree.index(parameters, 0), (x,))
    found = affine_map(networks[0]).outputs(parameters, x, False)[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class Named(nn.Sequential):
    """A class of its own may do anything in its forward."""


class Doubled(Linear):
    """What it inherits says what another forward computes."""

    def forward(self, x):
        return 2 * super().forward(x)


def hooked(layer):
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    return layer


def replaced(layer):
    layer.forward = lambda x: x[:, :2]
    return layer


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (Linear((4,), 2), ("linear.weight", "linear.bias")),
        (nn.Linear(4, 2), ("weight", "bias")),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), ("1.weight", "1.bias")),
        (nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(4, 2)), ("2.weight", "2.bias")),
    ],
)
def test_affine_networks_are_known(network, names):
    assert affine_map(network) == AffineMap(*names)


@pytest.mark.parametrize(
    "network",
    [
        MLP((4,), 2), nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear(4, 2, bias=False),
        nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.BatchNorm1d(4), nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
        nn.Sequential(), Named(nn.Linear(4, 2)), weight_norm(nn.Linear(4, 2)),
        hooked(nn.Linear(4, 2)), nn.Sequential(nn.Flatten(), hooked(nn.Linear(4, 2))), nn.Flatten(),
        nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)), Doubled((4,), 2), hooked(Linear((4,), 2)),
        replaced(nn.Linear(4, 2)), replaced(Linear((4,), 2)),
    ],
    ids=str,
)  # fmt: skip
def test_others_are_not(network):
    assert affine_map(network) is None


def test_positions_are_no_features():
    """PyTorch's layer maps each position by itself; the closed form would take all of them for one sample."""
    task = make_task(POSITIONS, network=lambda *_: nn.Linear(4, POSITIONS.num_outputs))
    assert affine_map(task.network) is not None
    assert task.closed_form is None
    outputs = task.outputs(task.init(2, 0), torch.randn(5, 7, 4, dtype=task.dtype))
    assert outputs.shape == (5, 2, 7, POSITIONS.num_outputs)
