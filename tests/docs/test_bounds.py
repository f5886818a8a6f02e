"""Libraries whose next release could loosen what protects from a stranger's file have an upper bound."""

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from lightning.pytorch.cli import LightningCLI
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

WHY = {
    "lightning": "which entries of a checkpoint it restores, and by which paths it deletes",
    "jsonargparse": "which texts it takes for a class or a file; Lightning calls what version 5 removes",
    "torchmetrics": "which of its classes take words and numbers alone",
    "transformers": "which options hold a file, an address or code",
    "peft": "which options hold a file, an address or code",
    "timm": "which options hold a file, an address or code",
    "aiohttp": "what it refuses of a request before the server sees it",
}


@pytest.mark.parametrize("name", WHY)
def test_rules_are_for_known_releases(name):
    """The bound is lifted with a look at the rule; each extra that has the library has the same bound."""
    extras = [one for parts in PROJECT["optional-dependencies"].values() for one in parts]
    found = {one for one in map(Requirement, (*PROJECT["dependencies"], *extras)) if one.name == name}
    assert len(found) == 1, f"the rules of lit_fed say {WHY[name]}"
    (requirement,) = found
    assert any(one.operator == "<" for one in requirement.specifier), f"the rules of lit_fed say {WHY[name]}"
    assert version(name) in requirement.specifier


def test_lightning_calls_what_version_5_of_jsonargparse_removes():
    assert "self.parser.instantiate_classes(" in inspect.getsource(LightningCLI.instantiate_classes)
