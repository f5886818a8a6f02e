"""Dense layers on processors whose matrix products the default library does not know well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 - the name everybody knows
from torch.overrides import TorchFunctionMode

__all__ = ["fast_products"]

SMALLEST = 2**24
"""Multiplications of a layer from which the other library is worth the call: rows times inputs times outputs."""


@contextmanager
def fast_products() -> Iterator[None]:
    """Take the products of large dense layers in float32 from oneDNN where it is the faster library.

    PyTorch takes them from MKL, which on AMD's processors leaves half of AVX-512 idle: a layer of 1600 by 2048 with
    120 samples reached 90 GFLOP/s there and 200 with oneDNN, which PyTorch takes its convolutions from. The numbers
    are the same up to rounding. Which library it is depends on the processor and the shapes alone.

    For passes of one model with first derivatives; transformations of `torch.func` go by MKL.
    """
    if not _prefers_onednn() or torch._C._are_functorch_transforms_active():
        yield
        return
    with _DenseLayers():
        yield


class _DenseLayers(TorchFunctionMode):
    """Sends `F.linear` to oneDNN."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and _suits(*args):
            x, weight, *bias = args
            out = _Dense.apply(x.flatten(0, -2), weight, bias[0] if bias else None)
            return out.view(*x.shape[:-1], -1)
        return func(*args, **(kwargs or {}))


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether a layer is one of those that oneDNN is for."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.ndim > 1
        and x.numel() * len(weight) >= SMALLEST
        and not torch.is_autocast_enabled("cpu")
    )


class _Dense(torch.autograd.Function):
    """x Wᵀ + b with rows [B, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product, [B, K]."""
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of the inputs, the weight and the bias, of those that are asked for."""
        (x, weight), gradient = ctx.saved_tensors, gradients[0]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_x else None,
            _product(gradient.t(), x.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x Wᵀ + b by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], None)  # type: ignore[no-any-return]


@cache
def _prefers_onednn() -> bool:
    """Whether this is a processor of AMD with AVX-512, and this PyTorch has oneDNN's product for plain tensors."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if not (str(known.get("cpu_name", "")).startswith("AMD") and known.get("avx512_f")):
        return False
    return torch.backends.mkl.is_available() and _has_private_names()


@cache
def _has_private_names() -> bool:
    """Whether oneDNN's product, and the question for transformations, work; otherwise products are MKL's."""
    x, weight, bias = torch.ones(2, 3), torch.ones(2, 3), torch.ones(2)
    try:
        return not torch._C._are_functorch_transforms_active() and torch.allclose(
            _product(x, weight, bias), F.linear(x, weight, bias)
        )
    except (AttributeError, TypeError, RuntimeError):
        return False
