"""The parser of the command line."""

from __future__ import annotations

import difflib
import inspect
import re
from typing import Any, NoReturn

import docstring_parser
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from lit_fed.algorithms import Algorithm
from lit_fed.command_line.help import FederatedHelp
from lit_fed.core.errors import ConfigError
from lit_fed.core.surrogate import Surrogate
from lit_fed.core.topology import Topology
from lit_fed.data import DataSet, Partition
from lit_fed.models import Network

__all__ = ["CLASSES", "FederatedParser", "class_names", "subclasses"]

CLASSES: dict[str, tuple[str, type]] = {
    "--model.algorithm": ("model.algorithm", Algorithm),
    "--model.algorithm.surrogate": ("surrogate", Surrogate),
    "--model.algorithm.topology": ("topology", Topology),
    "--model.network": ("model.network", Network),
    "--data.dataset": ("data.dataset", DataSet),
    "--data.partition": ("data.partition", Partition),
}
"""Options that name a class: what jsonargparse's messages call them, and what the classes have in common."""

NO_CLASS = re.compile(r"Expected a dot import path|Problem with given class_path")
"""How a message begins about a class that cannot be found."""

UNKNOWN = re.compile(r"(?:unrecognized arguments: |does not accept option ')(-*[\w.]+)")
"""How a message begins about an option that cannot be found."""

WORDS = (
    (re.compile(r"[Pp]arser key \"([\w.]+)\":"), r"--\1:"),
    (re.compile(r"Expected a dot import path string: (.*)"), r"there is no class \1"),
    (re.compile(r"(?:typing\.)?Literal\[(.*?)\]"), r"value out of \1"),
    (re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>"), r"\1"),
    (re.compile(r"Expected an? (?=[\w'])"), "expected "),
    (re.compile(r"^Unexpected config:.*"), "--config: a configuration has sections, such as `model:` and `data:`"),
)
"""jsonargparse's words, and what they mean on a command line."""

CLASS_OPTIONS = "`fit --model.algorithm.help NAME` and the like list the options of a class"

SAID_ELSEWHERE = re.compile(
    r"Expected a path but|Does not validate against|^Subtypes: |^Errors:|NoneType|^Given value type|NestedArg"
)
"""Lines of its messages that name Python's types, or repeat what other lines say."""

CLASS_HELP = re.compile(r"Help for --([\w.]+)\.help=(?:[\w.]+\.)?(\w+)")
"""What jsonargparse calls the parser of one class, made for its help."""


class FederatedParser(LightningArgumentParser):
    """A parser whose errors are a message, not a usage page, and whose help is short."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", FederatedHelp)
        kwargs.setdefault("prog", "python -m lit_fed")
        found = CLASS_HELP.fullmatch(kwargs.get("description") or "")
        self._explains_class = found is not None
        if found is not None:
            chosen = f"--{found[1]}{'+=' if found[1] == 'trainer.callbacks' else ' '}{found[2]}"
            kwargs["usage"] = f"python -m lit_fed fit {chosen} [options]"
        super().__init__(*args, **kwargs)

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments; where a class alone is explained, say what it is even if it takes none."""
        added = super().add_class_arguments(theclass, *args, **kwargs)
        if self._explains_class:
            said = docstring_parser.parse(inspect.getdoc(theclass) or "")
            self.description = " ".join(filter(None, (said.short_description, said.long_description)))
            self._action_groups[-1].title = "options" if added else None
        return added

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Stop with a message that says what is known.

        Raises:
            ConfigError: always.
        """
        hints = [
            f"{option} takes {', '.join(sorted(class_names(base)))}, or the path of a class of your own"
            for option, (key, base) in CLASSES.items()
            if NO_CLASS.search(message) and (f'"{key}"' in message or f"'{key}'" in message)
        ]
        raise ConfigError("\n".join([*_readable(message), *hints, *self._near_names(message)])) from ex

    def _near_names(self, message: str) -> list[str]:
        """What may have been meant by an option that there is not."""
        found = UNKNOWN.search(message)
        if found is None:
            refused = "is not accepted" in message and CLASS_OPTIONS not in message
            return [CLASS_OPTIONS] if refused else []
        below = self._subcommands_action._name_parser_map.values() if self._subcommands_action else ()
        known = dict.fromkeys(option for parser in (self, *below) for option in parser._option_string_actions)
        meant = "--" + found[1].lstrip("-")
        known = {one: None for one in known if not one.endswith(".help")}
        near = [one for one in known if one.endswith("." + meant.lstrip("-").rpartition(".")[2])]
        near = near or difflib.get_close_matches(meant, known, 2, 0.8)
        return [f"did you mean {' or '.join(near)}?"] if near else ["`--help` behind a command lists its options"]

    def instantiate(self, *args: Any, **kwargs: Any) -> Namespace:
        """Make the objects; where one may be null, what it refuses reaches the terminal without the rest.

        Raises:
            ConfigError: if an object refuses its arguments.
        """
        try:
            return super().instantiate(*args, **kwargs)
        except ValueError as error:
            if isinstance(error.__cause__, ConfigError):
                raise error.__cause__ from None
            raise


def _readable(message: str) -> list[str]:
    """A message of jsonargparse in as many lines as it takes."""
    lines = [line.strip().removeprefix("- ") for line in str(message).splitlines()]
    kept = [line for line in lines if line and not SAID_ELSEWHERE.search(line)]
    for pattern, word in WORDS:
        kept = [pattern.sub(word, line) for line in kept]
    first, *rest = dict.fromkeys(kept)
    together = f"{first} {'; '.join(rest)}"
    if first.endswith(":") and len(together) <= 100:
        return [together]
    return [first, *(f"  {line}" for line in rest[:10])]


def subclasses(base: type) -> list[type]:
    """All classes below one, without those that are only bases of others."""
    found = [one for each in base.__subclasses__() for one in (each, *subclasses(each))]
    return [one for one in dict.fromkeys(found) if not getattr(one, "__abstractmethods__", None)]


def class_names(base: type) -> list[str]:
    """Their names."""
    return [one.__name__ for one in subclasses(base)]
