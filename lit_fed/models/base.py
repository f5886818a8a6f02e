"""What a network has to be, and checks of the sizes that it is built from."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from lit_fed.errors import ConfigError
from lit_fed.models.sizes import call_with_sizes, maker_of

__all__ = ["Network", "build_network", "check_dropout", "check_outputs", "check_sizes", "image_shape", "zero_outputs"]

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
