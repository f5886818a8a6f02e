"""The end of a network that holds all that is trained, so that what comes before it is computed once for all models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lit_fed.core.networks.frozen import train_mode

__all__ = ["TrainedEnd"]


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
        path, skipped = _place(network, list(trained))
        if not frozen or not trained or not (path or skipped):
            return None
        end = cls(network, path, skipped)
        network.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            z = end._only_inputs(example)
            if z is None or z is example:
                return None
            unknown = {
                name: torch.full_like(leaf, torch.nan) for name, leaf in trained.items() if leaf.is_floating_point()
            }
            if not torch.equal(end.inputs(unknown, example), z):
                return None
            train_mode(network, resting)
            torch.default_generator.manual_seed(0)
            same = torch.equal(end.inputs({}, example), z)
        network.eval()
        return cls(network, path, skipped, same)

    @property
    def name(self) -> str:
        """Of the module that is reached first."""
        names: dict[int, str] = {id(module): name for name, module in self.network.named_modules()}
        return names[id(self._first)]

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


def _place(network: nn.Module, names: list[str]) -> tuple[str, int]:
    """Path of the smallest module that holds all these leaves; of an `nn.Sequential`, how many children hold none."""
    owners = [name.split(".")[:-1] for name in names]
    shared = []
    for parts in zip(*owners, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    path = ".".join(shared)
    module = network.get_submodule(path)
    if not isinstance(module, nn.Sequential):
        return path, 0
    first = {owner[len(shared)] for owner in owners if len(owner) > len(shared)}
    children = [name for name, _ in module.named_children()]
    return path, min((children.index(name) for name in first), default=0)
