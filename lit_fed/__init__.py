"""lit_fed: personalised federated learning on PyTorch Lightning.

Whatever a program of one's own needs can be imported from here: `from lit_fed import FedEM, FederatedTrainer`.
"""

import importlib
from importlib.metadata import version
from typing import Any

__version__ = version("lit-fed")

_ROOMS = (
    "lit_fed.training",
    "lit_fed.algorithms",
    "lit_fed.data",
    "lit_fed.data.module",
    "lit_fed.models",
    "lit_fed.callbacks",
    "lit_fed.core.local_solver",
    "lit_fed.core.graphs.topology",
    "lit_fed.core.graphs.mixing",
    "lit_fed.core.mixtures.surrogate",
    "lit_fed.core.mixtures.known_surrogates",
    "lit_fed.core.errors",
)


def __getattr__(name: str) -> Any:
    """A public class or function of one of the rooms; they are imported when first asked for, which takes seconds.

    Raises:
        AttributeError: if no room has it.
    """
    if name == "__all__":
        return __dir__()
    if not name.startswith("_"):
        for room in _ROOMS:
            module = importlib.import_module(room)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'lit_fed' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All of these names."""
    return sorted({"__version__"}.union(*(importlib.import_module(room).__all__ for room in _ROOMS)))
