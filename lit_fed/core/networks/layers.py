"""What the layers of a network are, and which leaves belong to its last ones."""

from __future__ import annotations

from torch import nn

from lit_fed.core.networks.frozen import at_rest
from lit_fed.errors import ConfigError

__all__ = ["check_sample_losses", "drops_units", "last_layers", "normalises_batches"]


def normalises_batches(network: nn.Module) -> bool:
    """Whether there is BatchNorm, with which the samples of a batch have no outputs of their own in training.

    One at rest counts only if it has no running statistics to normalise by.
    """
    resting = {id(one) for one in at_rest(network)}
    norms = [one for one in network.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
    return any(id(one) not in resting or one.running_mean is None for one in norms)


def drops_units(network: nn.Module) -> bool:
    """Whether there is dropout, with which two passes over a sample differ in training; one at rest drops nothing."""
    resting = {id(one) for one in at_rest(network)}
    layers = [one for one in network.modules() if id(one) not in resting]
    drops = any(isinstance(one, nn.modules.dropout._DropoutNd) and one.p > 0 for one in layers)
    return drops or any(isinstance(one, nn.RNNBase) and one.dropout > 0 for one in layers)


def check_sample_losses(network: nn.Module, setting: str, instead: str) -> None:
    """Refuse BatchNorm where a gradient is the sum of those of all samples.

    Args:
        network: the network.
        setting: what asks for such a gradient, for the message.
        instead: what to choose in its place.

    Raises:
        ConfigError: naming the network.
    """
    if normalises_batches(network):
        raise ConfigError(
            f"{setting} takes the gradient of the mean loss of a client's samples, and with the BatchNorm of "
            f"{type(network).__name__} a sample has no loss of its own in training; choose {instead}, or a "
            "--model.network without BatchNorm"
        )


def last_layers(network: nn.Module, count: int, field: str = "private_layers") -> frozenset[str]:
    """Names of the parameters and buffers of the last layers.

    A layer is a module that owns trained parameters, and layers are counted in the order of their registration. Modules
    that own buffers or frozen parameters alone go with the layer before them; a tied parameter belongs to the first
    layer that owns it.

    Args:
        network: the network.
        count: layers to take; 0: none.
        field: the algorithm's hyper-parameter that says so, for the error.

    Raises:
        ConfigError: if the network has fewer layers.

    Example:
        >>> sorted(last_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), 1))
        ['2.bias', '2.weight']
    """
    modules = list(network.named_modules())
    layers = [position for position, (_, module) in enumerate(modules) if _trained(module)]
    if count > len(layers):
        raise ConfigError(
            f"--model.algorithm.{field} is {count}, and {type(network).__name__} has {len(layers)} layers with "
            f"trained parameters; give a whole number from 0 to {len(layers)}"
        )
    first = {0: len(modules), len(layers): 0}.get(count, layers[-count] if count else 0)
    known = {name for name, _ in (*network.named_parameters(), *network.named_buffers())}
    names = set()
    for path, module in modules[first:]:
        for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            names.add(f"{path}.{name}" if path else name)
    return frozenset(names & known)


def _trained(module: nn.Module) -> bool:
    return any(leaf.requires_grad for leaf in module.parameters(recurse=False))
