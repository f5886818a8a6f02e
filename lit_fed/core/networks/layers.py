"""Layers of a network: kinds, last layers, frozen layers, the end that holds all trained ones, and the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import ismethod
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError

__all__ = [
    "Head", "TrainedEnd", "at_rest", "check_sample_losses", "drops_units", "frozen_leaves", "last_layer", "last_layers",
    "mixes_samples", "normalises_batches", "train_mode", "working",
]  # fmt: skip


def normalises_batches(network: nn.Module) -> bool:
    """Whether the network has BatchNorm on batch statistics, so that samples of a batch interact in training.

    A frozen layer counts only if it has no running statistics.
    """
    kind = nn.modules.batchnorm._BatchNorm
    always = any(isinstance(one, kind) and one.running_mean is None for one in network.modules())
    return always or any(isinstance(one, kind) for one in working(network))


def mixes_samples(network: nn.Module) -> bool:
    """Whether the samples of a batch interact in training: by BatchNorm, or as a trial run has found."""
    return normalises_batches(network) or getattr(network, "mixes_samples", False)


def drops_units(network: nn.Module) -> bool:
    """Whether the network has dropout; frozen layers do not count."""
    layers = working(network)
    drops = any(isinstance(one, nn.modules.dropout._DropoutNd) and one.p > 0 for one in layers)
    return drops or any(isinstance(one, nn.RNNBase) and one.dropout > 0 for one in layers)


def check_sample_losses(network: nn.Module, setting: str, instead: str) -> None:
    """Refuse networks whose samples interact if a gradient must be a sum over samples.

    Args:
        network: the network.
        setting: the setting that needs it, for the message.
        instead: its replacement, for the message.

    Raises:
        ConfigError: naming the network.
    """
    if mixes_samples(network):
        how = "BatchNorm" if normalises_batches(network) else "dependence on the other samples of a batch"
        raise ConfigError(
            f"{setting} takes the gradient of the mean loss of a client's samples, and with the {how} of "
            f"{type(network).__name__} a sample has no loss of its own in training; choose {instead}, or a "
            f"--model.network without {how}"
        )


def last_layers(network: nn.Module, count: int, field: str = "private_layers") -> frozenset[str]:
    """Names of the parameters and buffers of the last layers.

    A layer is a module that owns trained parameters, in the order of registration. Modules that own only buffers or
    frozen parameters belong to the layer before them; a tied parameter belongs to its first layer.

    Args:
        network: the network.
        count: number of layers; 0: none.
        field: the algorithm's hyper-parameter, for the error.

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
def at_rest(network: nn.Module) -> list[nn.Module]:
    """The modules of frozen parts, in the order of registration.

    A part is frozen if it has parameters and none of them is trained; all modules inside it are at rest. They are the
    same function in training as in evaluation: BatchNorm uses its running statistics, and dropout drops nothing.
    """
    resting = {}
    for module in network.modules():
        leaves = list(module.parameters())
        if id(module) not in resting and leaves and not any(leaf.requires_grad for leaf in leaves):
            resting.update({id(one): one for one in module.modules()})
    return list(resting.values())


def working(network: nn.Module, resting: Sequence[nn.Module] | None = None) -> list[nn.Module]:
    """The modules that are not at rest, in the order of registration; `resting` avoids searching for those at rest."""
    known = {id(one) for one in (at_rest(network) if resting is None else resting)}
    return [one for one in network.modules() if id(one) not in known]


def frozen_leaves(network: nn.Module) -> Leaves:
    """Frozen parameters and constant buffers by name, sharing the network's memory.

    Constant buffers are those of modules at rest and, if any parameter is frozen, those outside the state dict, such as
    the frequencies of rotary embeddings.
    """
    frozen = {name: leaf.detach() for name, leaf in network.named_parameters() if not leaf.requires_grad}
    if not frozen:
        return {}
    own = {id(leaf) for module in at_rest(network) for leaf in module.buffers(recurse=False)}
    state = network.state_dict().keys()
    constants = {name: one for name, one in network.named_buffers() if id(one) in own or name not in state}
    return frozen | {name: leaf.detach() for name, leaf in constants.items()}


def train_mode(network: nn.Module, resting: Sequence[nn.Module]) -> None:
    """Set training mode for all modules except those at rest."""
    network.train()
    for module in resting:
        # cuDNN computes a recurrent layer's gradient in training mode only; nothing but dropout differs there
        module.training = isinstance(module, nn.RNNBase) and not module.dropout


# ---------------------------------------------------------------------- the trained end
DRAWS = 4
"""Number of passes in training mode to detect functional dropout."""


class _ReachedError(Exception):
    """Ends a forward pass where the trained end begins."""


@dataclass(frozen=True)
class TrainedEnd:
    """The module that holds all leaves of models and gives the network's outputs; the part before it is shared.

    Args:
        network: the whole network.
        path: path of the module.
        skipped: leading children of an `nn.Sequential` that belong to the part before.
        same_in_training: whether the part before is the same function in training as in evaluation.
    """

    network: nn.Module
    path: str
    skipped: int = 0
    same_in_training: bool = True

    @classmethod
    def find(
        cls, network: nn.Module, resting: list[nn.Module], frozen: Mapping[str, Tensor], example: Tensor
    ) -> TrainedEnd | None:
        """Find the trained end of a network; None if there is none, or nothing comes before it.

        Passes over a few samples verify that the module is called once, with one tensor, that it gives the network's
        outputs, and that nothing before it depends on trained leaves.

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
        """Whether this is an end before which nothing depends on trained leaves."""
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
        """Name of the first module of the end."""
        return str(next(name for name, module in self.network.named_modules() if module is self._first))

    @property
    def module(self) -> nn.Module:
        """The end as a module."""
        module = self.network.get_submodule(self.path)
        return module[self.skipped :] if isinstance(module, nn.Sequential) else module

    @property
    def _first(self) -> nn.Module:
        """First module of the end."""
        module = self.network.get_submodule(self.path)
        return module[self.skipped] if isinstance(module, nn.Sequential) else module

    def inputs(self, leaves: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Inputs of the end for network inputs [B, ...], in the network's mode.

        Args:
            leaves: frozen leaves by name.
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
        """The network's outputs from the inputs of the end and all leaves by name."""
        prefix = f"{self.path}." if self.path else ""
        children = {name for name, _ in self.module.named_children()} if self.skipped else set()
        own = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
        if children:
            own = {name: leaf for name, leaf in own.items() if name.partition(".")[0] in children}
        return functional_call(self.module, own, (z,))  # type: ignore[no-any-return]

    def _only_inputs(self, x: Tensor) -> Tensor | None:
        """Inputs of the end; None if it is called twice, not with one tensor, or not last."""
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
    """Candidates for an end that holds all these leaves: path of a module, and its number of skipped children.

    The smallest such module comes first; in an `nn.Sequential`, preceding layers without parameters may belong to it.
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


# ---------------------------------------------------------------------- the head
def last_layer(network: nn.Module) -> nn.Module:
    """The last module, in the order of registration, that owns parameters; among the owners of `head_names` if given.

    A layer with adapters is the layer, not its last adapter.
    """
    leaves = dict(network.named_parameters())
    of_head = leaves.keys() & getattr(network, "head_names", frozenset[str]())  # adapters change names
    named = {id(leaves[name]) for name in of_head or leaves}
    paths = [
        path
        for path, module in network.named_modules()
        if any(id(leaf) in named for leaf in module.parameters(recurse=False))
    ]
    parts = paths[-1].split(".") if paths else []
    for depth in range(1, len(parts)):
        around = network.get_submodule(".".join(parts[:depth]))
        if isinstance(getattr(around, "base_layer", None), nn.Module):
            return around
    return network.get_submodule(".".join(parts))


@dataclass(frozen=True)
class Head:
    """The last layer of a network, whose inputs are the features; or the two parts that its method `split` returns.

    Args:
        network: the whole network.
        top: the last layer, or the part of `split` that maps features to outputs.
        body: the part of `split` that maps inputs to features; None: the network up to `top`.
        names: names of the leaves of a module `top` in the network, by their names in `top`.
    """

    network: nn.Module
    top: Callable[[Tensor], Tensor]
    body: Callable[[Tensor], Tensor] | None = None
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, network: nn.Module) -> Head:
        """Find the head of a network.

        Raises:
            ConfigError: if the network is one module, other than `nn.Linear`, and has no `split`.
        """
        own = getattr(network, "split", None)
        parts = own() if ismethod(own) else None
        body, top = parts or (None, last_layer(network))
        inputs: Any = getattr(network, "named_inputs", None)  # for `body` by name, see `read_by_name`
        body = body if body is None or inputs is None else inputs.reader(body)
        if top is network and not isinstance(network, nn.Linear):
            raise _no_head(network, "it has no layers")
        known = {id(leaf): name for name, leaf in _named_leaves(network)}
        names = {name: known[id(leaf)] for name, leaf in _named_leaves(top)} if isinstance(top, nn.Module) else {}
        return cls(network, top, body, names)

    def watched(self, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs and features of a pass of the network.

        Raises:
            ConfigError: if the last layer is not called once, with one tensor, or does not give the outputs.
        """
        calls: list[tuple[Any, ...]] = []
        assert isinstance(self.top, nn.Module)
        handle = self.top.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True)
        try:
            outputs = call()
        finally:
            handle.remove()
        given, options, found = calls[0] if len(calls) == 1 else ((), {}, None)
        if found is not outputs or len(given) != 1 or options or not isinstance(given[0], Tensor):
            path = next(path for path, module in self.network.named_modules() if module is self.top)
            raise _no_head(self.network, f"{path}, its last module with parameters, does not give its outputs")
        return outputs, given[0]

    def features(self, leaves: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Features of inputs [B, ...] by `body`, with all leaves of the network by name."""
        assert self.body is not None
        return _call_part(self.network, self.body, leaves, x)

    def outputs(self, leaves: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Outputs of features [B, ...], with all leaves of the network by name."""
        if not isinstance(self.top, nn.Module):
            return _call_part(self.network, self.top, leaves, features)
        own = {name: leaves[known] for name, known in self.names.items() if known in leaves}
        return functional_call(self.top, own, (features,))  # type: ignore[no-any-return]


def _named_leaves(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


class _Part(nn.Module):
    """A function of a network as a module, so that `functional_call` can replace the network's leaves."""

    def __init__(self, network: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.functions = network, (function,)  # a tuple: a module would be registered twice

    def forward(self, x: Tensor) -> Tensor:
        return self.functions[0](x)


def _call_part(
    network: nn.Module, function: Callable[[Tensor], Tensor], leaves: Mapping[str, Tensor], x: Tensor
) -> Tensor:
    own = {f"network.{name}": leaf for name, leaf in leaves.items()}
    return functional_call(_Part(network, function), own, (x,))  # type: ignore[no-any-return]


def _no_head(network: nn.Module, why: str) -> ConfigError:
    objectives = (
        ", and for a loss of the algorithm also --model.loss, such as CrossEntropy, in place of its training_step"
    )
    return ConfigError(
        f"{type(network).__name__} has no known last layer, which the algorithm needs: {why}; give the network a "
        "method split(self) that returns two functions or modules, from inputs to features and from features to "
        f"outputs{objectives if hasattr(network, 'training_step') else ''}, or choose another --model.network"
    )
