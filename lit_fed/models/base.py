"""What a network has to be, and checks of the sizes that it is built from."""

from __future__ import annotations

import inspect
import math
from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from lit_fed.errors import ConfigError

__all__ = [
    "Network",
    "build_network",
    "call_with_sizes",
    "check_dropout",
    "check_outputs",
    "check_sizes",
    "image_shape",
    "maker_of",
    "size_names",
    "zero_outputs",
]

OTHER = "choose another --model.network, or correct the data"


class Network(nn.Module, metaclass=ABCMeta):
    """A plain module built from the sizes of the data; any other `nn.Module` counts as one, see `call_with_sizes`.

    Subclasses take `input_shape` (of one sample) and `num_outputs` first, then options of their own; these appear on
    the command line as `--model.network.<option>`. Parameters with `requires_grad` False are neither trained nor sent;
    all models and all clients have those of the first initial model. Lazy layers get their sizes from the samples.

    Attributes:
        vmappable: whether `torch.func.vmap` can run it; if not, clients are trained one after another.
        head_names: parameters of the classifier; empty: those of the last layer.
    """

    vmappable: bool = True
    head_names: frozenset[str] = frozenset()

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        """A class of one's own stands wherever a network is wanted, without deriving from this one."""
        return issubclass(other, nn.Module) if cls is Network else NotImplemented


def image_shape(
    network: str, input_shape: tuple[int, ...], smallest: int = 1, channels: int | None = None
) -> tuple[int, int, int]:
    """Channels, height and width of the samples that a network for images is built for.

    Args:
        network: its name, for the message.
        input_shape: shape of one sample.
        smallest: height and width in pixels that it needs at least.
        channels: how many it reads; None: any number.

    Raises:
        ConfigError: if the samples are no such images.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest or channels not in (None, input_shape[0]):
        raise ConfigError(
            f"{network} reads images [{channels or 'channels'}, height >= {smallest}, width >= {smallest}], the "
            f"samples are {list(input_shape)}; choose another --model.network, such as MLP"
        )
    return input_shape[0], input_shape[1], input_shape[2]


def check_sizes(**sizes: int) -> None:
    """Options that count something.

    Args:
        sizes: the options by name.

    Raises:
        ConfigError: naming the first that is below 1.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"--model.network.{name} is {size}; give a whole number >= 1")


def check_dropout(dropout: float) -> None:
    """Refuse a share of dropped units outside its range.

    Raises:
        ConfigError: naming the value.
    """
    if not 0 <= dropout < 1:
        raise ConfigError(f"--model.network.dropout is {dropout}; give a number in [0, 1)")


def build_network(
    network: Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    input_type: torch.dtype,
    num_outputs: int,
) -> nn.Module:
    """A network from its class or function; lazy layers get their sizes from a pass over zeros in evaluation mode.

    Args:
        network: makes it from the sizes of the data, as `call_with_sizes` says.
        input_shape: shape of one sample.
        input_type: type of the samples.
        num_outputs: K.

    Raises:
        ConfigError: if it cannot be built or is no module, or a lazy layer takes no part in the pass.
    """
    name = getattr(maker_of(network)[0], "__name__", "as it is given")
    try:
        module = call_with_sizes(network, input_shape, num_outputs, base=Network)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--model.network {name} cannot be built for samples {list(input_shape)} and {num_outputs} "
            f"outputs ({_reason(error)}); correct the class or its options, or choose another --model.network"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"--model.network {name} gives {type(module).__name__}, and an nn.Module is wanted")
    if not _lazy_leaves(module):
        return module
    zero_outputs(module, input_shape, input_type)
    if left := _lazy_leaves(module):
        raise ConfigError(
            f"{type(module).__name__} has lazy layers that its forward pass does not use ({', '.join(left)}); give "
            "them their sizes in the class, or leave them out"
        )
    return module


def _lazy_leaves(network: nn.Module) -> list[str]:
    leaves = (*network.named_parameters(), *network.named_buffers())
    return [name for name, leaf in leaves if isinstance(leaf, UninitializedTensorMixin)]


def check_outputs(
    network: nn.Module, input_shape: tuple[int, ...], input_type: torch.dtype, output_shape: tuple[int, ...]
) -> None:
    """Refuse a network whose outputs do not fit the labels, before anything is trained.

    Args:
        network: the network, with floating-point weights of the type of floating-point inputs.
        input_shape: shape of one sample.
        input_type: type of the samples.
        output_shape: wanted for one sample: (K,), or (L, K) where labels have L positions.

    Raises:
        ConfigError: naming the network, the samples, and the outputs that the labels need.
    """
    with torch.random.fork_rng(devices=[]):
        found = tuple(zero_outputs(network, input_shape, input_type).shape[1:])
    if found != output_shape:
        # labels [n, L] are sequences; where the network gives one prediction, they are more often something else
        flat = (
            ": labels [n, 1] as [n], those that are one-hot as y.argmax(1); several labels of a sample, each 0 or 1, "
            "are told by --data.dataset.labels multilabel"
            if len(output_shape) > len(found)
            else ""
        )
        raise ConfigError(
            f"{type(network).__name__} gives {_samples(input_shape, input_type)} outputs {list(found)}, and labels of "
            f"shape {list(output_shape[:-1])} need {list(output_shape)}, which ends with the number of outputs; {OTHER}"
            f"{flat}"
        )


def zero_outputs(network: nn.Module, input_shape: tuple[int, ...], input_type: torch.dtype) -> Tensor:
    """Outputs [2, ...] of two samples of zeros in evaluation mode; BatchNorm refuses a single one.

    Raises:
        ConfigError: naming the network and what went wrong, whatever its forward pass raises.
    """
    samples = f"{type(network).__name__} cannot read {_samples(input_shape, input_type)}"
    network.eval()
    try:
        with torch.no_grad():
            outputs = network(torch.zeros(2, *input_shape, dtype=input_type))
    except Exception as error:
        tokens = "; integers are token ids, so store features as floats" if input_type == torch.int64 else ""
        raise ConfigError(f"{samples} ({_reason(error)}){tokens}; {OTHER}") from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"{type(network).__name__} gives {type(outputs).__name__}, not a tensor of outputs [B, K]; return the "
            "outputs alone from its forward pass"
        )
    return outputs


def _samples(input_shape: tuple[int, ...], input_type: torch.dtype) -> str:
    return f"samples {list(input_shape)} of {input_type}"


def _reason(error: Exception) -> str:
    """What was raised, in one line; the type says nothing where PyTorch refuses shapes, which is the common case."""
    said = str(error).replace("\\n", "\n").partition("\n")[0]  # PyTorch adds frames, also of errors that it quotes
    return said if isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}"


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
