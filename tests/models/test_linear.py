import math

import pytest
import torch
from torch.func import functional_call

from lit_fed.core import tree
from lit_fed.core.networks.closed_form import ClosedForm
from lit_fed.models import Linear, Network
from lit_fed.models.linear import SHORT


@pytest.mark.parametrize("input_shape", [(6,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("num_outputs", [1, 4])
def test_shapes(input_shape, num_outputs):
    network = Linear(input_shape, num_outputs)
    assert isinstance(network, Network)
    assert network(torch.randn(5, *input_shape)).shape == (5, num_outputs)
    assert network(torch.randn(0, *input_shape)).shape == (0, num_outputs)
    assert sum(leaf.numel() for leaf in network.parameters()) == num_outputs * (math.prod(input_shape) + 1)


def stacked(num_models, num_outputs, input_shape=(2, 3)):
    networks = [Linear(input_shape, num_outputs).double() for _ in range(num_models)]
    return networks, tree.stack([{name: leaf.detach() for name, leaf in one.named_parameters()} for one in networks])


def test_it_has_a_closed_form():
    assert isinstance(Linear((2,), 1), ClosedForm)


@pytest.mark.parametrize("num_samples", [5, SHORT + 1])
@pytest.mark.parametrize("num_outputs", [1, 2, 4])  # three models: 3, 6 or 12 columns
@pytest.mark.parametrize("per_model", [False, True])
def test_stacked_models_give_what_each_gives(num_samples, num_outputs, per_model):
    networks, parameters = stacked(3, num_outputs)
    x = torch.randn(*([3] if per_model else []), num_samples, 2, 3, dtype=torch.float64)
    outputs = networks[0].stacked_outputs(parameters, x, per_model)
    assert outputs.shape == (num_samples, 3, num_outputs)
    residual = torch.randn(num_samples, 3, num_outputs, dtype=torch.float64)
    gradient = networks[0].stacked_gradient(x, residual, per_model)
    for m, network in enumerate(networks):
        own_x = x[m] if per_model else x
        own = network(own_x)
        torch.testing.assert_close(outputs[:, m], own.detach(), rtol=0, atol=1e-12)
        expected = torch.autograd.grad((own * residual[:, m]).sum(), list(network.parameters()))
        torch.testing.assert_close(list(tree.index(gradient, m).values()), list(expected), rtol=0, atol=1e-12)


def test_one_model_is_a_stack_of_one():
    networks, parameters = stacked(1, 2)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = functional_call(networks[0], tree.index(parameters, 0), (x,))
    torch.testing.assert_close(networks[0].stacked_outputs(parameters, x, False)[:, 0], expected, rtol=0, atol=1e-12)
