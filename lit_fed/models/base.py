"""Interface of networks, building them from the sizes of the data, and checks of their outputs."""

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

from lit_fed.core.named_inputs import NamedInputs, read_by_name
from lit_fed.core.own_module import prepared, trains_itself
from lit_fed.errors import ConfigError

__all__ = [
    "Network", "build_network", "call_with_sizes", "check_dropout", "check_outputs", "check_sizes", "image_shape",
    "looks_transposed", "maker_of", "size_names", "zero_outputs",
]  # fmt: skip

OTHER = "choose another --model.network, or correct the data"

TOKENS = (
    "integers are token ids: choose a --model.network for them, HuggingFaceClassifier, or for next tokens CharLSTM or "
    "HuggingFaceCausalLM; or store features as floats"
)


class Network(nn.Module, metaclass=ABCMeta):
    """A plain module built from the sizes of the data; other `nn.Module` classes are accepted, see `call_with_sizes`.

    Subclasses take `input_shape` (of one sample) and `num_outputs` first, then options, `--model.network.<option>` on
    the command line. Parameters with `requires_grad` False are neither trained nor sent; all models and clients share
    those of the first initial model. Lazy layers get their sizes from the samples.

    Attributes:
        vmappable: whether `torch.func.vmap` can run it; otherwise clients train one after another.
        head_names: parameters of the classifier; empty: the last layer's.
        keeps_head: beside adapters the last layer is frozen too, unless `--model.trainable` says otherwise.
        frozen_dtype: floating type of the frozen parameters; None: that of the trained ones.

    A network whose last layer does not give its outputs may define `split(self)`, which returns two functions or
    modules, from inputs to features and from features to outputs, so that outputs are those of one after the other.
    """

    vmappable: bool = True
    head_names: frozenset[str] = frozenset()
    keeps_head: bool = False
    frozen_dtype: torch.dtype | None = None

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        """Accept every `nn.Module` class as a network."""
        return issubclass(other, nn.Module) if cls is Network else NotImplemented


def image_shape(
    network: str, input_shape: tuple[int, ...], smallest: int = 1, channels: int | None = None
) -> tuple[int, int, int]:
    """Check that samples are images and return channels, height and width.

    Args:
        network: name for the message.
        input_shape: shape of one sample.
        smallest: minimum height and width in pixels.
        channels: required number of channels; None: any.

    Raises:
        ConfigError: if the samples are not such images.
    """
    hint, misfit = looks_transposed(input_shape, channels), channels not in (None, input_shape[0])
    if hint or len(input_shape) != 3 or min(input_shape[1:]) < smallest or misfit:
        raise ConfigError(
            f"{network} reads images [{channels or 'channels'}, height >= {smallest}, width >= {smallest}], the "
            f"samples are {list(input_shape)}; {hint or 'choose another --model.network, such as MLP'}"
        )
    return input_shape[0], input_shape[1], input_shape[2]


SMALLEST_PICTURE = 8
"""Pixels each way, below which samples are not taken for pictures of another layout."""


def looks_transposed(input_shape: tuple[int, ...], channels: int | None = None) -> str:
    """Advice for samples that look like images in another layout; empty if they do not.

    Args:
        input_shape: shape of one sample.
        channels: number of channels that the network reads; None: any.

    Example:
        >>> looks_transposed((32, 32, 3))
        'they look like [height, width, channels]: store x = np.moveaxis(x, -1, 1), which is [n, 3, 32, 32]'
        >>> looks_transposed((784,))
        'they look like flat pictures: store x = x.reshape(-1, 1, 28, 28)'
        >>> looks_transposed((28, 28))
        'they look like pictures without channels: store x = x[:, None], which is [n, 1, 28, 28]'
        >>> looks_transposed((28, 28), channels=3)
        'they look like pictures without channels: store x = np.repeat(x[:, None], 3, 1), which is [n, 3, 28, 28]'
        >>> looks_transposed((3, 32, 32)), looks_transposed((10,))
        ('', '')
    """
    *sides, last = input_shape
    if len(sides) == 2 and min(sides) >= SMALLEST_PICTURE and last in COLOURS:
        x, held = _with_channels("np.moveaxis(x, -1, 1)", last, channels)
        return f"they look like [height, width, channels]: store x = {x}, which is [n, {held}, {sides[0]}, {sides[1]}]"
    if len(sides) == 2 and min(sides[1], last) >= SMALLEST_PICTURE and {sides[0], channels} == {1, 3}:
        x, held = _with_channels("x", sides[0], channels)
        another = "or choose another --model.network"
        return f"they look like pictures with {sides[0]} of {held} channels: store x = {x}, {another}"
    if len(sides) == 1 and sides[0] == last >= SMALLEST_PICTURE:
        x, held = _with_channels("x[:, None]", 1, channels)
        return f"they look like pictures without channels: store x = {x}, which is [n, {held}, {last}, {last}]"
    for own in (1, 3) if not sides else ():
        side = math.isqrt(last // own)
        if side >= SMALLEST_PICTURE and own * side**2 == last:
            x, _ = _with_channels(f"x.reshape(-1, {own}, {side}, {side})", own, channels)
            return f"they look like flat pictures: store x = {x}"
    return ""


COLOURS = (1, 3, 4)
"""Numbers of channels of pictures."""


def _with_channels(x: str, own: int, wanted: int | None) -> tuple[str, int]:
    """The expression of pictures with some channels as one of pictures with others, and their number."""
    if wanted not in COLOURS or wanted == own:
        return x, own
    if own == 1:
        return f"np.repeat({x}, {wanted}, 1)", wanted
    return (f"{x}.mean(1, keepdims=True)", 1) if wanted == 1 else (f"{x}[:, :{wanted}]", min(own, wanted))


def check_sizes(**sizes: int) -> None:
    """Raise a `ConfigError` naming the first option below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"--model.network.{name} is {size}; give a whole number >= 1")


def check_dropout(dropout: float) -> None:
    """Raise a `ConfigError` for a dropout outside [0, 1)."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"--model.network.dropout is {dropout}; give a number in [0, 1)")


def build_network(
    network: Callable[..., nn.Module], input_shape: tuple[int, ...], input_type: torch.dtype, num_outputs: int | None,
    inputs: NamedInputs | None = None, *, own_steps: bool = False,
) -> nn.Module:  # fmt: skip
    """Build a network; lazy layers get their sizes from a pass over zeros in evaluation mode.

    Args:
        network: class or function, see `call_with_sizes`.
        input_shape: shape of one sample.
        input_type: type of the samples.
        num_outputs: K; None: the labels do not tell.
        inputs: that a sample holds, which the network gets by name; None: a sample is one input.
        own_steps: whether a module that computes its loss itself is trained by that, and reads its batches itself.

    Raises:
        ConfigError: if it cannot be built, is no module, does not take the inputs, or has unused
            lazy layers.
    """
    sizes = input_shape if inputs is None else inputs.shapes_of_network
    name = getattr(maker_of(network)[0], "__name__", "as it is given")
    try:
        module = call_with_sizes(network, sizes, num_outputs, base=Network)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--model.network {name} cannot be built for samples {inputs or list(input_shape)} and {num_outputs} "
            f"outputs ({_reason(error)}); correct the class or its options, or choose another --model.network"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"--model.network {name} returns {type(module).__name__}, not an nn.Module")
    if trains_itself(module):
        prepared(module)
    itself = own_steps and trains_itself(module)
    if inputs is not None and inputs.hold_labels and not itself:
        raise ConfigError(
            f"--model.target is OwnLoss, the loss of a module's training_step, and {type(module).__name__} has none"
            f"{'' if own_steps else ' here, since --model.loss is given'}; give a LightningModule, or another target"
        )
    if inputs is not None and not itself:
        module = read_by_name(module, inputs)
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
    network: nn.Module, input_shape: tuple[int, ...], input_type: torch.dtype, output_shape: tuple[int, ...],
    of_two: str = "",
) -> None:  # fmt: skip
    """Refuse a network whose outputs do not fit the labels.

    Args:
        network: the network, with weights of the inputs' floating type.
        input_shape: shape of one sample.
        input_type: type of the samples.
        output_shape: required for one sample: (K,), or (L, K) for labels with L positions.
        of_two: advice for two outputs in place of one.

    Raises:
        ConfigError: naming the network, the samples, the actual and the required outputs.
    """
    rows = 1 if getattr(network, "keeps_head", False) else 2  # of a language model each takes much memory
    with torch.random.fork_rng(devices=[]):
        found = tuple(zero_outputs(network, input_shape, input_type, rows).shape[1:])
    if found != output_shape:
        # labels [n, L] count as sequences, but with one prediction per sample they usually mean something else
        flat = (
            ": store labels [n, 1] as [n], one-hot labels as y.argmax(1); for several labels 0 or 1 per sample set "
            "--data.dataset.labels multilabel"
            if len(output_shape) > len(found)
            else of_two if found == (*output_shape[:-1], 2) else ""
        )  # fmt: skip
        raise ConfigError(
            f"{type(network).__name__} returns {_batch(found)} for {_samples(input_shape, input_type)}; for these "
            f"labels it should return {_batch(output_shape)}; {OTHER}{flat}"
        )


def zero_outputs(
    network: nn.Module, input_shape: tuple[int, ...], input_type: torch.dtype, rows: int = 2
) -> Tensor:  # fmt: skip
    """Outputs [rows, ...] of samples of zeros in evaluation mode; a `ConfigError` reports a failing forward pass."""
    inputs = getattr(network, "named_inputs", None)
    samples = f"{type(network).__name__} cannot read {inputs or _samples(input_shape, input_type)}"
    network.eval()
    try:
        with torch.no_grad():
            outputs = network(torch.zeros(rows, *input_shape, dtype=input_type))
    except ConfigError:
        raise
    except Exception as error:
        whole = input_type == torch.int64 and inputs is None
        if "dtype" in str(error) and not whole:
            raise ConfigError(
                f"{samples} ({_reason(error)}); parameters and inputs are float32: leave out casts of them, such as "
                ".double() or .to(torch.bfloat16)"
            ) from error
        hint = TOKENS if whole else "" if inputs else looks_transposed(input_shape, _channels_of(network))
        raise ConfigError(f"{samples} ({_reason(error)}); {hint or OTHER}") from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"{type(network).__name__} returns {type(outputs).__name__}, not a tensor of outputs [B, K]; return only "
            "the outputs from its forward pass"
        )
    return outputs


def _channels_of(network: nn.Module) -> int | None:
    """Channels of the pictures that a network reads, by its first convolution; None: unknown."""
    return next((layer.in_channels for layer in network.modules() if type(layer) is nn.Conv2d), None)


def _batch(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(['B', *map(str, shape)])}]"


def _samples(input_shape: tuple[int, ...], input_type: torch.dtype) -> str:
    return f"samples {list(input_shape)} of {input_type}"


def _reason(error: Exception) -> str:
    """The exception in one line; without the type of RuntimeErrors, which are mostly PyTorch's about shapes."""
    said = str(error).replace("\\n", "\n").partition("\n")[0]  # PyTorch appends frames
    return said if isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}"


FEATURES = ("in_features", "input_size", "input_dim")
"""Parameters filled with the number of values of a sample."""

CHANNELS = ("in_channels", "in_chans")
"""Parameters filled with the length of a sample's first axis."""

OUTPUTS = ("num_outputs", "num_classes", "n_classes", "num_labels", "out_features", "output_size", "output_dim")
"""Parameters filled with the number of outputs, which is 1 for two classes and for regression."""

Sizes = tuple[Any, ...] | dict[str, tuple[int, ...]]
"""Shape of a sample, or of each of its inputs."""

NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def size_names(maker: Callable[..., Any]) -> set[str]:
    """Parameters of a class or function that are filled in from the data."""
    known = {"input_shape", *FEATURES, *CHANNELS, *OUTPUTS}
    return known & {name for name, one in _parameters(maker).items() if one.kind in NAMED}


def call_with_sizes(
    network: Callable[..., nn.Module], input_shape: Sizes, num_outputs: int | None, *, base: type
) -> nn.Module:
    """Call a network's class or function with the sizes that it needs.

    Subclasses of `Network`, and functions of two parameters with other names, get the shape of a sample and the number
    of outputs in this order. All others get sizes by name; if they take `**options`, as torchvision's functions do, and
    have no parameter for outputs, they get `num_classes`.

    Args:
        network: class or function, possibly with bound options.
        input_shape: shape of one sample, or of each of its inputs.
        num_outputs: K; None: it is the network's own affair.
        base: `Network`.

    Raises:
        ConfigError: naming a parameter that neither data nor options fill in.
    """
    maker, given = maker_of(network)
    parameters = _parameters(maker)
    derived = isinstance(maker, type) and base in maker.__mro__
    if derived or _takes_both_in_order(parameters, given):
        return network(input_shape, num_outputs)
    shown = getattr(maker, "__name__", type(maker).__name__)
    wanted = size_names(maker) - given.keys() - ({*OUTPUTS} if num_outputs is None else set())
    sizes = {name: _size(name, input_shape, num_outputs, shown) for name in wanted}
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if open_ended and num_outputs is not None and not {*OUTPUTS} & (sizes.keys() | given.keys()):
        sizes["num_classes"] = num_outputs
    missing = [name for name in _required(parameters) if name not in sizes and name not in given]
    if missing:
        raise ConfigError(
            f"--model.network {shown} needs {', '.join(missing)}, which the data do not determine; give "
            f"--model.network.{missing[0]} VALUE or a default, or rename it to the size that it means: input_shape, "
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
    """Whether it is called with the shape of a sample and the number of outputs by position."""
    kinds = {one.kind for one in parameters.values()}
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        return True
    needed = [name for name in _required(parameters) if name not in given]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return not needed
    inputs = {"input_shape", *FEATURES, *CHANNELS}
    return len(needed) == 2 and needed[0] not in inputs.union(OUTPUTS) - {"input_shape"} and needed[1] not in inputs


def maker_of(network: Callable[..., nn.Module]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The class or function of a network and its bound options; the command line passes classes as bound arguments."""
    given: dict[str, Any] = {}
    while isinstance(network, partial):
        given = {**network.keywords, **given}
        network = next((one for one in network.args if isinstance(one, type)), network.func)
    return network, given


def _size(name: str, input_shape: Sizes, num_outputs: int | None, shown: str) -> Any:
    if name in OUTPUTS:
        return num_outputs
    if name == "input_shape":
        return input_shape
    if isinstance(input_shape, dict) or any(isinstance(one, tuple) for one in input_shape):
        raise ConfigError(
            f"--model.network {shown} needs {name}, and a sample has several inputs, {input_shape}; take input_shape, "
            "the shapes of all of them"
        )
    if name in FEATURES:
        return math.prod(input_shape)
    hint = looks_transposed(input_shape)
    if len(input_shape) < 2 or (hint and len(input_shape) == 3):
        raise ConfigError(
            f"--model.network {shown} needs {name}, but the samples are {list(input_shape)}, without channels in "
            f"front; {hint or 'choose another --model.network, such as MLP'}"
        )
    return input_shape[0]
