"""The server's state as parameters and buffers of a module, and the optimizer that writes it once per round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_fed.core import tree
from lit_fed.core.networks.start import digest_of
from lit_fed.core.types import Leaves, Tree
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import buffer_names

__all__ = ["Assign", "FrozenPart", "ModuleServer", "register_leaves", "source_of"]

PREFIX = "frozen__"


class ModuleServer:
    """A server whose state lives in a LightningModule, so that Lightning saves it and moves it between devices.

    Leaves of models become parameters of the module; all other leaves and the number of rounds become buffers, as do
    frozen leaves, which no checkpoint holds.

    Args:
        module: the module.
        frozen: the frozen leaves of the task.
        shared: the initial shared state.
        source: description of the network, for messages.
    """

    def __init__(self, module: LightningModule, frozen: dict[str, Tensor], shared: Tree, source: str = "") -> None:
        self._module, self.initial_shared = module, shared
        module.frozen_part = self.frozen_part = FrozenPart(frozen, source)
        self._names = register_leaves(module, shared)
        module.register_buffer("rounds", torch.zeros((), dtype=torch.int64))

    @property
    def leaves(self) -> list[Tensor]:
        """The leaves of the committed shared state, as the module holds them."""
        return [getattr(self._module, name) for name in self._names]

    @property
    def shared(self) -> Tree:
        """The committed shared state; never tracked by autograd."""
        return tree.rebuild(self.initial_shared, [leaf.detach() for leaf in self.leaves])

    @property
    def rounds_done(self) -> int:
        """Completed rounds."""
        return int(self._module.rounds)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        """Device of the module."""
        return self._module.device

    def overwrite(self, shared: Tree) -> None:
        """Replace the shared state between rounds, without counting a round."""
        for leaf, new in zip(self.leaves, tree.leaves(shared), strict=True):
            leaf.data.copy_(new)

    def commit(self, shared: Tree) -> None:
        """Write the new shared state by a step of the optimizer, which Lightning counts, and count the round."""
        optimizer: Any = self._module.optimizers()
        optimizer.optimizer.staged = tree.leaves(shared)
        optimizer.step()
        rounds: Any = self._module.rounds
        rounds += 1


class FrozenPart(nn.Module):
    """Frozen parameters and buffers of the network, as non-persistent buffers that share its memory.

    Args:
        leaves: frozen leaves by their names in the network; the task's own dict, in which they move to a device.
        source: description of the network, for messages.
    """

    def __init__(self, leaves: Leaves, source: str) -> None:
        super().__init__()
        self.leaves, self.source = leaves, source
        for name, leaf in leaves.items():
            self.register_buffer(PREFIX + name.replace(".", "_"), leaf, persistent=False)
        self._digest: str | None = None

    def _apply(self, *args: Any, **kwargs: Any) -> FrozenPart:
        """Move the buffers to another device, and the leaves of the task with them."""
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.leaves.update(zip(list(self.leaves), self._buffers.values(), strict=True))  # type: ignore[arg-type]
        return self

    @property
    def digest(self) -> str:
        """Digest of all frozen leaves; "" without any."""
        if self._digest is None:
            self._digest = digest_of(self.leaves)
        return self._digest

    def entry(self) -> dict[str, Any] | None:
        """The checkpoint's entry; None if nothing is frozen."""
        if not self.leaves:
            return None
        leaves = self.leaves.values()
        size = {"tensors": len(leaves), "numbers": sum(leaf.numel() for leaf in leaves)}
        return {"digest": self.digest, "source": self.source, **size}

    def check(self, stored: dict[str, Any] | None) -> None:
        """Compare the frozen part with that of a checkpoint.

        Args:
            stored: the checkpoint's entry; None if nothing was frozen.

        Raises:
            ConfigError: if they differ, naming both and the fix.
        """
        if ("" if stored is None else stored["digest"]) == self.digest:
            return
        if stored is not None and not self.leaves:
            raise ConfigError(
                f"the checkpoint's run froze a part of its network ({stored['source']}), and this run trains all of "
                "it; give the --model.trainable of that run, or the network that froze it"
            )
        now = _in_words(self.entry())
        if stored is None:
            raise ConfigError(
                f"the checkpoint's run trained its whole network, and this run froze a part of it: {now}; leave out "
                "--model.trainable, or give the network of that run"
            )
        raise ConfigError(
            f"the checkpoint's frozen part is {_in_words(stored)}, and that of this run {now}; {self._fix(stored)}"
        )

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
    assert entry is not None
    return f"{entry['source']} ({entry['numbers']:,} numbers, digest {entry['digest'][:12]})"


def source_of(network: Callable[..., nn.Module], seed: int | None) -> str:
    """A network's class, options and seed of the initial weights, for messages.

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


class Assign(Optimizer):
    """Writes the server's new shared state, exactly, once per round.

    Lightning counts optimizer steps as `global_step`, by which checkpoints and loggers know time; so a round is a step.
    The new values come from `staged`, in the order of `leaves`, and are copied, whatever their type.

    Args:
        leaves: all leaves of the shared state, parameters and buffers.
        lr: local learning rate of the current round, shown by Lightning's learning-rate monitor; never used here.
    """

    # unwrapped: PyTorch's decorator imports its compiler, which takes longer than a small run
    add_param_group, zero_grad = unwrap(Optimizer.add_param_group), unwrap(Optimizer.zero_grad)
    state_dict, load_state_dict = unwrap(Optimizer.state_dict), unwrap(Optimizer.load_state_dict)

    def __init__(self, leaves: Iterable[Tensor], lr: float = 0.0) -> None:
        super().__init__(leaves, {"lr": lr})
        self._step_supports_amp_scaling = True  # a gradient scaler would otherwise look for gradients and skip the step
        self.staged: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Copy the staged leaves, which have the shapes and types of those that they replace (`as_shared`)."""
        loss, leaves = None if closure is None else closure(), self.param_groups[0]["params"]
        for leaf, new in zip(leaves, _apart(leaves, self.staged), strict=True):
            leaf.copy_(new)
        self.staged = []
        return loss


def _apart(leaves: list[Tensor], staged: list[Tensor]) -> list[Tensor]:
    """The staged leaves; a view of a leaf, such as one of its rows, is copied before the leaf is written."""
    written, apart = {leaf.untyped_storage().data_ptr() for leaf in leaves}, []
    for leaf, new in zip(leaves, staged, strict=True):
        stays = new.data_ptr() == leaf.data_ptr() and new.stride() == leaf.stride()
        apart.append(new if stays or new.untyped_storage().data_ptr() not in written else new.clone())
    return apart


def register_leaves(module: nn.Module, shared: Tree) -> list[str]:
    """Register leaves of models as parameters and all others as buffers; returns their names in order."""
    trainable = {id(leaf) for models in tree.models(shared) for leaf in models.parameters.values()}
    names = buffer_names(path for path, _ in tree.items(shared))
    for name, leaf in zip(names, tree.leaves(shared), strict=True):
        if id(leaf) in trainable:
            module.register_parameter(name, nn.Parameter(leaf.clone()))
        else:
            module.register_buffer(name, leaf.clone())
    return names
