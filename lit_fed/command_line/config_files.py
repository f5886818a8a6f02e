"""Configurations are looked at before they are parsed: text, no key twice, no more than a person could have written."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path

import yaml
from jsonargparse import Namespace

from lit_fed.data.data_sets.base import ClientDataSet
from lit_fed.errors import ConfigError, notice
from lit_fed.system.given_paths import reason, shown

__all__ = ["check_configs", "default_name", "giving_way", "with_nulls"]

MOST_BYTES = 2**20
"""A configuration of a run has some thousand bytes; a checkpoint or a data set that was given by mistake has more."""

MOST_VALUES = 100_000
"""Values after all aliases are followed; nine lists of nine aliases each would be 387 million."""


def with_nulls(given: list[str]) -> list[str]:
    """The arguments with null for None, which is how W&B's agent passes the null of a sweep file."""
    return [f"{one[:-4]}null" if one.startswith("--") and one.endswith("=None") else one for one in given]


def default_name(given: list[str], config: Namespace) -> str:
    """The name of a run that is given none: the last configuration's stem, else the algorithm's class.

    Args:
        given: arguments of a command.
        config: what they were parsed to.
    """
    files = [after for before, after in pairwise(given) if before in ("-c", "--config")]
    files += [one.partition("=")[2] for one in given if one.startswith("--config=")]
    stems = [Path(file).stem for file in files if not file.lstrip().startswith("{")]
    return stems[-1] if stems else str(config.model.algorithm.class_path).rpartition(".")[2]


def giving_way(given: list[str], config: Namespace) -> list[str]:
    """Arguments that undo settings of configurations which a data set of the command line has no use for; says which.

    A data set that says itself who its clients are is not divided; where they are on nodes, nobody is set aside here.
    What the command line itself sets stays, and is refused later.

    Args:
        given: arguments of a command.
        config: what they were parsed to.
    """
    if not any(one.partition("=")[0] == "--data.dataset" for one in given):
        return []
    module, _, name = str(config.data.dataset.class_path).rpartition(".")
    kind = getattr(importlib.import_module(module), name)  # the parser has imported it
    if not issubclass(kind, ClientDataSet):
        return []
    instead = {"partition": "null", "num_clients": "null"} | ({"unseen_fraction": "0"} if kind.is_remote else {})
    set_here = {one.partition("=")[0].removeprefix("--data.").partition(".")[0] for one in given}
    undone = {f"--data.{name}": value for name, value in instead.items() if config.data[name] and name not in set_here}
    if undone:
        notice(f"{', '.join(undone)} of the configuration left out: {kind.__name__} says itself who its clients are")
    return [part for option in undone.items() for part in option]


def check_configs(given: list[str]) -> None:
    """Refuse configurations that cannot be read as they are meant.

    Args:
        given: arguments of a command; what stands behind `--config` is looked at.

    Raises:
        ConfigError: naming the file, the line where there is one, and the fix.
    """
    for before, argument in pairwise(["", *given]):
        option, equals, value = argument.partition("=")
        if before in ("-c", "--config"):
            _check(argument)
        elif equals and option in ("-c", "--config"):
            _check(value)


def _check(name: str) -> None:
    """Look at one file; what is no file is left to the parser, which knows inline configurations."""
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
        raise ConfigError(f"--config {shown(name)}: {reason(error)}; give another file") from error
    if size > MOST_BYTES:
        raise ConfigError(f"--config {name} has {size:,} bytes; give a configuration, YAML or JSON")
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return  # the parser says what is wrong and where
    _check_keys(name, tree)
    if tree is not None and _num_values(tree, {}) > MOST_VALUES:
        raise ConfigError(f"--config {name}: its aliases stand for more than {MOST_VALUES:,} values; write them out")


def _check_keys(name: str, node: yaml.Node | None, seen: set[int] | None = None) -> None:
    """Refuse a key that stands twice in one section: the first of them would be dropped without a word."""
    seen = set() if seen is None else seen
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys and key.value != "<<":
                line = f"--config {name}, line {key.start_mark.line + 1}"
                raise ConfigError(f"{line}: {key.value} stands twice in its section; keep one of them")
            keys.add(str(key.value))
            _check_keys(name, value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _check_keys(name, value, seen)


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Values below a node, each alias counted as what it stands for; one that holds itself counts as too many."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = MOST_VALUES + 1  # until it is counted
        inner = [value for _, value in node.value] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_num_values(value, known) for value in inner)
    return known[id(node)]
