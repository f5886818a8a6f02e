"""The frozen part of a network in a run: held once by the module, and in checkpoints by its digest and its source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.core.networks.layers import digest_of
from lit_fed.errors import ConfigError

__all__ = ["FrozenPart", "source_of"]

PREFIX = "frozen__"


class FrozenPart:
    """Frozen parameters and buffers as buffers of a module that no checkpoint holds, in the memory of the network.

    Args:
        module: the module.
        leaves: what is frozen, by its names in the network.
        source: where it came from, for messages.
    """

    def __init__(self, module: nn.Module, leaves: dict[str, Tensor], source: str) -> None:
        self._module, self._names, self.source = module, {name: _registered(name) for name in leaves}, source
        for name, leaf in leaves.items():
            module.register_buffer(_registered(name), leaf, persistent=False)
        self._digest: str | None = None

    @property
    def leaves(self) -> dict[str, Tensor]:
        """What is frozen, on the module's device, by its names in the network."""
        return {name: getattr(self._module, registered) for name, registered in self._names.items()}

    @property
    def digest(self) -> str:
        """Of all that is frozen; '' if nothing is."""
        if self._digest is None:
            self._digest = digest_of(self.leaves)
        return self._digest

    def entry(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of it, None if nothing is frozen."""
        leaves = self.leaves.values()
        size = {"tensors": len(leaves), "numbers": sum(leaf.numel() for leaf in leaves)}
        return {"digest": self.digest, "source": self.source, **size} if self._names else None

    def load(self, stored: dict[str, Any] | None, state: dict[str, Any]) -> None:
        """Compare it with that of a checkpoint; from one that holds its values take these.

        Args:
            stored: what the checkpoint keeps of it; None where nothing was frozen, or the values stand in the state.
            state: the checkpoint's state dict; such values are taken out of it.

        Raises:
            ConfigError: if they differ, naming both and the fix.
        """
        old = {key: state.pop(key) for key in [key for key in state if key.startswith(PREFIX)]}
        if old and set(old) == set(self._names.values()):
            with torch.no_grad():
                for key, value in old.items():
                    getattr(self._module, key).copy_(value)
            self._digest = None
            return
        found = "" if stored is None else stored["digest"]
        if old or found != self.digest:
            raise ConfigError(self._refusal(stored, held=bool(old)))

    def _refusal(self, stored: dict[str, Any] | None, *, held: bool) -> str:
        if not self._names:
            source = "other parts" if stored is None else stored["source"]
            return (
                f"the checkpoint's run froze a part of its network ({source}), and this run trains all of it; give the "
                "--model.trainable of that run, or the network that froze it"
            )
        now = _in_words(self.entry())
        if held:
            return (
                f"the checkpoint holds other frozen parameters than this run has: {now}; it may be of a version in "
                "which running statistics of frozen BatchNorm layers moved: start a new run without --ckpt_path"
            )
        if stored is None:
            return (
                f"the checkpoint's run trained its whole network, and this run froze a part of it: {now}; leave out "
                "--model.trainable, or give the network of that run"
            )
        return f"the checkpoint's frozen part is {_in_words(stored)}, and that of this run {now}; {self._fix(stored)}"

    def _fix(self, stored: dict[str, Any]) -> str:
        now: Any = self.entry()
        if (stored["tensors"], stored["numbers"]) != (now["tensors"], now["numbers"]):
            return "give the same --model.network and the same --model.trainable"
        if stored["source"] != self.source:
            return "give the same --model.network with the same weights and seeds where they are random"
        return (
            "the same source gave other numbers: a weights file that has changed, or random values drawn on another "
            "kind of processor. Give the file as it was, or go on where the run began; random features that shall "
            "serve everywhere are saved once, and loaded by the network"
        )


def _in_words(entry: dict[str, Any] | None) -> str:
    """What a message says of a frozen part."""
    assert entry is not None
    return f"{entry['source']} ({entry['numbers']:,} numbers, digest {entry['digest'][:12]})"


def _registered(name: str) -> str:
    """The name of a leaf as a buffer of the module."""
    return PREFIX + name.replace(".", "_")


def source_of(network: Callable[..., nn.Module], seed: int | None) -> str:
    """A network's class with its options and the seed of its initial weights, as a message names them.

    Example:
        >>> from lit_fed import MLP
        >>> source_of(partial(MLP, hidden_sizes=[8]), 3)
        'MLP(hidden_sizes=[8]) from seed 3'
    """
    options: dict[str, Any] = {}
    while isinstance(network, partial):
        options = network.keywords | options
        network = next((one for one in (*network.args, network.func) if isinstance(one, type)), network.func)
    name = getattr(network, "__qualname__", type(network).__name__)
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())}) from seed {seed}"
