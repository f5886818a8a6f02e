"""What a network has to be, and checks of the sizes that it is built from."""

from __future__ import annotations

import torch
from torch import nn

from lit_fed.core.errors import ConfigError

__all__ = ["Network", "check_dropout", "check_outputs", "check_sizes", "image_shape"]


class Network(nn.Module):
    """A plain module built from the sizes of the data.

    Subclasses take `input_shape` (of one sample) and `num_outputs` first, then options of their own; these appear on
    the command line as `--model.network.<option>`.
    """


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
    name, samples = type(network).__name__, f"samples {list(input_shape)} of {input_type}"
    other = "choose another --model.network, or correct the data"
    x = torch.zeros(2, *input_shape, dtype=input_type)  # one alone has no statistics of a batch
    network.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = tuple(network(x).shape[1:])
    except RuntimeError as error:
        tokens = "; integers are token ids, so store features as floats" if input_type == torch.int64 else ""
        raise ConfigError(f"{name} cannot read {samples} ({error}){tokens}; {other}") from error
    if found != output_shape:
        # labels [n, L] are sequences; where the network gives one prediction, they are more often something else
        flat = ": labels [n, 1] as [n], those that are one-hot as y.argmax(1)" if len(output_shape) > len(found) else ""
        raise ConfigError(
            f"{name} gives {samples} outputs {list(found)}, and labels of shape {list(output_shape[:-1])} need "
            f"{list(output_shape)}, which ends with the number of outputs; {other}{flat}"
        )
