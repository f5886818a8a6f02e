"""What of a network is trained and what is frozen: chosen by name, held once, and known by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean

__all__ = ["HEAD", "at_rest", "choose_trained", "digest_of", "frozen_leaves", "train_mode"]

HEAD = "head"
"""The word for the last layer, where patterns say what is trained."""

MOST_NAMES = 12
"""Names of parameters that a message lists."""


def at_rest(network: nn.Module) -> list[nn.Module]:
    """The modules of frozen parts, in the order of registration.

    A part is frozen if it has parameters and none of them is trained; all modules inside it rest, those without
    parameters too. They are the same function in training as in evaluation: BatchNorm normalises by its running
    statistics, which stay what they are, and dropout drops nothing.
    """
    resting = {}
    for module in network.modules():
        leaves = list(module.parameters())
        if id(module) not in resting and leaves and not any(leaf.requires_grad for leaf in leaves):
            resting.update({id(one): one for one in module.modules()})
    return list(resting.values())


def frozen_leaves(network: nn.Module) -> dict[str, Tensor]:
    """Parameters that are not trained, and buffers that never change, by name; their memory is the network's.

    These are the buffers of modules at rest, and beside frozen parameters those that are no part of the network's state
    dict: constants, such as the frequencies of rotary embeddings.
    """
    frozen = {name: leaf.detach() for name, leaf in network.named_parameters() if not leaf.requires_grad}
    if not frozen:
        return {}
    own = {id(leaf) for module in at_rest(network) for leaf in module.buffers(recurse=False)}
    state = network.state_dict().keys()
    constants = {name: one for name, one in network.named_buffers() if id(one) in own or name not in state}
    return frozen | {name: leaf.detach() for name, leaf in constants.items()}


def train_mode(network: nn.Module, resting: Sequence[nn.Module]) -> None:
    """Training mode for all modules but those at rest."""
    network.train()
    for (
        module
    ) in resting:  # cuDNN takes a recurrent layer's gradient in training mode alone; only dropout differs there
        module.training = isinstance(module, nn.RNNBase) and not module.dropout


def choose_trained(network: nn.Module, trainable: Sequence[str] | str) -> None:
    """Freeze all parameters of a network but some.

    Args:
        network: the network; `requires_grad` of its parameters is set.
        trainable: patterns (`fnmatch`) of names of parameters, or of modules with all that they hold; `head` alone
            means the `head_names` of the network, else the parameters of the last module, in the order of registration,
            that has parameters of its own.

    Raises:
        ConfigError: if a pattern matches no parameter, naming those that there are.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> choose_trained(network, "head")
        >>> [name for name, leaf in network.named_parameters() if leaf.requires_grad]
        ['2.weight', '2.bias']
    """
    parameters = dict(network.named_parameters())
    patterns = [trainable] if isinstance(trainable, str) else list(trainable)
    chosen = _head(network) if patterns == [HEAD] else set[str]()
    for pattern in patterns if patterns != [HEAD] else ():
        found = {name for name in parameters if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        if not found:
            raise ConfigError(_no_such(pattern, network, list(parameters)))
        chosen |= found
    if not chosen:
        raise ConfigError(
            f"--model.trainable is {trainable!r}, and nothing of {type(network).__name__} would be trained; give head, "
            "or patterns of names of parameters, or leave it out to train all"
        )
    for name, leaf in parameters.items():
        leaf.requires_grad_(name in chosen)


def _head(network: nn.Module) -> set[str]:
    """Names of the classifier's parameters, as the network knows them: a tied one by the name of its first owner."""
    if named := getattr(network, "head_names", frozenset[str]()):
        return set(named)
    last: set[int] = set()
    for module in network.modules():
        last = {id(leaf) for leaf in module.parameters(recurse=False)} or last
    return {name for name, leaf in network.named_parameters() if id(leaf) in last}


def _no_such(pattern: str, network: nn.Module, names: list[str]) -> str:
    half = MOST_NAMES // 2
    shown = names if len(names) <= MOST_NAMES else [*names[:half], f"… {len(names) - 2 * half} more …", *names[-half:]]
    modules = [path for path, module in network.named_modules() if path and any(True for _ in module.parameters())]
    meant = did_you_mean(pattern, [*names, *modules], "give patterns of its names, or head for the last layer.")
    return (
        f"--model.trainable has {pattern!r}, which matches no parameter of {type(network).__name__}; {meant} There are "
        f"{', '.join(shown)}"
    )


def digest_of(leaves: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, as 64 hexadecimal digits; of nothing ''."""
    if not leaves:
        return ""
    digest = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        digest.update(f"{name} {leaf.dtype} {list(leaf.shape)}\n".encode())
        digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
