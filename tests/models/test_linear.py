import math

import pytest
import torch

from lit_fed.models import Linear, Network


@pytest.mark.parametrize("input_shape", [(6,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("num_outputs", [1, 4])
def test_shapes(input_shape, num_outputs):
    network = Linear(input_shape, num_outputs)
    assert isinstance(network, Network)
    assert network(torch.randn(5, *input_shape)).shape == (5, num_outputs)
    assert network(torch.randn(0, *input_shape)).shape == (0, num_outputs)
    assert sum(leaf.numel() for leaf in network.parameters()) == num_outputs * (math.prod(input_shape) + 1)
