"""The arguments of a command before they are parsed: one walk that completes and checks them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from jsonargparse import Namespace

from lit_fed.command_line.classes import refuse_file, with_function
from lit_fed.data.data_sets.base import ClientDataSet
from lit_fed.errors import ConfigError, notice
from lit_fed.system.files import os_error_text, quote
from lit_fed.system.plain_yaml import read_yaml

__all__ = [
    "CONFIG", "config_files", "configs_folder", "default_name", "divided", "giving_way", "options_in", "prepared",
    "shipped", "with_checkpoint", "with_place", "with_values",
]  # fmt: skip

CONFIG = ("-c", "--config")
"""The option that names a configuration."""

OPTION = re.compile(r"(?:--|[Oo]ption ')(\w[\w.]*\w)")
"""An option in a message of the parser."""

MOST_BYTES = 2**20
"""Upper limit of a configuration's size; a checkpoint or a data set that was given by mistake is larger."""


def with_values(given: Sequence[str], change: Callable[[str, str], str]) -> list[str]:
    """The arguments with other values, each after a `=` or as the next argument.

    Args:
        given: arguments of a command.
        change: makes the new value from option and value; it gets each argument as the value of the one before.
    """
    changed, before = [], ""
    for argument in given:
        option, equals, value = argument.partition("=")
        joined = bool(equals) and option.startswith("-")
        changed.append(f"{option}={change(option, value)}" if joined else change(before, argument))
        before = argument
    return changed


def options_in(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs of option and value, each argument as a possible value of the one before."""
    before = ""
    for argument in given:
        option, equals, value = argument.partition("=")
        yield (option, value) if equals and option.startswith("-") else (before, argument)
        before = argument


def divided(given: Sequence[str], options: Collection[str]) -> tuple[list[str], list[str]]:
    """The arguments of some options, those of their classes among them, and all others; values follow their option.

    Example:
        >>> divided(["--name", "x", "--model.algorithm.mu=1", "--data.seed", "-1"], ("--name", "--model.algorithm"))
        (['--name', 'x', '--model.algorithm.mu=1'], ['--data.seed', '-1'])
    """
    parts: tuple[list[str], list[str]] = [], []
    into = parts[1]
    for one in given:
        if re.match("--?[a-zA-Z]", one):
            option = one.partition("=")[0]
            into = parts[not any(option == name or option.startswith(f"{name}.") for name in options)]
        into.append(one)
    return parts


def prepared(given: Sequence[str]) -> list[str]:
    """The arguments as the parser takes them.

    `--config configs/…` names the shipped file if there is no such file here; W&B's agent passes null as None; a
    function that makes a network becomes a class path, so that it can have options.

    Raises:
        ConfigError: naming a configuration that cannot be read, with the line if there is one; or a file given as a
            class.
    """
    nulls = [f"{one[:-4]}null" if one.startswith("--") and one.endswith("=None") else one for one in given]
    return with_values(nulls, _prepared)


def _prepared(option: str, value: str) -> str:
    if option in CONFIG:
        value = shipped(value)
        _check(value)
        return value
    refuse_file(option, value)
    return with_function(option, value)


def configs_folder() -> Path:
    """The folder of the shipped configurations: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def shipped(file: str) -> str:
    """The shipped file that `configs/…` names if there is no such file here; any other path unchanged."""
    parts = Path(file).parts
    if parts[:1] != ("configs",) or Path(file).exists():
        return file
    found = configs_folder().joinpath(*parts[1:])
    return str(found) if found.is_file() else file


def config_files(given: Sequence[str]) -> list[str]:
    """The configurations among the arguments, without those written inline."""
    return [value for option, value in options_in(given) if option in CONFIG and not value.lstrip().startswith("{")]


def default_name(given: list[str], algorithm: str) -> str:
    """The name of a run without `--name`: the last configuration's stem, else the name of the algorithm's class."""
    stems = [Path(file).stem for file in config_files(given)]
    return stems[-1] if stems else algorithm.rpartition(".")[2]


def giving_way(given: list[str], data: Namespace) -> list[str]:
    """Arguments that undo settings of configurations which the data set of the command line cannot use; warns of them.

    A data set that comes with its clients is not divided; if they are on nodes, none is held out here. Settings of the
    command line itself stay, and are refused later.
    """
    set_here = {one.partition("=")[0] for one in given}
    if "--data.dataset" not in set_here:
        return []
    module, _, name = str(data.dataset.class_path).rpartition(".")
    kind = getattr(importlib.import_module(module), name)  # the parser has imported it
    if not issubclass(kind, ClientDataSet):
        return []
    instead = {"partition": "null", "num_clients": "null"} | ({"unseen_fraction": "0"} if kind.is_remote else {})
    sections = {one.removeprefix("--data.").partition(".")[0] for one in set_here}
    undone = {f"--data.{name}": value for name, value in instead.items() if data[name] and name not in sections}
    if undone:
        notice(f"{', '.join(undone)} of the configuration left out: {kind.__name__} comes with its clients")
    return [part for option in undone.items() for part in option]


# ---------------------------------------------------------------------- places in configurations
def with_place(given: Sequence[str], message: str) -> str:
    """A message about an option, with file and line where a configuration gives it and the command line does not.

    Args:
        given: arguments of the command.
        message: it names the option; one of a class follows the option that the class is given to.
    """
    names = OPTION.findall(message)[:2]
    here = {option.removeprefix("--") for option, _ in options_in(given)}
    for option in (".".join(names), *names[:1]):
        for file in reversed(config_files(given)) if option not in here else ():
            with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):  # the message may be about the file
                tree = yaml.compose(Path(file).read_text(), Loader=yaml.SafeLoader)
                if (line := _line_of(tree, option.split("."))) is not None:
                    return f"--config {file}, line {line}: {message}"
    return message


def with_checkpoint(given: Sequence[str], message: str, checkpoint: Path) -> str:
    """A message with the checkpoint that it is about, unless it names that, or an option of the command line.

    Args:
        given: arguments of the command.
        message: it may name an option.
        checkpoint: the checkpoint whose arguments the command takes.
    """
    here = {option.removeprefix("--") for option, _ in options_in(given)}
    message = message.replace("--config.", "--", 1)
    names = OPTION.findall(message)
    is_told = str(checkpoint) in message or here.intersection(names[:1])
    return message if is_told else f"--ckpt_path {checkpoint}: {message}"


def _line_of(node: yaml.Node | None, names: Sequence[str]) -> int | None:
    """The line of a key below a section; options of a class may be in its `init_args`. None: there is none."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == names[0]:
            return int(key.start_mark.line) + 1 if len(names) == 1 else _line_of(value, names[1:])
        if key.value == "init_args" and (line := _line_of(value, names)) is not None:
            return line
    return None


# ---------------------------------------------------------------------- checks of configurations
def _check(name: str) -> None:
    """Check one file; the parser handles inline configurations and names of no file."""
    try:
        path = Path(name)
        if name.lstrip().startswith("{") or not path.is_file():
            return
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MOST_BYTES else ""
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--config {name} is not text in UTF-8 (byte {error.start}); give a YAML or JSON file, saved as UTF-8"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise ConfigError(f"--config {quote(name)}: {os_error_text(error)}; give another file") from error
    if size > MOST_BYTES:
        raise ConfigError(f"--config {name} has {size:,} bytes; give a configuration, YAML or JSON")
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        read_yaml(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {name}: {' '.join(str(error).split())}") from error
    if not isinstance(tree, yaml.MappingNode):
        raise ConfigError(f"--config {name}: give sections, such as `model:` and `data:`")
    _check_keys(name, tree, set())


def _check_keys(name: str, node: yaml.Node, seen: set[int]) -> None:
    """Refuse a key that appears twice in one section: YAML would drop the first value silently."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _check_keys(name, value, seen)
        return
    keys: set[str] = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in keys and key.value != "<<":
            line = f"--config {name}, line {key.start_mark.line + 1}"
            raise ConfigError(f"{line}: {key.value} appears twice in its section; keep one of them")
        keys.add(str(key.value))
        _check_keys(name, value, seen)
