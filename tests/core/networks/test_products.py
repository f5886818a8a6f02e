import pytest
import torch
from federated_round import same_bits
from torch.func import vmap
from torch.nn import functional as F

from lit_fed.core.networks import products

LOOKED_UP = products._has_private_names.__wrapped__

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="PyTorch without oneDNN's product of plain tensors"
)


@pytest.fixture(autouse=True)
def an_amd_processor(monkeypatch):
    monkeypatch.setattr(products, "_prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "SMALLEST", 4 * 6 * 5)


def operands(*shape):
    torch.manual_seed(0)
    return [torch.randn(one, requires_grad=True) for one in (shape, (5, 6), (5,))]


def calls(monkeypatch):
    seen, product = [], products._product
    monkeypatch.setattr(products, "_product", lambda *given: seen.append(0) or product(*given))
    return seen


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_the_other_library(monkeypatch, shape, with_bias):
    given, seen = operands(*shape)[: 2 + with_bias], calls(monkeypatch)
    weights = torch.randn(*shape[:-1], 5)
    expected = F.linear(*given)
    gradient = torch.autograd.grad((expected * weights).sum(), given)
    with products.fast_products():
        found = F.linear(*given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), given), gradient)
    assert len(seen) == 3


def test_only_gradients_that_are_wanted_are_computed(monkeypatch):
    x, weight, bias = operands(4, 6)
    seen = calls(monkeypatch)
    with products.fast_products():
        F.linear(x.detach(), weight, bias).sum().backward()
    assert len(seen) == 2
    assert x.grad is None


def test_small_wide_and_narrow_layers_stay(monkeypatch):
    x, weight, bias = operands(4, 6)
    seen = calls(monkeypatch)
    with products.fast_products():
        assert same_bits(F.linear(x[:3], weight, bias), F.linear(x[:3], weight, bias))
        F.linear(x.double(), weight.double(), bias.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert F.linear(x, weight, bias).dtype == torch.bfloat16
    F.linear(x, weight, bias)
    assert not seen


def test_transformations_go_by_the_other_library(monkeypatch):
    x, weight, bias = operands(4, 6)
    seen = calls(monkeypatch)

    def outputs(one):
        with products.fast_products():
            return F.linear(one, weight, bias)

    torch.testing.assert_close(vmap(outputs)(x.expand(2, 4, 6)), F.linear(x, weight, bias).expand(2, 4, 5))
    assert not seen


def test_a_second_derivative_is_refused():
    x, weight, bias = operands(4, 6)
    with products.fast_products():
        (gradient,) = torch.autograd.grad(F.linear(x, weight, bias).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_without_its_private_names_the_other_library_is_left_alone(monkeypatch):
    found = LOOKED_UP
    assert found()
    monkeypatch.setattr(products, "_product", lambda x, weight: x)  # takes other arguments
    assert not found()
    monkeypatch.undo()
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    assert not found()
