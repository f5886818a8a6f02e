"""lit_fed: personalised federated learning on PyTorch Lightning."""

from importlib.metadata import version

__version__ = version("lit-fed")

__all__ = ["__version__"]
