import pytest
import torch
from federated_round import same_bits
from torch.func import vmap

from lit_fed.clients.at_once import at_once
from lit_fed.core.types import ModelState


def step(models, rows, x):
    parameters = {name: leaf + rows.sum() * x for name, leaf in models.parameters.items()}
    return ModelState(parameters, {"constant": torch.ones(2)}), (rows.max(),), None


def test_it_is_vmap():
    models = ModelState({"w": torch.arange(6.0).view(3, 2)}, {})
    rows, x = torch.arange(3), torch.tensor([1.0, 2.0, 3.0])
    found = at_once(step, models, rows, x)
    expected = vmap(step, out_dims=(0, 0, None))(models, rows, x)
    assert same_bits(found, expected)
    assert found[0].buffers["constant"].shape == (3, 2)


def test_none_is_an_empty_tree():
    assert at_once(lambda x, none: x if none is None else -x, torch.ones(2), None).tolist() == [1, 1]


def test_an_error_leaves_nothing_behind():
    def fail(x):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        at_once(fail, torch.ones(2))
    assert not torch._C._are_functorch_transforms_active()


def test_random_draws_are_refused_as_by_vmap():
    with pytest.raises(RuntimeError, match="randomness"):
        at_once(lambda x: x + torch.randn(()), torch.ones(2))
