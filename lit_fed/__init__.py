"""lit_fed: personalised federated learning on PyTorch Lightning.

Whatever a program of one's own needs can be imported from here: `from lit_fed import FedEM, FederatedTrainer`.
"""

import functools
import importlib
import re
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = version("lit-fed")

# In a notebook tqdm, which others import, asks for widgets; the progress bar of the rounds needs none.
warnings.filterwarnings("ignore", message="IProgress not found")

_ROOMS = (
    "lit_fed.algorithms",
    "lit_fed.models",
    "lit_fed.data",
    "lit_fed.data.poison",
    "lit_fed.core.local_solver",
    "lit_fed.core.fine_tuning",
    "lit_fed.core.targets",
    "lit_fed.core.likelihood",
    "lit_fed.core.segmentation",
    "lit_fed.core.forecasting",
    "lit_fed.core.positive_numbers",
    "lit_fed.core.task",
    "lit_fed.core.graphs.topology",
    "lit_fed.core.graphs.mixing",
    "lit_fed.core.mixtures.surrogate",
    "lit_fed.core.mixtures.known_surrogates",
    "lit_fed.wrappers.compression.codecs",
    "lit_fed.wrappers.mixture_start",
    "lit_fed.wrappers.robust.attacks",
    "lit_fed.wrappers.selection.rules",
    "lit_fed.errors",
    "lit_fed.clients.store",
    "lit_fed.deployment.federation",
    "lit_fed.deployment.node",
    # from here on with Lightning
    "lit_fed.trainer",
    "lit_fed.training.module",
    "lit_fed.training.module_server",
    "lit_fed.training.round_logger",
    "lit_fed.data.module",
    "lit_fed.callbacks",
    "lit_fed.commands",
    "lit_fed.cli",
)
"""Packages that are searched for names, in this order: those without Lightning come first."""


def __getattr__(name: str) -> Any:
    """A room, or a public class or function of one; rooms are imported when first asked for, which takes seconds.

    Raises:
        AttributeError: if no room has it.
    """
    if name == "__all__":
        return __dir__()
    if not name.startswith("_"):
        if _is_module(name):  # `from lit_fed import rounds` needs no other room
            return _imported(f"lit_fed.{name}")
        for room in _rooms():
            if name in _names(room):
                return getattr(_imported(room), name)
    raise AttributeError(f"module 'lit_fed' has no attribute {name!r}")


def _imported(module: str) -> Any:
    """A module of lit_fed.

    Raises:
        ImportError: if it needs an attribute that is not there; of an AttributeError, Python would only say that it
            cannot import the name.
    """
    try:
        return importlib.import_module(module)
    except AttributeError as error:
        raise ImportError(f"{module} cannot be imported: {error}") from error


@functools.cache
def _is_module(name: str) -> bool:
    """Whether lit_fed has a module or a folder of this name; the command line asks a thousand times."""
    return find_spec(f"lit_fed.{name}") is not None


@functools.cache
def _names(room: str) -> frozenset[str]:
    """The public names of a room, read from the list in its file; a folder reads its own list from its files."""
    file = Path(__file__).parent.joinpath(*room.split(".")[1:]).with_suffix(".py")
    if not file.is_file():
        return frozenset(_imported(room).__all__)
    listed = re.search(r"^__all__ = \[(.*?)\]", file.read_text(), re.MULTILINE | re.DOTALL)
    return frozenset(re.findall(r'"(\w+)"', listed[1] if listed else ""))


@functools.cache
def _rooms() -> list[str]:
    """The rooms that are there: `deployment` or a feature may be absent."""
    places = {room: Path(__file__).parent.joinpath(*room.split(".")[1:]) for room in _ROOMS}
    return [
        room for room, place in places.items()
        if place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()
    ]  # fmt: skip


def __dir__() -> list[str]:
    """All of these names."""
    return sorted({"__version__"}.union(*map(_names, _rooms())))
