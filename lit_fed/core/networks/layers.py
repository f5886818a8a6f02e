"""The layers of a network: their kinds, the last ones, the frozen ones, and the end that holds all trained ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean

__all__ = [
    "HEAD",
    "TrainedEnd",
    "at_rest",
    "check_sample_losses",
    "choose_trained",
    "digest_of",
    "drops_units",
    "frozen_leaves",
    "last_layers",
    "normalises_batches",
    "train_mode",
]


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


# ---------------------------------------------------------------------- the frozen part
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


# ---------------------------------------------------------------------- the trained end
DRAWS = 4
"""Passes in training mode by which dropout is noticed that no module shows."""


class _ReachedError(Exception):
    """Ends a forward pass where the trained end begins."""


@dataclass(frozen=True)
class TrainedEnd:
    """One module that holds all leaves of models, whose outputs are those of the network.

    Args:
        network: the whole network.
        path: of the module.
        skipped: leading children of an `nn.Sequential` that count as before the end.
        same_in_training: whether what comes before is the same function in training as in evaluation.
    """

    network: nn.Module
    path: str
    skipped: int = 0
    same_in_training: bool = True

    @classmethod
    def find(
        cls, network: nn.Module, resting: list[nn.Module], frozen: Mapping[str, Tensor], example: Tensor
    ) -> TrainedEnd | None:
        """The trained end of a network, None if there is none or nothing comes before it.

        Found by passes over a few samples: the module is reached once, with one tensor, and gives the network's
        outputs; nothing before it depends on what is trained.

        Args:
            network: the network; left in evaluation mode.
            resting: its modules at rest.
            frozen: its frozen leaves, by name.
            example: samples [B, ...].
        """
        own = dict(network.named_parameters()) | dict(network.named_buffers())
        trained = {name: leaf for name, leaf in own.items() if name not in frozen}
        found = [] if not frozen or not trained else _places(network, list(trained))
        ends = [one for path, skipped in found if (one := cls(network, path, skipped))._checked(trained, example)]
        for end in ends:
            if end._is_same_in_training(resting, example):
                return end
        return replace(ends[0], same_in_training=False) if ends else None

    def _checked(self, trained: Mapping[str, Tensor], example: Tensor) -> bool:
        """Whether it is an end, and nothing before it depends on what is trained."""
        if not (self.path or self.skipped):
            return False
        self.network.eval()
        with torch.no_grad():
            z = self._only_inputs(example)
            if z is None or z is example:
                return False
            floating = {name: leaf for name, leaf in trained.items() if leaf.is_floating_point()}
            unknown = {name: torch.full_like(leaf, torch.nan) for name, leaf in floating.items()}
            return torch.equal(self.inputs(unknown, example), z)

    def _is_same_in_training(self, resting: list[nn.Module], example: Tensor) -> bool:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            self.network.eval()
            z = self.inputs({}, example)
            train_mode(self.network, resting)
            torch.default_generator.manual_seed(0)
            same = all(torch.equal(self.inputs({}, example), z) for _ in range(DRAWS))
        self.network.eval()
        return same

    @property
    def name(self) -> str:
        """Of the module that is reached first."""
        return str(next(name for name, module in self.network.named_modules() if module is self._first))

    @property
    def module(self) -> nn.Module:
        """What is left to compute."""
        module = self.network.get_submodule(self.path)
        return module[self.skipped :] if isinstance(module, nn.Sequential) else module

    @property
    def _first(self) -> nn.Module:
        """The module that is reached first."""
        module = self.network.get_submodule(self.path)
        return module[self.skipped] if isinstance(module, nn.Sequential) else module

    def inputs(self, leaves: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What the end is given for inputs [B, ...], in the network's mode.

        Args:
            leaves: frozen leaves by name; the others are not used.
            x: inputs of the network.
        """
        reached: list[Tensor] = []

        def stop(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            reached.append(arguments[0])
            raise _ReachedError

        handle = self._first.register_forward_pre_hook(stop)
        try:
            with suppress(_ReachedError):
                functional_call(self.network, dict(leaves), (x,))
        finally:
            handle.remove()
        return reached[0]

    def outputs(self, leaves: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """The network's outputs, from what the end is given and all leaves by name."""
        prefix = f"{self.path}." if self.path else ""
        children = {name for name, _ in self.module.named_children()} if self.skipped else set()
        own = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
        if children:
            own = {name: leaf for name, leaf in own.items() if name.partition(".")[0] in children}
        return functional_call(self.module, own, (z,))  # type: ignore[no-any-return]

    def _only_inputs(self, x: Tensor) -> Tensor | None:
        """What the end is given, None if it is no end: reached twice, not with one tensor, or not the last to act."""
        given: list[Tensor | None] = []

        def watch(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            one = len(arguments) == 1 and isinstance(arguments[0], Tensor) and not options
            given.append(arguments[0] if one else None)

        handle = self._first.register_forward_pre_hook(watch, with_kwargs=True)
        last: list[Any] = []
        behind = self.network.get_submodule(self.path).register_forward_hook(lambda *call: last.append(call[2]))
        try:
            outputs = self.network(x)
        finally:
            handle.remove()
            behind.remove()
        return given[0] if len(given) == 1 and len(last) == 1 and last[0] is outputs else None


def _places(network: nn.Module, names: list[str]) -> list[tuple[str, int]]:
    """Where an end that holds all these leaves may begin: path of a module, and how many of its children come before.

    The smallest such module is the first; where it stands in an `nn.Sequential`, layers without parameters before it
    may belong to the end, too.
    """
    owners = [name.split(".")[:-1] for name in names]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*owners, strict=False))]
    module = network.get_submodule(".".join(shared))
    if not isinstance(module, nn.Sequential) and shared:
        shared = shared[:-1]
        module = network.get_submodule(".".join(shared))
        if not isinstance(module, nn.Sequential):
            return [(".".join([*shared, owners[0][len(shared)]]), 0)]
    if not isinstance(module, nn.Sequential) or any(len(owner) == len(shared) for owner in owners):
        return []
    children = dict(module.named_children())
    first = min(list(children).index(owner[len(shared)]) for owner in owners)
    bare = [not any(True for _ in child.parameters()) for child in children.values()]
    last_with = max((position for position in range(first) if not bare[position]), default=-1)
    return [(".".join(shared), position) for position in range(first, last_with, -1)]
