import pytest
import torch
from federated_round import MULTICLASS, make_clients, make_task, run_rounds, same_bits
from torch._functorch import predispatch
from torch.func import vmap

from lit_fed.algorithms import FedAvg, FedEM, PFedMe
from lit_fed.clients import VectorizedTrainer, at_once
from lit_fed.core.types import ModelState
from lit_fed.models import MLP

LOOKED_UP = at_once._private_layer.__wrapped__


@pytest.fixture(params=["private", "public"])
def names(request):
    """With the steps of vmap that PyTorch keeps private, and without them."""
    if request.param == "public":
        request.getfixturevalue("public_names")


def step(models, rows, x):
    parameters = {name: leaf + rows.sum() * x for name, leaf in models.parameters.items()}
    return ModelState(parameters, {"constant": torch.ones(2)}), (rows.max(),), None


@pytest.mark.usefixtures("names")
def test_it_is_vmap():
    models = ModelState({"w": torch.arange(6.0).view(3, 2)}, {})
    rows, x = torch.arange(3), torch.tensor([1.0, 2.0, 3.0])
    found = at_once.at_once(step, models, rows, x)
    expected = vmap(step, out_dims=(0, 0, None))(models, rows, x)
    assert same_bits(found, expected)
    assert found[0].buffers["constant"].shape == (3, 2)


@pytest.mark.usefixtures("names")
def test_none_is_an_empty_tree():
    assert at_once.at_once(lambda x, none: x if none is None else -x, torch.ones(2), None).tolist() == [1, 1]


@pytest.mark.usefixtures("names")
def test_an_error_leaves_nothing_behind():
    def fail(x):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        at_once.at_once(fail, torch.ones(2))
    assert not torch._C._are_functorch_transforms_active()


@pytest.mark.usefixtures("names")
def test_random_draws_are_refused_as_by_vmap():
    with pytest.raises(RuntimeError, match="randomness"):
        at_once.at_once(lambda x: x + torch.randn(()), torch.ones(2))


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2), PFedMe()], ids=lambda one: type(one).__name__)
def test_rounds_by_public_names_are_the_same_bit_for_bit(algorithm, request):
    def after_rounds():
        task = make_task(MULTICLASS, network=lambda shape, outputs: MLP(shape, outputs, (8,)))
        federation = run_rounds(algorithm, VectorizedTrainer(), make_clients([9, 5, 7], target=MULTICLASS), task=task)
        return federation.shared, federation.states

    before = after_rounds()
    request.getfixturevalue("public_names")
    assert same_bits(before, after_rounds())


def test_private_steps_are_left_alone_where_they_are_gone_or_others(monkeypatch):
    found = LOOKED_UP
    assert found() is not None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C._functorch, "_add_batch_dim", lambda leaf, level: leaf)
        assert found() is None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C._functorch, "_remove_batch_dim", lambda leaf, level, size, place: leaf)
        assert found() is None
    monkeypatch.delattr(predispatch, "lazy_load_decompositions")
    assert found() is None
