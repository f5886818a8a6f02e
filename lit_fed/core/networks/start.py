"""Start of training: trained parameters, and models that replace fresh ones."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.core import tree
from lit_fed.core.networks.layers import last_layer, last_layers
from lit_fed.core.types import Leaves, ModelState
from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean, few

__all__ = ["HEAD", "NetworkCopies", "Start", "choose_trained", "digest_of", "leaves_named", "start_of"]

HEAD = "head"
"""Name of the last layer in `--model.trainable`."""

MOST_NAMES = 12
"""Maximum number of parameter names in a message."""


def choose_trained(network: nn.Module, trainable: Sequence[str] | str, *, may_be_none: bool = False) -> None:
    """Freeze all parameters of a network except those chosen.

    Args:
        network: the network; `requires_grad` of its parameters is set.
        trainable: patterns (`fnmatch`) for names of parameters, or of modules with all their parameters; `head` alone
            means the `head_names` of the network, else the parameters of the last module, in the order of registration,
            that owns parameters.
        may_be_none: allow that nothing is chosen, as with adapters.

    Raises:
        ConfigError: if a pattern matches no parameter, naming the existing ones.

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
    if not chosen and not may_be_none:
        raise ConfigError(
            f"--model.trainable is {trainable!r}, and nothing of {type(network).__name__} would be trained; give head, "
            "or patterns of names of parameters, or leave it out to train all"
        )
    for name, leaf in parameters.items():
        leaf.requires_grad_(name in chosen)


def leaves_named(
    network: nn.Module, patterns: Sequence[str], norm: Collection[str], leaves: Collection[str],
    setting: str = "--model.personal", *, may_be_all: bool = False,
) -> frozenset[str]:  # fmt: skip
    """Names of the leaves of a model that patterns match.

    Args:
        network: the network.
        patterns: patterns (`fnmatch`) for names of trained parameters and buffers, or of modules with all of theirs;
            `head` as for `choose_trained`, `body` for all other leaves, `norm` for BatchNorm layers.
        norm: leaves of BatchNorm layers.
        leaves: names of all leaves of a model.
        setting: the setting that gave them, for messages.
        may_be_all: whether they may match all leaves.

    Raises:
        ConfigError: if a pattern matches no leaf, or all leaves match and may not.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> sorted(leaves_named(network, ["body"], (), dict(network.named_parameters())))
        ['0.bias', '0.weight']
    """
    head, chosen, kind = _head(network), set[str](), type(network).__name__
    words = {HEAD: head, "body": set(leaves) - head, "norm": set(norm)}
    for pattern in patterns:
        found = {name for name in leaves if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        found = words.get(pattern, found) & set(leaves)
        if not found and pattern == "norm":
            raise ConfigError(f"{setting} has norm, and {kind} has no BatchNorm to train; leave it out")
        if not found:
            raise ConfigError(_no_such(pattern, network, list(leaves), setting, "trained leaf", words))
        chosen |= found
    if chosen >= set(leaves) and not may_be_all:
        raise ConfigError(
            f"{setting} is [{', '.join(patterns)}], which leaves nothing of {kind} to be shared; give fewer "
            "leaves, or --model.algorithm Local, whose clients share nothing"
        )
    return frozenset(chosen)


def _head(network: nn.Module) -> set[str]:
    """Names of the classifier's parameters in the network; a tied one has the name of its first owner."""
    if named := getattr(network, "head_names", frozenset[str]()):
        return set(named)
    last = {id(leaf) for leaf in last_layer(network).parameters()}
    return {name for name, leaf in network.named_parameters() if id(leaf) in last}


def _no_such(
    pattern: str, network: nn.Module, names: list[str], setting: str = "--model.trainable", kind: str = "parameter",
    words: Collection[str] = (HEAD,),
) -> str:  # fmt: skip
    half = MOST_NAMES // 2
    shown = names if len(names) <= MOST_NAMES else [*names[:half], f"… {len(names) - 2 * half} more …", *names[-half:]]
    modules = [path for path, module in network.named_modules() if path and any(True for _ in module.parameters())]
    fix = "give patterns of its names, or head for the last layer"
    fix = "adapters need --model.lora_rank" if "lora_" in pattern else fix
    others = [one for one in (*words, *names, *modules) if one != pattern]  # among other patterns it is no keyword
    meant = did_you_mean(pattern, others, f"{fix}.")
    return (
        f"{setting} has {pattern!r}, which matches no {kind} of {type(network).__name__}; {meant} There are "
        f"{', '.join(shown)}"
    )


def digest_of(leaves: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, as 64 hexadecimal digits; '' without leaves."""
    if not leaves:
        return ""
    digest = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        digest.update(f"{name} {leaf.dtype} {list(leaf.shape)}\n".encode())
        digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Start:
    """Models from which training starts."""

    models: ModelState  # leaves [S, ...]
    source: str  # their origin, for messages
    only: str  # advice in messages if several different models are needed
    others_fresh: bool = False  # whether models after the first stay fresh as a whole

    def __call__(self, fresh: ModelState, network: nn.Module) -> ModelState:
        """Replace fresh models by these.

        If the numbers are equal, each replaces one. A single model starts all of them, except for the last layer with
        trained parameters, which stays fresh: equal components of a mixture, and equal clusters, would stay equal.

        Args:
            fresh: fresh models, leaves [M, ...].
            network: the network.

        Raises:
            ConfigError: naming the mismatched leaves or numbers of models.
        """
        wanted, given = _together(fresh), _together(self.models)
        self._check_leaves(wanted, given, type(network).__name__)
        num_models, num_given = (len(next(iter(one.parameters.values()))) for one in (fresh, self.models))
        if num_given not in (1, num_models):
            raise ConfigError(
                f"{self.source} has {num_given} models, and {num_models} are trained here; give as many, or one"
            )
        if self.others_fresh:
            rest = tree.index(fresh, slice(1, None))
            return tree.map_leaves(lambda old, new: torch.cat([old.to(new), new]), self.models, rest)  # type: ignore[no-any-return]
        kept: frozenset[str] = frozenset()
        if num_given < num_models:
            kept = last_layers(network, 1)
            shares = not kept >= fresh.parameters.keys() or any(not leaf.requires_grad for leaf in network.parameters())
            if not shares or not _differ(fresh, kept):
                raise ConfigError(
                    f"{self.source} has one model, from which {num_models} shall start that differ in their last "
                    f"layer alone; {type(network).__name__} has no other layer, or its last one cannot be drawn anew; "
                    f"{self.only}"
                )

        def taken(name: str, new: Tensor, old: Tensor) -> Tensor:
            return new if name in kept else old.to(new).expand_as(new).clone()

        return ModelState(
            {name: taken(name, leaf, self.models.parameters[name]) for name, leaf in fresh.parameters.items()},
            {name: taken(name, leaf, self.models.buffers[name]) for name, leaf in fresh.buffers.items()},
        )

    def _check_leaves(self, wanted: Leaves, given: Leaves, network: str) -> None:
        faults = [f"{name} is missing" for name in wanted if name not in given]
        faults += [f"{name} is not in the network" for name in given if name not in wanted]
        both = ((name, given[name].shape[1:], wanted[name].shape[1:]) for name in wanted if name in given)
        faults += [f"{name} is {list(there)}, and {list(here)} here" for name, there, here in both if there != here]
        if faults:
            raise ConfigError(
                f"{self.source} does not fit {network}: {few(faults, 4, '; ')}. Give the network and labels of "
                "those models, or leave it out"
            )


def _together(models: ModelState) -> Leaves:
    return {**models.parameters, **models.buffers}


def _differ(models: ModelState, names: frozenset[str]) -> bool:
    leaves = [models.parameters[name] for name in names if name in models.parameters]
    return any(not torch.equal(leaf[0], leaf[1]) for leaf in leaves)


def start_of(network: nn.Module, frozen: frozenset[str], *, others_fresh: bool = False) -> Start:
    """The weights of a network, except frozen ones, as the start of training; arguments as of `Start`."""
    both = (network.named_parameters(), network.named_buffers())
    one = ModelState(
        *({name: leaf.detach().clone().unsqueeze(0) for name, leaf in part if name not in frozen} for part in both)
    )
    only = "give its class, or a function that makes one, which is called for each model"
    return Start(one, f"the {type(network).__name__} that was given as network", only, others_fresh)


class NetworkCopies:
    """Copy a network, with fresh weights in the last layer if it has `reset_parameters`.

    Args:
        network: the network to copy.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, *_: Any) -> nn.Module:
        """A copy; arguments (the sizes of the data) are ignored."""
        made = copy.deepcopy(self.network)
        names = last_layers(made, 1) if any(leaf.requires_grad for leaf in made.parameters()) else ()
        for path in {name.rpartition(".")[0] for name in names}:
            reset = getattr(made.get_submodule(path), "reset_parameters", None)
            if callable(reset):
                reset()
        return made
