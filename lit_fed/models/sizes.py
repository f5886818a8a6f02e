"""Sizes of the data for whatever makes a network, by the names of its parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from lit_fed.errors import ConfigError

__all__ = ["call_with_sizes", "maker_of", "size_names"]

FEATURES = ("in_features", "input_size", "input_dim")
"""Parameters that take the number of values of one sample."""

CHANNELS = ("in_channels", "in_chans")
"""Parameters that take the length of a sample's first axis."""

OUTPUTS = ("num_outputs", "num_classes", "n_classes", "num_labels", "out_features", "output_size", "output_dim")
"""Parameters that take the number of outputs, which is 1 for two classes and for regression."""

NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def size_names(maker: Callable[..., Any]) -> set[str]:
    """Parameters of a class or function that the data fill in, so that nobody has to give them."""
    known = {"input_shape", *FEATURES, *CHANNELS, *OUTPUTS}
    return known & {name for name, one in _parameters(maker).items() if one.kind in NAMED}


def call_with_sizes(
    network: Callable[..., nn.Module], input_shape: tuple[int, ...], num_outputs: int, *, base: type
) -> nn.Module:
    """A network from its class or from a function, which get the sizes that they ask for.

    A class derived from `Network`, and a function of two parameters of other names, take the shape of a sample and the
    number of outputs in this order. All others take sizes by name; one that takes `**options`, as torchvision's
    functions do, and names no parameter for outputs, gets `num_classes`.

    Args:
        network: the class or function, with options bound to it or without.
        input_shape: of one sample.
        num_outputs: K.
        base: `Network`.

    Raises:
        ConfigError: naming a parameter that neither the data nor the options fill in.
    """
    maker, given = maker_of(network)
    parameters = _parameters(maker)
    derived = isinstance(maker, type) and base in maker.__mro__
    if derived or _takes_both_in_order(parameters, given):
        return network(input_shape, num_outputs)
    shown = getattr(maker, "__name__", type(maker).__name__)
    sizes = {name: _size(name, input_shape, num_outputs, shown) for name in size_names(maker) - given.keys()}
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if open_ended and not {*OUTPUTS} & (sizes.keys() | given.keys()):
        sizes["num_classes"] = num_outputs
    missing = [name for name in _required(parameters) if name not in sizes and name not in given]
    if missing:
        raise ConfigError(
            f"--model.network {shown} needs {', '.join(missing)}, which the data do not tell; give "
            f"--model.network.{missing[0]} VALUE or a default, or call it by the size that it means: input_shape, "
            f"{', '.join((*FEATURES, *CHANNELS))} for inputs, {', '.join(OUTPUTS[:2])} for outputs"
        )
    return network(**sizes)


def _parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(maker).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return {}


def _required(parameters: dict[str, inspect.Parameter]) -> list[str]:
    return [name for name, one in parameters.items() if one.kind in NAMED and one.default is one.empty]


def _takes_both_in_order(parameters: dict[str, inspect.Parameter], given: dict[str, Any]) -> bool:
    """Whether it is called with the shape of a sample and the number of outputs, whatever it calls them."""
    kinds = {one.kind for one in parameters.values()}
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        return True
    needed = [name for name in _required(parameters) if name not in given]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return not needed
    inputs = {"input_shape", *FEATURES, *CHANNELS}
    return len(needed) == 2 and needed[0] not in inputs.union(OUTPUTS) - {"input_shape"} and needed[1] not in inputs


def maker_of(network: Callable[..., nn.Module]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The class or function behind a network, and the options that are bound to it.

    The command line hands a class over as an argument of a function of its own, with the options bound to that.
    """
    given: dict[str, Any] = {}
    while isinstance(network, partial):
        given = {**network.keywords, **given}
        network = next((one for one in network.args if isinstance(one, type)), network.func)
    return network, given


def _size(name: str, input_shape: tuple[int, ...], num_outputs: int, shown: str) -> Any:
    if name in OUTPUTS:
        return num_outputs
    if name in FEATURES:
        return math.prod(input_shape)
    if name == "input_shape":
        return input_shape
    if len(input_shape) < 2:
        raise ConfigError(
            f"--model.network {shown} needs {name}, and the samples {list(input_shape)} have no channels; choose "
            "another --model.network, such as MLP"
        )
    return input_shape[0]
