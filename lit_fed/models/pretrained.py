"""Pretrained weights, from torchvision or a file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path
from lit_fed.system.names import few

if TYPE_CHECKING:
    from torchvision.models import WeightsEnum

__all__ = ["SUFFIXES", "fit_weights", "load_weights", "read_weights"]

SUFFIXES = (".pt", ".pth")
"""File extensions of PyTorch state dicts."""


def load_weights(network: nn.Module, weights: str, versions: type[WeightsEnum], classifier: str) -> None:
    """Load pretrained weights into a torchvision network; a classifier of a different size keeps its weights.

    Args:
        network: a network of torchvision.
        weights: a member of `versions`, or the path of a file (.pt, .pth) with a state dict of this network.
        versions: the weights that torchvision offers, downloaded when first used.
        classifier: prefix of the classifier's parameters.

    Raises:
        ConfigError: if the weights are not found or do not fit.
    """
    given = read_weights(weights) if weights.endswith(SUFFIXES) else _download(weights, versions)  # type: ignore[arg-type]
    fit_weights(network, given, weights, f"torchvision's {versions.__name__.removesuffix('_Weights')}", (classifier,))


def fit_weights(network: nn.Module, given: Leaves, weights: str, name: str, classifier: tuple[str, ...]) -> None:
    """Load a state dict into a network; a classifier of a different size keeps its weights.

    Args:
        network: the network.
        given: the state dict.
        weights: its origin, for the message.
        name: name of the network, for the message.
        classifier: prefixes of the classifier's parameters.

    Raises:
        ConfigError: naming parameters that are missing, unexpected, or of another shape.
    """
    own = network.state_dict()
    unlike = {name for name, leaf in given.items() if name in own and own[name].shape != leaf.shape}
    # a plain dict without versions also accepts files from before BatchNorm counted batches
    found = network.load_state_dict({name: leaf for name, leaf in given.items() if name not in unlike}, strict=False)
    faults = {
        "missing": [name for name in found.missing_keys if name not in unlike],
        "unexpected": found.unexpected_keys,
        "of another shape": sorted(name for name in unlike if not name.startswith(classifier)),
    }
    if any(faults.values()):
        what = "; ".join(f"{fault}: {few(names)}" for fault, names in faults.items() if names)
        raise ConfigError(
            f"--model.network.weights {weights} does not fit {name} ({what}); give a state dict of that network"
        )


def read_weights(weights: str) -> Leaves:
    """Read the state dict at a path; a `ConfigError` says why it cannot be read."""
    path = given_path(weights, "--model.network.weights")
    if not path.is_file():
        raise ConfigError(f"--model.network.weights {weights} does not exist; give a file with a state dict")
    return _read_once(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)  # each component is built from the same weights
def _read_once(path: Path, modified: int) -> Leaves:
    option, fix = f"--model.network.weights {path}", "write one with torch.save(network.state_dict(), path)"
    try:
        given = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the reader raises many types on damaged files
        raise ConfigError(f"{option} cannot be read as a state dict ({type(error).__name__}); {fix}") from error
    if not isinstance(given, dict) or not all(isinstance(leaf, Tensor) for leaf in given.values()):
        raise ConfigError(f"{option} holds no state dict; {fix}")
    return given


@lru_cache(maxsize=1)
def _download(weights: str, versions: type[WeightsEnum]) -> Leaves:
    if weights not in versions.__members__:
        raise ConfigError(
            f"--model.network.weights is {weights}; give one of {', '.join(versions.__members__)}, or the path of a "
            f"state dict that ends with {' or '.join(SUFFIXES)}"
        )
    try:
        return dict(versions[weights].get_state_dict(progress=True, check_hash=True))
    except OSError as error:  # no network, no such host, no place to write
        raise ConfigError(
            f"--model.network.weights {weights} cannot be downloaded ({error}); give the path of a file with them"
        ) from error
