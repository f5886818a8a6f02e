"""Low-rank adapters on the linear layers of a frozen network, as modules of the library peft.

Hu et al. "LoRA: Low-Rank Adaptation of Large Language Models". 2021. https://arxiv.org/abs/2106.09685. A layer W x
becomes W x + (α/r) B A x with A [r, in] random and B [out, r] zero, so that the network initially does not change.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.system.names import few
from lit_fed.system.packages import optional_package

__all__ = ["LowRankAdapters", "adapters_of", "merge_adapters", "remove_adapters"]

NAMES_SHOWN = 12
"""Number of layer names listed in errors."""


class LowRankAdapters(NamedTuple):
    """Layers with adapters, and their rank."""

    rank: int | None = None  # r; None: no adapters
    targets: Sequence[str] | None = None  # patterns of names; None: all frozen linear layers but a kept head
    alpha: float | None = None  # α; None: r, no scaling

    def check(self) -> None:
        """Raise a `ConfigError` naming an invalid setting."""
        for option, value in {"targets": self.targets, "alpha": self.alpha}.items():
            if self.rank is None and value is not None:
                raise ConfigError(f"--model.lora_{option} is {value}, which needs adapters; give --model.lora_rank")
        if self.rank is not None and self.rank < 1:
            raise ConfigError(f"--model.lora_rank is {self.rank}; give a whole number >= 1, or null for no adapters")
        if self.alpha is not None and not self.alpha > 0:
            raise ConfigError(f"--model.lora_alpha is {self.alpha}; give a number > 0, or null for the rank")

    def add_to(self, network: nn.Module, outputs: Callable[[], Tensor]) -> nn.Module:
        """Add adapters to frozen layers of a network; trained parameters stay trained.

        Args:
            network: the network, changed in place.
            outputs: runs the network in evaluation mode on any samples.

        Returns:
            The network.

        Raises:
            ConfigError: if peft is missing, a pattern matches no layer, or a layer cannot have an adapter.
        """
        if self.rank is None:
            return network
        peft = optional_package("peft", "peft>=0.21,<1", "lora", "--model.lora_rank")
        names = self._targets(network, _called(network, outputs))
        trained = {leaf: leaf.requires_grad for leaf in network.parameters()}
        settings = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha or self.rank, target_modules="|".join(map(re.escape, names))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft detects how layers store their matrices
            peft.inject_adapter_in_model(settings, network)
        for leaf, wanted in trained.items():
            leaf.requires_grad_(wanted)
        for name in names:
            network.get_submodule(name).register_forward_pre_hook(_is_called)
        return network

    def _targets(self, network: nn.Module, called: set[str]) -> list[str]:
        layers, network_name = _linear_layers(network), type(network).__name__
        frozen = [name for name, layer in layers.items() if not any(one.requires_grad for one in layer.parameters())]
        if self.targets is None:
            kept = _kept_head(network)
            chosen = [name for name in frozen if name in called and id(layers[name].weight) not in kept]
            if not chosen:
                raise ConfigError(
                    f"--model.lora_rank is {self.rank}, but {network_name} has no frozen linear layer; leave "
                    "it out, or choose another --model.network"
                )
            return self._fitting(chosen, layers)
        chosen = []
        for pattern in self.targets:
            matched = [name for name in layers if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
            usable = [name for name in matched if name in frozen and name in called]
            if not usable:
                raise ConfigError(
                    f"--model.lora_targets has {pattern!r}, {_why_none(matched, called, network_name)}; it has "
                    f"{few([name for name in frozen if name in called], NAMES_SHOWN)}"
                )
            chosen += [name for name in usable if name not in chosen]
        return self._fitting(chosen, layers)

    def _fitting(self, names: list[str], layers: dict[str, nn.Module]) -> list[str]:
        assert self.rank is not None
        for name in names:
            shape = list(layers[name].get_parameter("weight").shape)
            if self.rank > min(shape):
                raise ConfigError(
                    f"--model.lora_rank is {self.rank}, but the matrix of {name} is {shape}; give at most "
                    f"{min(shape)}, or other --model.lora_targets"
                )
        return names


def adapters_of(network: nn.Module) -> dict[str, Any]:
    """Layers with adapters by name."""
    peft: Any = sys.modules.get("peft.tuners.lora")  # imported if there are adapters
    return {name: one for name, one in network.named_modules() if peft is not None and isinstance(one, peft.LoraLayer)}


def merge_adapters(network: nn.Module) -> nn.Module:
    """Merge B A into the layers of a network in place and remove adapters; outputs stay equal."""
    for layer in adapters_of(network).values():
        base = layer.get_base_layer()
        base.weight = nn.Parameter(base.weight.detach().clone(), requires_grad=False)  # an embedding may share it
        layer.merge()
    return remove_adapters(network)


def remove_adapters(network: nn.Module) -> nn.Module:
    """Remove adapters of a network in place."""
    for name, layer in adapters_of(network).items():
        network.set_submodule(name, layer.get_base_layer())
    return network


def _linear_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Linear layers by name: PyTorch's, and GPT-2's of transformers."""
    own = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", nn.Linear)
    return {name: one for name, one in network.named_modules() if name and isinstance(one, nn.Linear | own)}


def _kept_head(network: nn.Module) -> set[int]:
    """Identities of the leaves of a last layer that stays as it is, see `Network.keeps_head`."""
    names = getattr(network, "head_names", ()) if getattr(network, "keeps_head", False) else ()
    return {id(network.get_parameter(name)) for name in names}


def _called(network: nn.Module, outputs: Callable[[], Tensor]) -> set[str]:
    """Names of the linear layers called in a pass; PyTorch's attention reads some weights directly."""
    called: set[str] = set()
    handles = [
        layer.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        for name, layer in _linear_layers(network).items()
    ]
    try:
        with torch.no_grad():
            outputs()
    finally:
        for handle in handles:
            handle.remove()
    return called


def _why_none(matched: list[str], called: set[str], network: str) -> str:
    if not matched:
        return f"which matches no linear layer of {network}"
    if matched[0] in called:
        return f"but {matched[0]} of {network} is not frozen"
    return f"but {network} reads the weights of {matched[0]} without calling the layer, which bypasses adapters"


def _is_called(*_: object) -> None:
    """A hook makes `nn.TransformerEncoderLayer` call its layers instead of reading their weights."""
