"""The configurations that come with the package: they are found without a checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["configs_folder", "find_configs", "shipped"]

OPTIONS = ("-c", "--config")


def configs_folder() -> Path:
    """Where the shipped configurations lie: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_configs(given: list[str]) -> list[str]:
    """The arguments, with `--config configs/…` pointing to the shipped file wherever there is no such file here.

    Args:
        given: arguments of a command.
    """
    found, before = [], ""
    for argument in given:
        option, equals, value = argument.partition("=")
        if before in OPTIONS:
            found.append(shipped(argument))
        elif equals and option in OPTIONS:
            found.append(f"{option}={shipped(value)}")
        else:
            found.append(argument)
        before = argument
    return found


def shipped(file: str) -> str:
    """The shipped file that `configs/…` names wherever there is no such file here; any other path as it is."""
    parts = Path(file).parts
    if parts[:1] != ("configs",) or Path(file).exists():
        return file
    found = configs_folder().joinpath(*parts[1:])
    return str(found) if found.is_file() else file
